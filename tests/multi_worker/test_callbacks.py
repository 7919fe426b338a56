"""The same list of callbacks on every worker: one writer, one state, one end."""

import csv

import keras
import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import callbacks as scenarios
from support import keras_versions


@on("2x1")
def test_worker_0_alone_writes_files(group, tmp_path):
    own, other = group.run(scenarios.train_with_files, folder=str(tmp_path / "{rank}"))
    assert_close([other], own)
    assert not {"log.csv", "board"} & {path.name for path in (tmp_path / "1").iterdir()}
    if not keras_versions.IS_KERAS_2:  # there all workers save, the others to temporary files
        assert list((tmp_path / "1").iterdir()) == []
    folder = tmp_path / "0"
    backups = ["chief"] if keras_versions.IS_KERAS_2 else ["epoch-2-batch-0.backup"]
    assert [path.name for path in (folder / "backup").iterdir()] == backups
    weights = [own.pop(f"weight{index}") for index in range(8)]
    saved = keras.models.load_model(folder / "checkpoint" / "model.keras").get_weights()
    for actual, expected in zip(saved, weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with open(folder / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]

    assert any("orthogonality/" in name for name in own)
    for name, logged in own.items():
        np.testing.assert_allclose([float(row[name]) for row in rows], logged, rtol=1e-6)
    for kind in ("train", "validation"):
        assert len(list((folder / "board" / kind).iterdir())) == 1


@on("2x1")
@pytest.mark.parametrize("rank", [None, 1], ids=["early stopping", "worker 1"])
@pytest.mark.always
def test_all_stop_after_the_same_epoch(group, rank):
    results = group.run(scenarios.train_until_stopped, rank=rank)
    assert_close(results[1:], results[0])
    assert results[0]["epochs"].tolist() == [0, 1]
