"""Backup files: every byte counts, the one before is kept, and nothing is silently left out."""

import ml_dtypes
import numpy as np
import pytest

from tf_adasum.backup.backup_files import Array, Backup, BackupFiles, DamagedBackup


def arrays():
    bits = np.random.default_rng(0).integers(0, 256, 24, "uint8")
    return [
        Array("model", "a/b", [bits.view("float32"), bits[::-1].copy().view("float32")]),
        Array("model", "scalar", [np.array(-0.0, "float64")]),
        Array("optimizer", "c", [np.array([[np.nan, 1]], ml_dtypes.bfloat16)]),
        Array("rule", "flags", [np.array([True, False])]),
        Array("metrics", "none", [np.zeros([0, 3], "int64")]),
    ]


def backup(epoch=3, batch=7):
    return Backup({"epoch": epoch, "batch": batch, "seed": 5}, arrays())


def data_of(each):
    return b"".join(bytes(part) for part in each.encoded())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_bit_comes_back():
    restored = Backup.decoded(data_of(backup()), "x")
    assert restored.facts == {"epoch": 3, "batch": 7, "seed": 5} and restored.progress == (3, 7)
    for actual, expected in zip(restored.arrays, arrays(), strict=True):
        assert (actual.section, actual.path) == (expected.section, expected.path)
        for own, other in zip(actual.copies, expected.copies, strict=True):
            assert (own.dtype, own.shape) == (other.dtype, other.shape)
            assert own.tobytes() == other.tobytes()


def test_cut_off_or_changed_anywhere_it_is_refused():
    data = data_of(backup())
    damaged = [data[:size] for size in range(len(data))] + [data + b"\0"]
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        damaged.append(bytes(changed))
    for each in damaged:
        with pytest.raises(DamagedBackup, match=rf"the name is cut off or damaged \({len(each)} "):
            Backup.decoded(each, "the name")


def test_the_last_two_are_kept(tmp_path):
    files = BackupFiles(tmp_path / "backup")
    assert files.newest() is None
    for epoch, batch in (0, 10), (1, 0), (10, 0), (9, 5):
        files.write(backup(epoch, batch))
    # The last ones written, wherever they are in the training.
    assert names_in(tmp_path / "backup") == ["epoch-10-batch-0.backup", "epoch-9-batch-5.backup"]
    assert BackupFiles(tmp_path / "backup").newest()[1].progress == (10, 0)
    files.remove()
    assert names_in(tmp_path) == []


def test_one_is_kept(tmp_path):
    files = BackupFiles(tmp_path, keep=1)
    for epoch in range(3):
        files.write(backup(epoch, 0))
    assert names_in(tmp_path) == ["epoch-2-batch-0.backup"]


def test_the_one_before_is_used_with_a_warning(tmp_path):
    files = BackupFiles(tmp_path)
    files.write(backup(1, 0))
    files.write(backup(2, 0))
    newest = tmp_path / "epoch-2-batch-0.backup"
    newest.write_bytes(newest.read_bytes()[:-1])
    again = BackupFiles(tmp_path)
    with pytest.warns(UserWarning, match=r"goes on from .*epoch-1-b.*: .*epoch-2-batch-0.* cut"):
        assert again.newest()[1].progress == (1, 0)
    again.write(backup(1, 5))
    assert names_in(tmp_path) == ["epoch-1-batch-0.backup", "epoch-1-batch-5.backup"]


def test_if_none_is_good_it_says_so(tmp_path):
    files = BackupFiles(tmp_path)
    for epoch in 1, 2:
        files.write(backup(epoch, 0))
        (tmp_path / f"epoch-{epoch}-batch-0.backup").write_bytes(b"")
    with pytest.raises(DamagedBackup, match=r"epoch-2-.*; .*epoch-1-"):
        files.newest()


def test_what_a_killed_process_has_left_is_no_backup(tmp_path):
    (tmp_path / ".unfinished-1234-epoch-9-batch-0.backup").write_bytes(b"half")
    files = BackupFiles(tmp_path)
    assert files.newest() is None
    files.write(backup(1, 0))
    assert names_in(tmp_path) == ["epoch-1-batch-0.backup"]
    (tmp_path / "other").touch()
    files.remove()
    assert names_in(tmp_path) == ["other"]
