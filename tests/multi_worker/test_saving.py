"""Worker 0 saves, loads and copies models alone, in the strategy's scope and outside of it."""

import keras
import numpy as np
import pytest
from scenarios import saving as scenarios


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@pytest.mark.feature("worker 0 saves alone, also in the scope, in every format")
@on("2x1", "2x2")
@pytest.mark.keras3_only("in `fit` of Keras 2 all workers save")
@pytest.mark.parametrize("within_fit", [False, True], ids=["by hand", "in fit"])
def test_saves_in_scope(group, tmp_path, within_fit):
    own, _ = group.run(scenarios.save_in_scope, folder=str(tmp_path), within_fit=within_fit)
    saved = [own[f"weight{index}"] for index in range(len(own))]
    for name in ["model.keras", "model.h5", *(["best.keras"] if within_fit else [])]:
        loaded = keras.models.load_model(tmp_path / name, compile=False).get_weights()
        for expected, actual in zip(saved, loaded, strict=True):
            np.testing.assert_array_equal(actual, expected, err_msg=name)
    assert {path.name for path in tmp_path.iterdir()} >= {"model.weights.h5", "exported"}


@pytest.mark.feature("worker 0 loads, clones, compiles and trains a copy alone")
@on("2x1", "2x2")
def test_copies(group, tmp_path):
    own, _ = group.run(scenarios.copy_alone, folder=str(tmp_path))
    for actual in own["losses"]:
        np.testing.assert_allclose(actual, own["expected"], rtol=1e-6)
