"""Backup files: every byte counts, older backups are kept, and no damage goes unnoticed."""

import collections
import errno
import hashlib
import json
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from tf_adasum import atomic_files
from tf_adasum.backup import backup_files
from tf_adasum.backup.backup_files import MAGIC, Array, Backup, BackupFiles, DamagedBackupError
from tf_adasum.workers.workers import Workers

ALONE = Workers(0, 1, None, None)
BITS = np.random.default_rng(0).integers(0, 256, 24, "uint8")
ARRAYS = [
    Array("model", "a/b", [BITS.view("float32"), BITS[::-1].copy().view("float32")]),
    Array("model", "scalar", [np.array(-0.0, "float64")]),
    Array("optimizer", "c", [np.array([[np.nan, 1]], ml_dtypes.bfloat16)]),
    Array("rule", "flags", [np.array([True, False])]),
    Array("metrics", "none", [np.zeros([0, 3], "int64")]),
]
FACTS = {"epoch": 3, "batch": 7, "position": 7, "pass": 3, "seed": 5}
Disk = collections.namedtuple("Disk", "total used free")


def backup(epoch=3, batch=7):
    return Backup(FACTS | {"epoch": epoch, "batch": batch}, ARRAYS)


BYTES = b"".join(bytes(part) for part in backup().encoded())
SIZE = len(BYTES)


def written(folder, *epochs, **options):
    """The `BackupFiles` of a folder, after a backup at the end of each of these epochs."""
    files = BackupFiles(folder, **options)
    for epoch in epochs:
        files.write(backup(epoch, 0))
    return files


def path_in(folder, epoch, batch=0):
    return folder / f"epoch-{epoch}-batch-{batch}.backup"


def paths_in(folder):
    return sorted(folder.iterdir())


def test_a_smaller_batch_number_replaces_larger_ones_after_the_batch_size_has_changed(tmp_path):
    files = BackupFiles(tmp_path, 2)
    files.write(backup(0, 110))
    files.write(backup(0, 120))
    files.keep_only_next()
    files.write(backup(0, 65))
    assert paths_in(tmp_path) == [path_in(tmp_path, 0, 65)]
    files.write(backup(0, 70))
    assert len(paths_in(tmp_path)) == 2
    assert BackupFiles(tmp_path, 2).newest(ALONE).progress == (0, 70)


@pytest.mark.parametrize(
    ("before", "now", "position"),
    [
        ({"rows": 60, "batches": 80}, (90, 54), 20),  # 30 batches of 60 rows
        ({"rows": 10, "batches": 31}, (4, 60), 60),  # not more than there are
        ({"batches": 80}, (0, 40), 15),
        ({}, (60, 80), 30),
    ],
)
def test_the_position_in_batches_of_another_size(before, now, position):
    own = Backup({**FACTS, "batch": 30, "position": 30, **before}, ARRAYS)
    assert own.with_batch_size(*now).facts["position"] == position


def test_every_bit_comes_back():
    restored = Backup.decoded(BYTES, "x")
    assert restored.facts == FACTS and restored.progress == (3, 7)
    for actual, expected in zip(restored.arrays, ARRAYS, strict=True):
        assert (actual.section, actual.path) == (expected.section, expected.path)
        for own, other in zip(actual.copies, expected.copies, strict=True):
            assert (own.dtype, own.shape) == (other.dtype, other.shape)
            assert own.tobytes() == other.tobytes()


def test_cut_off_or_changed_anywhere_it_is_refused():
    damaged = [BYTES[:size] for size in range(SIZE)] + [BYTES + b"\0"]
    for position in range(SIZE):
        changed = bytearray(BYTES)
        changed[position] ^= 1 << position % 8
        damaged.append(bytes(changed))
    for each in damaged:
        with pytest.raises(
            DamagedBackupError, match=rf"the name is cut off or damaged \({len(each)} "
        ):
            Backup.decoded(each, "the name")


@pytest.mark.parametrize("keep", [1, 2])
def test_the_last_ones_written_are_kept(keep, tmp_path):
    """Wherever they are in the training."""
    files = BackupFiles(tmp_path / "backup", keep)
    assert files.newest(ALONE) is None
    for epoch, batch in (0, 10), (1, 0), (10, 0), (9, 5):
        files.write(backup(epoch, batch))
    expected = [path_in(tmp_path / "backup", *at) for at in [(10, 0), (9, 5)][-keep:]]
    assert paths_in(tmp_path / "backup") == expected
    progress = BackupFiles(tmp_path / "backup").newest(ALONE).progress
    assert progress == ((9, 5) if keep == 1 else (10, 0))
    files.remove()
    assert paths_in(tmp_path) == []


def test_if_the_newest_is_refused_an_older_one_is_used_with_a_warning(tmp_path):
    written(tmp_path, 1, 2)
    files, names = BackupFiles(tmp_path), r"resumes from .*epoch-1-b.*: .*epoch-2-batch-0.*"

    def check(each, path):
        if each.progress[0] == 2:
            raise ValueError(f"{path} is another's.")

    with pytest.warns(UserWarning, match=f"{names} is another's"):
        assert files.newest(ALONE, check).progress == (1, 0)
    newest, older = path_in(tmp_path, 2), path_in(tmp_path, 1)
    data = older.read_bytes()
    older.write_bytes(b"")
    with pytest.raises(ValueError, match=r"epoch-2-batch-0.backup is another's; .*-1-.*cut off"):
        files.newest(ALONE, check)
    newest.write_bytes(b"half")
    with pytest.raises(DamagedBackupError, match=r"epoch-2-.*; .*epoch-1-"):
        files.newest(ALONE, check)
    older.write_bytes(data)
    with pytest.warns(UserWarning, match=f"{names} cut"):
        assert files.newest(ALONE).progress == (1, 0)
    error = OSError(errno.EIO, "Input/output error")
    read = mock.Mock(side_effect=[error, data])
    with (
        mock.patch.object(type(newest), "read_bytes", read),
        pytest.warns(UserWarning, match=f"{names}: Input/output error"),
    ):
        assert files.newest(ALONE).progress == (1, 0)
    files.write(backup(1, 5))
    assert paths_in(tmp_path) == [older, path_in(tmp_path, 1, 5)], "the damaged one is removed"


def test_what_a_killed_process_has_left_is_no_backup(tmp_path):
    (tmp_path / ".unfinished-1234-epoch-9-batch-0.backup").write_bytes(b"half")
    files = BackupFiles(tmp_path)
    assert files.newest(ALONE) is None
    files.write(backup(1, 0))
    assert paths_in(tmp_path) == [path_in(tmp_path, 1)]
    (tmp_path / "other").touch()
    files.remove()
    assert paths_in(tmp_path) == [tmp_path / "other"]


def whole(head, data=b""):
    """A file whose digest is right, whatever it holds."""
    body = (head if isinstance(head, bytes) else json.dumps(head).encode()) + b"\n" + data
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


ROW = {"section": "model", "path": "a", "dtype": "float32", "shape": [2], "copies": 1}
HEAD = {**FACTS, "arrays": [ROW]}
DATA = bytes(8)
WRONG_ROWS = {
    "dtype": ("string", "float33", None),
    "shape": (2, [3], [2.0], [10**9, 10**9, 10**9]),
}
NONSENSE = {
    "no JSON": whole(b"{"),
    "nested": whole(b"[" * 99_999),
    "no object": whole([1]),
    "no line": MAGIC + hashlib.sha256(b"{}").hexdigest().encode() + b"\n{}",
    "no arrays": whole(FACTS),
    "epoch 10^15": whole({**HEAD, "epoch": 10**15}, DATA),
    "batch -1": whole({**HEAD, "batch": -1}, DATA),
    "bytes left": whole(HEAD, DATA + b"\0"),
    "bytes missing": whole(HEAD, DATA[:-1]),
    **{
        f"{name} {value}": whole({**FACTS, "arrays": [ROW | {name: value}]}, DATA)
        for name, values in WRONG_ROWS.items()
        for value in values
    },
}


def test_what_nonsense_differs_from_is_read():
    assert Backup.decoded(whole(HEAD, DATA), "x").arrays[0].copies[0].shape == (2,)


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused(name):
    with pytest.raises(DamagedBackupError, match=r"^the file makes no sense \("):
        Backup.decoded(NONSENSE[name], "the file")


@pytest.fixture
def free(monkeypatch):
    """A function that sets how much room is left on all disks."""

    def set_free(count):
        monkeypatch.setattr(backup_files.shutil, "disk_usage", lambda _: Disk(10**9, 0, count))

    return set_free


def test_room_is_needed(tmp_path, free):
    folder = tmp_path / "a" / "b"
    files = BackupFiles(folder)
    free(SIZE)
    files.prepare(SIZE)
    assert paths_in(folder) == []
    free(SIZE - 1)
    with pytest.raises(OSError, match=r"a/b has .* of free space, and a backup needs .* Free some"):
        files.prepare(SIZE)
    free(0)
    written(folder, 1, 2).prepare(SIZE - 1)  # what is there already can go


def test_without_room_the_oldest_goes_first(tmp_path, free, monkeypatch):
    free(SIZE)
    files = written(tmp_path, 1, 2, 3)
    assert len(paths_in(tmp_path)) == 2
    free(SIZE - 1)
    seen = []
    monkeypatch.setattr(atomic_files, "_flush", lambda path: seen.append(paths_in(tmp_path)))
    files.write(backup(4, 0))
    assert [len(paths) for paths in seen] == [2, 2] and path_in(tmp_path, 3) in seen[0]
    assert paths_in(tmp_path) == [path_in(tmp_path, 3), path_in(tmp_path, 4)]


@pytest.mark.parametrize("name", ["_flush", "remove_unfinished"])
def test_a_full_disk_is_named_and_the_last_one_stays(name, tmp_path, monkeypatch):
    files = written(tmp_path, 1)

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files, name, full)
    message = rf"No space left on device: the backup epoch-2-batch-0.* to {tmp_path}"
    with pytest.raises(OSError, match=message) as caught:
        files.write(backup(2, 0))
    assert caught.value.errno == errno.ENOSPC
    assert paths_in(tmp_path) == [path_in(tmp_path, 1)]


def test_another_job_with_the_same_folder_is_the_reason(tmp_path, monkeypatch):
    files, other, flush = BackupFiles(tmp_path), BackupFiles(tmp_path), atomic_files._flush

    def flush_while_the_other_writes(path):
        monkeypatch.setattr(atomic_files, "_flush", flush)
        other.write(backup(epoch=9))
        flush(path)

    monkeypatch.setattr(atomic_files, "_flush", flush_while_the_other_writes)
    with pytest.raises(OSError, match="another job with this `backup_dir` has removed it: the ba"):
        files.write(backup())
