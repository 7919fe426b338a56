"""Finding, checking and loading the compiled op."""

import json
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import tensorflow as tf

import tf_adasum.ops as ops
from tf_adasum.ops import library


def write_build_info(folder, version=tf.version.VERSION, git_version=tf.version.GIT_VERSION):
    info = {"tensorflow_version": version, "tensorflow_git_version": git_version}
    (folder / library.BUILD_INFO_NAME).write_text(json.dumps(info))


def no_library(folder):
    pass


def no_build_info(folder):
    (folder / library.LIBRARY_NAME).write_bytes(b"")


def not_a_library(folder):
    (folder / library.LIBRARY_NAME).write_bytes(b"not an ELF file")
    write_build_info(folder)


def other_version(folder):
    not_a_library(folder)
    write_build_info(folder, version="2.20.0")


def other_git_version(folder):
    not_a_library(folder)
    write_build_info(folder, git_version="v2.21.0-1-gabcdef")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (no_library, "was not built"),
        (no_build_info, "cannot be read"),
        (not_a_library, "cannot load"),
        (other_version, "built for TensorFlow 2.20.0"),
        (other_git_version, "gabcdef"),
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
    assert broken.status().path == str(tmp_path / library.LIBRARY_NAME)

    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    with pytest.raises(RuntimeError, match=reason):
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
    assert "pip install" in str(caught[0].message)
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
    assert Path(status.path).name == library.LIBRARY_NAME


def test_importing_does_not_load():
    code = "import tf_adasum.ops.library as l; print(l._installed._status)"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "None"


@pytest.mark.parametrize(
    ("cuda", "files", "reason"),
    [
        ({"not_built": "no compiler"}, {}, "were not built (no compiler)"),
        ({}, {}, "does not exist"),
        ({"bytes": {}}, {"_adasum_cuda.so": 4}, "is not the file that was built"),
        (
            {"bytes": {"_adasum_cuda.so": 4, "_adasum_kernels.fatbin": 9}},
            {"_adasum_cuda.so": 4, "_adasum_kernels.fatbin": 8},
            "_adasum_kernels.fatbin is not the file that was built",
        ),
        (
            {"bytes": {"_adasum_cuda.so": 4, "_adasum_kernels.fatbin": 9}},
            {"_adasum_cuda.so": 4, "_adasum_kernels.fatbin": 9},
            None,
        ),
    ],
)
def test_whether_there_are_kernels_for_gpus(cuda, files, reason, tmp_path):
    for name, size in files.items():
        (tmp_path / name).write_bytes(bytes(size))
    found = library.OpLibrary(tmp_path)._why_not_on_gpus({"cuda": cuda})
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("folder", ["cpu", "cuda"])
def test_the_kernels_include_nothing_of_tensorflow(folder):
    sources = list(Path(__file__).parents[3].joinpath("custom_ops", folder).rglob("*.[ch]*"))
    include = re.compile(r'#include ["<](\.\./)*(tensorflow|absl|xla|third_party)/')
    assert len(sources) > 5
    assert [path.name for path in sources if include.search(path.read_text())] == []
