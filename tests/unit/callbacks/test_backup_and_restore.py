"""BackupAndRestore: what it takes for arguments. What it does is in tests/unit/backup."""

import keras
import pytest

from tf_adasum.callbacks import BackupAndRestore
from tf_adasum.seams import keras as keras_seam

keras3_only = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")


def test_keras_2_does_it_by_itself(tmp_path):
    if keras_seam.BACKS_UP_ONE_WORKER:
        assert isinstance(BackupAndRestore(tmp_path), keras.callbacks.BackupAndRestore)
    else:
        with pytest.raises(ValueError, match=r"use keras\.callbacks\.Backup"):
            BackupAndRestore(tmp_path)


@keras3_only
@pytest.mark.parametrize("save_freq", [True, -1, 1.5, "batch", None])
def test_refuses_another_frequency(save_freq, tmp_path):
    with pytest.raises(ValueError, match="save_freq"):
        BackupAndRestore(tmp_path, save_freq=save_freq)


@keras3_only
@pytest.mark.parametrize("save_freq", ["epoch", 1, 10**6, False])
def test_takes_a_frequency(save_freq, tmp_path):
    assert BackupAndRestore(tmp_path, save_freq=save_freq).save_freq == save_freq


@keras3_only
@pytest.mark.parametrize("folder", ["gs://bucket/backup", "hdfs://a/b"])
def test_refuses_a_folder_that_is_not_local(folder):
    with pytest.raises(ValueError, match=f"backup_dir='{folder}'"):
        BackupAndRestore(folder)


@keras3_only
def test_writes_nothing_before_training(tmp_path):
    BackupAndRestore(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
