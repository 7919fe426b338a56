"""Worker 0 saves, loads and copies models alone, in the strategy's scope and outside of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scenarios import callbacks, on
from scenarios import saving as scenarios


@on("2x1", "2x2")
def test_all_workers_save_one_checkpoint(group, tmp_path):
    for result in group.run(scenarios.save_on_all_workers, folder=str(tmp_path)):
        assert result["equal"] and result["average"] == 1.0
        assert str(result["latest"]) == str(tmp_path / "ckpt-9")
    files = {path.name.partition(".data")[0] for path in tmp_path.iterdir()}
    kept = {f"ckpt-{number}" for number in (8, 9)} | {"alone"}
    assert files == {"checkpoint", *kept, *(f"{name}.index" for name in kept)}


@on("2x1", "2x2")
@pytest.mark.keras3_only("in `fit` of Keras 2 all workers save")
@pytest.mark.parametrize("within_fit", [False, True], ids=["by hand", "in fit"])
def test_saves_in_scope(group, tmp_path, within_fit):
    own, _ = group.run(scenarios.save_in_scope, folder=str(tmp_path), within_fit=within_fit)
    load, model = keras.models.load_model, callbacks.compiled_model(None)
    models = ["model.keras", "model.h5", *(["best.keras"] if within_fit else [])]
    weights = {name: load(tmp_path / name, compile=False).get_weights() for name in models}
    for name in ("model.weights.h5", "parts.weights.json"):
        model.load_weights(tmp_path / name)
        weights[name] = model.get_weights()
    tf.train.Checkpoint(model=model).read(str(tmp_path / "checkpoint")).expect_partial()
    weights["checkpoint"] = model.get_weights()
    for name, loaded in weights.items():
        for expected, actual in zip(own.values(), loaded, strict=True):
            np.testing.assert_array_equal(actual, expected, err_msg=name)
    assert (tmp_path / "exported").exists()


@on("2x1", "2x2")
def test_copies(group, tmp_path):
    own, _ = group.run(scenarios.copy_alone, folder=str(tmp_path))
    np.testing.assert_allclose(own["losses"], [own["expected"]] * 3, rtol=1e-6)
