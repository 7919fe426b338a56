"""Finding, checking and loading the compiled op."""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
import tensorflow as tf

import tf_adasum.ops as ops
from tf_adasum._version import series
from tf_adasum.ops import library

MINOR = series(tf.version.VERSION)


def digest(content):
    return hashlib.sha256(content).hexdigest()


def write_build_info(folder, minor=MINOR, **other):
    info = {
        "tensorflow_version": tf.version.VERSION,
        "tensorflow_git_version": tf.version.GIT_VERSION,
        "compile_flags": tf.sysconfig.get_compile_flags(),
        "machine": platform.machine(),
        "sha256": digest(NOT_A_LIBRARY),
    }
    text = json.dumps({"libraries": {minor: info | other}})
    (folder / library.BUILD_INFO_NAME).write_text(text)


NOT_A_LIBRARY = b"not an ELF file"


def nothing(folder):
    pass


def old_build_info(folder):
    info = {"tensorflow_version": "2.21.0", "tensorflow_git_version": "v2.21.0"}
    (folder / library.BUILD_INFO_NAME).write_text(json.dumps(info))


def not_a_library(folder, minor=MINOR, **other):
    (folder / library.LIBRARY_NAME.format(minor)).write_bytes(NOT_A_LIBRARY)
    write_build_info(folder, minor, **other)


def without_digest(folder):
    not_a_library(folder)
    _edit(folder, lambda info: info["libraries"][MINOR].pop("sha256"))


def of_a_wheel(folder):
    not_a_library(folder, sha256=digest(b"another"))
    _edit(folder, lambda info: info["libraries"].update({"2.9": info["libraries"][MINOR]}))


def with_null_for_gpus(folder):
    not_a_library(folder)
    _edit(folder, lambda info: info.update(cuda=None))


def _edit(folder, change):
    path = folder / library.BUILD_INFO_NAME
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (nothing, "no library was built"),
        (old_build_info, "cannot be read"),
        (without_digest, "cannot be read: KeyError"),
        (with_null_for_gpus, "cannot be read: TypeError"),
        (write_build_info, "does not exist"),
        (not_a_library, "cannot load"),
        (partial(not_a_library, sha256=digest(b"an ELF file, no")), "not the file that was built"),
        (of_a_wheel, "not the file that was built"),
        (
            partial(not_a_library, minor="2.9", tensorflow_version="2.9.3"),
            "there are libraries for 2.9.3",
        ),
        (partial(not_a_library, compile_flags=["-O3"]), "without -D_GLIBCXX_USE_CXX11_ABI=1"),
        (partial(not_a_library, machine="m68k"), "for m68k, and this machine is"),
        (partial(not_a_library, tensorflow_version=f"{MINOR}.0-rc1"), "fits only releases"),
    ],
)
def test_a_library_that_does_not_fit_is_not_used(prepare, reason, tmp_path, monkeypatch):
    prepare(tmp_path)
    broken = library.OpLibrary(tmp_path)
    monkeypatch.setenv(library.CHOICE_VARIABLE, "tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert broken.load() is None
        assert not broken.status().loaded
    assert reason in broken.status().reason
    assert broken.status().path == str(tmp_path / library.LIBRARY_NAME.format(MINOR))

    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    with pytest.raises(RuntimeError, match=re.escape(reason)):
        broken.load()

    monkeypatch.delenv(library.CHOICE_VARIABLE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=broken.load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert broken.load() is None
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert broken.status().fix in str(caught[0].message)
    assert "pip install" in broken.status().fix
    assert ("same wheel again" in broken.status().fix) == (prepare is of_a_wheel)
    assert "python -m tf_adasum.doctor" in str(caught[0].message)


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv(library.CHOICE_VARIABLE, "cuda")
    with pytest.raises(ValueError, match=r"auto, custom, tensorflow; Received: .*'cuda'"):
        ops.backend()


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_status_of_the_built_library(backend):
    status = library.status()
    assert status.loaded and status.reason is None
    assert status.built_for == f"{tf.version.VERSION} ({tf.version.GIT_VERSION})"
    assert Path(status.path).name == library.LIBRARY_NAME.format(MINOR)


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_the_library_of_another_release_of_the_minor_version_is_used(backend, tmp_path):
    shutil.copy(library.status().path, tmp_path)
    (built,) = tmp_path.iterdir()
    other = {"tensorflow_version": f"{MINOR}.77", "tensorflow_git_version": "another"}
    write_build_info(tmp_path, sha256=digest(built.read_bytes()), **other)
    code = (
        "import pathlib; from tf_adasum.ops.library import OpLibrary; "
        f"print(OpLibrary(pathlib.Path({str(tmp_path)!r})).status())"
    )  # in a process of its own: two copies of one op do not go together
    expected = f"loaded=True, path='{built}', reason=None, built_for='{MINOR}.77 (another)'"
    assert expected in run(code)


def run(code):
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    return done.stdout.strip()


def test_importing_does_not_load():
    code = "import tf_adasum.ops.library as l; print(l._installed._status)"
    assert run(code) == "None"


@pytest.mark.parametrize("folder", ["cpu", "cuda", "ucx"])
def test_the_kernels_include_nothing_of_tensorflow(folder):
    sources = list(Path(__file__).parents[3].joinpath("custom_ops", folder).rglob("*.[ch]*"))
    include = re.compile(r'#include ["<](\.\./)*(tensorflow|absl|xla|third_party)/')
    assert len(sources) > 5
    assert [path.name for path in sources if include.search(path.read_text())] == []
