"""A file is there as a whole or not at all, also when the process is killed while it writes."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from tf_adasum import atomic_files


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "a.weights.h5"
    for text in "old", "new":
        with atomic_files.replacing(path) as unfinished:
            assert os.path.dirname(unfinished) == str(tmp_path)
            assert unfinished.endswith(".weights.h5")
            with open(unfinished, "w") as file:
                file.write(text)
            assert path.exists() == (text == "new")
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["a.weights.h5"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_where_writing_fails_all_is_as_before(tmp_path, error):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(error), atomic_files.replacing(path) as unfinished:
        with open(unfinished, "w") as file:
            file.write("ne")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path, monkeypatch):
    flush = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with atomic_files.replacing(tmp_path / "a") as unfinished, open(unfinished, "w") as file:
        file.write("new")
    assert (tmp_path / "a").read_text() == "new"


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_files.replacing(tmp_path / "link") as unfinished, open(unfinished, "w") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    text = (
        "import os, signal\nfrom tf_adasum import atomic_files\n"
        f"with atomic_files.replacing({str(path)!r}) as name, open(name, 'w') as file:\n"
        "    file.write('ne'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=60).returncode == -signal.SIGKILL
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
    atomic_files.remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["a"]
