"""BackupAndRestore: its arguments. tests/unit/backup tests what it does."""

import numpy as np
import pytest
from support import keras_versions
from support.two_variables import linear

import tf_adasum
from tf_adasum.callbacks import BackupAndRestore


@pytest.mark.skipif(not keras_versions.IS_KERAS_2, reason="Keras 3 needs this one")
def test_keras_2_needs_its_own_callback(tmp_path):
    with pytest.raises(ValueError, match=r"use keras\.callbacks\.Backup"):
        BackupAndRestore(tmp_path)


@keras_versions.needs_own_backups
@pytest.mark.parametrize("refuses", [True, False])
def test_a_backup_with_nan_is_refused(refuses, tmp_path):
    rows = np.random.default_rng(0).standard_normal([32, 3])

    def fit(targets, **options):
        model = linear(tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]))
        backup = BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False, **options)
        model.fit(rows, targets, batch_size=16, shuffle=False, verbose=0, callbacks=[backup])

    targets = rows[:, :1].copy()
    targets[-1] = np.nan  # in the second of two batches
    if refuses:
        with pytest.raises(FloatingPointError, match=r"'.*kernel' has a NaN.*TFA-608"):
            fit(targets)
        assert [path.name for path in tmp_path.iterdir()] == ["epoch-0-batch-1.backup"]
    else:
        fit(targets, refuse_nonfinite=False)
        assert len(list(tmp_path.iterdir())) == 2
        with pytest.warns(UserWarning, match="has a NaN or an infinity in the weight"):
            fit(rows[:, :1])  # from the older one
