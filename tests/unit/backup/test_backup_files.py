"""Backup files: every byte counts, the one before is kept, and nothing is silently left out."""

import collections
import errno
import hashlib
import json

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest

from tf_adasum import atomic_files
from tf_adasum.backup import backup_files
from tf_adasum.backup.backup_files import MAGIC, Array, Backup, BackupFiles, DamagedBackup


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
    return Backup(facts_of(epoch, batch), arrays())


def facts_of(epoch=3, batch=7):
    return {"epoch": epoch, "batch": batch, "position": batch, "pass": epoch, "seed": 5}


def data_of(each):
    return b"".join(bytes(part) for part in each.encoded())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_bit_comes_back():
    restored = Backup.decoded(data_of(backup()), "x")
    assert restored.facts == facts_of() and restored.progress == (3, 7)
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
    with pytest.warns(UserWarning, match=r"resumes from .*epoch-1-b.*: .*epoch-2-batch-0.* cut"):
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


def whole(head, data=b""):
    """A file whose digest is right, whatever it holds."""
    body = (head if isinstance(head, bytes) else json.dumps(head).encode()) + b"\n" + data
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


ROW = {"section": "model", "path": "a", "dtype": "float32", "shape": [2], "copies": 1}
DATA = bytes(8)


def head(**changes):
    return {**facts_of(), "arrays": [ROW], **changes}


NONSENSE = {
    "no JSON": whole(b"{"),
    "nested": whole(b"[" * 99_999),
    "no object": whole([1]),
    "no line": MAGIC + hashlib.sha256(b"{}").hexdigest().encode() + b"\n{}",
    "no arrays": whole(facts_of()),
    "no position": whole({"epoch": 1, "batch": 0, "pass": 0, "seed": 5, "arrays": []}),
    **{
        f"{name} {value}": whole(head(**{name: value}), DATA)
        for name in ("epoch", "batch", "position", "pass")
        for value in (-1, 1e3, float("nan"), float("inf"), True, "1", None, 10**30)
    },
    "seed": whole(head(seed=10**40), DATA),
    "seed NaN": whole(head(seed=float("nan")), DATA),
    "bytes left": whole(head(), DATA + b"\0"),
    "bytes missing": whole(head(), DATA[:-1]),
    **{
        f"{name} {value}": whole(head(arrays=[ROW | {name: value}]), DATA)
        for name, value in [
            ("section", 1),
            ("path", None),
            ("dtype", "string"),
            ("dtype", "resource"),
            ("dtype", "float33"),
            ("dtype", None),
            ("shape", 2),
            ("shape", [-2]),
            ("shape", [-1]),
            ("shape", [3]),
            ("shape", [2.0]),
            ("shape", [10**9, 10**9, 10**9]),
            ("copies", 0),
            ("copies", -1),
            ("copies", 10**15),
            ("copies", True),
        ]
    },
    "copies of nothing": whole(head(arrays=[ROW | {"shape": [0], "copies": 10**15}])),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_and_the_one_before_is_used(name, tmp_path):
    assert Backup.decoded(whole(head(), DATA), "x").arrays[0].copies[0].shape == (2,)
    files = BackupFiles(tmp_path)
    files.write(backup(1, 0))
    (tmp_path / "epoch-2-batch-0.backup").write_bytes(NONSENSE[name])
    with pytest.warns(UserWarning, match=r"from .*epoch-1-b.*: .*epoch-2-batch-0.* no sense \("):
        assert files.newest()[1].progress == (1, 0)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
DTYPES = st.sampled_from(["float32", "bool", "bfloat16", "int4", "qint8", "variant", "uint64"])


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    facts=st.dictionaries(st.sampled_from([*facts_of(), "arrays"]), ANYTHING, max_size=2),
    changes=st.lists(
        st.dictionaries(st.sampled_from(list(ROW)), ANYTHING | DTYPES, max_size=2), max_size=3
    ),
    data=st.binary(max_size=40),
)
def test_fuzz_what_is_read_is_bounded(facts, changes, data):
    rows = [ROW | change for change in changes]
    try:
        read = Backup.decoded(whole(head(arrays=rows) | facts, data), "the file")
    except DamagedBackup as error:
        assert str(error).startswith("the file makes no sense")
        return
    assert all(type(each) is int and 0 <= each <= 10**12 for each in read.progress)
    assert sum(copy.nbytes for array in read.arrays for copy in array.copies) == len(data)


def test_of_another_training_is_refused_and_the_one_before_is_used(tmp_path):
    files = BackupFiles(tmp_path)
    files.write(backup(1, 0))
    files.write(backup(2, 0))

    def check(each, path):
        if each.progress[0] == 2:
            raise ValueError(f"{path} is another's.")

    with pytest.warns(UserWarning, match=r"resumes from .*epoch-1-b.*: .*epoch-2-batch-0.* is ano"):
        assert files.newest(check)[1].progress == (1, 0)
    (tmp_path / "epoch-1-batch-0.backup").write_bytes(b"")
    with pytest.raises(ValueError, match=r"epoch-2-batch-0.backup is another's; .*-1-.*cut off"):
        files.newest(check)


Disk = collections.namedtuple("Disk", "total used free")
SIZE = sum(map(len, backup().encoded()))


@pytest.fixture
def free(monkeypatch):
    """Returns a function that says how much room is left on all disks."""

    def says(count):
        monkeypatch.setattr(backup_files.shutil, "disk_usage", lambda _: Disk(10**9, 0, count))

    return says


def test_room_for_two_is_needed(tmp_path, free, recwarn):
    files = BackupFiles(tmp_path / "a" / "b")
    free(2 * SIZE)
    files.prepare(SIZE)
    assert not list(recwarn) and names_in(tmp_path / "a" / "b") == []
    free(2 * SIZE - 1)
    with pytest.warns(UserWarning, match="a/b has .* of free space.* second backup will fail"):
        files.prepare(SIZE)
    free(SIZE - 1)
    with pytest.raises(OSError, match=r"a/b has .* of free space, and a backup needs .* Free some"):
        files.prepare(SIZE)
    free(0)
    files.write(backup(1, 0))
    files.write(backup(2, 0))
    files.prepare(SIZE - 1)  # what is there already can go


def test_without_room_the_oldest_goes_first(tmp_path, free, monkeypatch):
    files = BackupFiles(tmp_path)
    free(SIZE)
    for epoch in 1, 2, 3:
        files.write(backup(epoch, 0))
    assert len(names_in(tmp_path)) == 2
    free(SIZE - 1)
    seen = []
    monkeypatch.setattr(
        atomic_files, "_flush", lambda path: seen.append(names_in(tmp_path)), raising=True
    )
    files.write(backup(4, 0))
    assert [len(names) for names in seen] == [2, 2] and "epoch-3-batch-0.backup" in seen[0]
    assert names_in(tmp_path) == ["epoch-3-batch-0.backup", "epoch-4-batch-0.backup"]


def test_a_full_disk_is_named_and_the_last_one_stays(tmp_path, monkeypatch):
    files = BackupFiles(tmp_path)
    files.write(backup(1, 0))

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files, "_flush", full)
    with pytest.raises(
        OSError, match="No space left on device: the backup epoch-2-batch-0"
    ) as caught:
        files.write(backup(2, 0))
    assert str(tmp_path) in str(caught.value) and caught.value.errno == errno.ENOSPC
    assert names_in(tmp_path) == ["epoch-1-batch-0.backup"]


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/backup"])
def test_a_directory_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / folder
    with pytest.raises(OSError, match=rf"must be a directory .*backup_dir='{path}'"):
        BackupFiles(path).prepare(1)
