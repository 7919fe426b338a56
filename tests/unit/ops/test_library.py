"""Finding, checking and loading the compiled op."""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

import tf_adasum.ops as ops
from tf_adasum._version import series
from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library

MINOR = series(tf.version.VERSION)
ROOT = Path(__file__).parents[3]


NOT_A_LIBRARY = b"not an ELF file"


def build_info(minor=MINOR, content=NOT_A_LIBRARY, **other):
    info = {
        "tensorflow_version": tf.version.VERSION,
        "tensorflow_git_version": tf.version.GIT_VERSION,
        "compile_flags": tf.sysconfig.get_compile_flags(),
        "machine": platform.machine(),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return {"libraries": {minor: info | other}}


DAMAGED = build_info(content=b"another")
OF_A_WHEEL = {"libraries": DAMAGED["libraries"] | build_info("2.9")["libraries"]}


@pytest.mark.parametrize(
    ("info", "files", "reason"),
    [
        (None, [], "no library was built"),
        ({"tensorflow_version": "2.21.0"}, [], "cannot be read"),
        (build_info() | {"cuda": None}, [MINOR], "cannot be read: TypeError"),
        (build_info(), [], "does not exist"),
        (build_info(), [MINOR], "cannot load"),
        (DAMAGED, [MINOR], "not the file that was built"),
        (OF_A_WHEEL, [MINOR], "not the file that was built"),
        (build_info("2.9", tensorflow_version="2.9.3"), ["2.9"], "there are libraries for 2.9.3"),
        (build_info(compile_flags=["-O3"]), [MINOR], "without -D_GLIBCXX_USE_CXX11_ABI=1"),
        (build_info(machine="m68k"), [MINOR], "for m68k, and this machine is"),
        (build_info(tensorflow_version=f"{MINOR}.0-rc1"), [MINOR], "fits only releases"),
    ],
)
def test_a_library_that_does_not_fit_is_not_used(info, files, reason, tmp_path, monkeypatch):
    if info:
        (tmp_path / library.BUILD_INFO_NAME).write_text(json.dumps(info))
    for minor in files:
        (tmp_path / library.LIBRARY_NAME.format(minor)).write_bytes(NOT_A_LIBRARY)
    broken = library.OpLibrary(tmp_path)
    monkeypatch.setenv(OPS, "tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert broken.load() is None
        assert not broken.status().loaded
    assert reason in broken.status().reason
    assert broken.status().path == str(tmp_path / library.LIBRARY_NAME.format(MINOR))

    monkeypatch.setenv(OPS, "custom")
    with pytest.raises(RuntimeError, match=re.escape(reason)):
        broken.load()

    monkeypatch.delenv(OPS)
    with pytest.warns(RuntimeWarning) as caught, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: broken.load(), range(9))) == [None] * 9
    assert len(caught) == 1
    fix, message = broken.status().fix, str(caught[0].message)
    assert "pip install" in fix and ("same wheel again" in fix) == (info is OF_A_WHEEL)
    assert reason in message and fix in message and "python -m tf_adasum.doctor" in message


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv(OPS, "cuda")
    with pytest.raises(ValueError, match=r"auto, custom, tensorflow; Received: .*'cuda'"):
        ops.backend()


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_the_library_of_another_release_of_the_minor_version_is_used(backend, tmp_path):
    shutil.copy(library.status().path, tmp_path)
    (built,) = tmp_path.iterdir()
    other = {"tensorflow_version": f"{MINOR}.77", "tensorflow_git_version": "another"}
    info = build_info(content=built.read_bytes(), **other)
    (tmp_path / library.BUILD_INFO_NAME).write_text(json.dumps(info))
    code = (
        "import pathlib; from tf_adasum.ops.library import OpLibrary; "
        f"print(OpLibrary(pathlib.Path({str(tmp_path)!r})).status())"
    )  # in another process, because two copies of one op do not work together
    expected = f"loaded=True, path='{built}', reason=None, built_for='{MINOR}.77 (another)'"
    assert expected in run(code)


def run(code):
    return subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip()


def test_importing_does_not_load():
    code = "import tf_adasum.ops.library as l; print(l._installed._status)"
    assert run(code) == "None"
