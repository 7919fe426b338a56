"""The wheel that `make wheels` has made, in the environments it was made in: `make test-wheels`.

Each has one TensorFlow. `pip install` of the wheel is all that is done there.
"""

import functools
import hashlib
import json
import os
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.launching import output_of
from support.pace import PACE

from tf_adasum import _version

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "wheels"
WHEELS = sorted((ROOT / "dist").glob("*-py3-none-manylinux_2_28_*.whl"))
MINORS = (_version.TENSORFLOW_OF_ADDONS, *_version.TENSORFLOW)
SECONDS = 500 * PACE
LINK = re.compile(r"\]\((?!https?:)[^)]*\)")

# glibc 2.28 and GCC 8, as manylinux_2_28 has them.
NEWEST = {"GLIBC": "2.28", "GLIBCXX": "3.4.25", "CXXABI": "1.3.11", "GCC": "7.0.0"}
VERSION = re.compile(r"\((GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)\)")
# Of TensorFlow's own wheels; the system has the others.
OTHERS = {"libtensorflow_framework.so.2"}
SYSTEM = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}

pytestmark = [
    pytest.mark.version_independent,
    pytest.mark.skipif(not WHEELS, reason="no wheel in dist/: `make wheels` makes it"),
]


def run(*command, folder=ROOT, **variables):
    environment = os.environ | {"PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "2"} | variables
    return output_of(*command, cwd=folder, env=environment, stderr=None, timeout=SECONDS)


def python_of(minor):
    python = BUILD / minor / "environment" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment with TensorFlow {minor} in build/wheels")
    return python


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEELS[-1]) as file:
        assert file.testzip() is None
        file.extractall(folder)
    return folder


def numbers(version):
    return [int(number) for number in version.split(".")]


def too_young(table):
    """The versions in the output of `objdump -T` that RHEL 8 does not have."""
    found = set(VERSION.findall(table))
    return {each for each in found if numbers(each[1]) > numbers(NEWEST[each[0]])}


def check_symbols(library):
    """Check that RHEL 8 has all that a library asks for."""
    table = run("objdump", "-T", library)
    assert "(GLIBC_2." in table
    assert not too_young(table)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library)))
    assert "libdl.so.2" in needed, "before glibc 2.34 that is where dlopen is"
    assert needed <= SYSTEM | OTHERS


def test_it_holds_a_library_for_each_version(unpacked):
    folder = unpacked / "tf_adasum" / "ops"
    info = json.loads((folder / "_build_info.json").read_text())
    digests = dict(info["cuda"].get("sha256", ()))
    for minor in MINORS:
        library = info["libraries"][minor]
        assert library["tensorflow_version"].startswith(f"{minor}.")
        assert library["ucx"] == {"built": True}
        digests[f"_adasum_ops_tf{minor}.so"] = library["sha256"]
    built = [path for path in folder.iterdir() if path.suffix in (".so", ".fatbin")]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built} == digests
    for path in built:
        if path.suffix == ".so":
            check_symbols(path)


def test_kernels_for_gpus_are_of_all_architectures(unpacked):
    """The file's form: a header, and for each code its kind, 1 for PTX and 2 for cubins."""
    folder = unpacked / "tf_adasum" / "ops"
    cuda = json.loads((folder / "_build_info.json").read_text())["cuda"]
    if "not_built" in cuda:
        pytest.skip(cuda["not_built"])
    data = (folder / "_adasum_kernels.fatbin").read_bytes()
    magic, _, place, size = struct.unpack_from("<IHHQ", data)
    assert magic == 0xBA55ED50 and place + size == len(data)
    found = []
    while place < len(data):
        kind, _, header, size, architecture = struct.unpack_from("<HHIQ12xI", data, place)
        found.append((kind, architecture))
        assert data[place + header :][:4] == b"\x7fELF" or kind == 1
        place += header + size
    assert found == [(2, each) for each in cuda["architectures"]] + [(1, 120)]
    assert cuda["cuda"].startswith("12."), "later ones do not run with the drivers of CUDA 12"


def test_what_a_package_index_is_told(unpacked):
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert f"Version: {_version.__version__}\n" in text and not LINK.search(text)
    assert (unpacked / "tf_adasum" / "py.typed").exists()
    answers = unpacked / "tf_adasum" / "doctor" / "troubleshooting.md"
    assert answers.read_text() == (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train with a version of TensorFlow, once; return the weights alone and of each worker."""
    folder = tmp_path_factory.mktemp("trained")

    @functools.cache
    def train(minor):
        python = python_of(minor)
        pip = [python, "-m", "pip", "install", "--quiet"]
        run(*pip, "--force-reinstall", "--no-deps", WHEELS[-1])
        run(*pip, WHEELS[-1], "scikit-learn")  # and what it needs
        alone, together = folder / minor / "alone", folder / minor / "together"
        alone.mkdir(parents=True)
        together.mkdir()
        program = ROOT / "tests" / "wheels" / "train.py"
        run(python, program, alone, "--alone", folder=folder)
        run(python, "-m", "tf_adasum.launch", "-n", "2", program, together, folder=folder)
        return [weights(each) for each in (alone / "0.npz", *together.iterdir())]

    return train


def weights(file):
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


def equal(one, other):
    return all(map(np.array_equal, one, other))


@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_two_workers_train_the_same(minor, trained):
    """As with the newest TensorFlow: to the bit where one replica without us trains to the bit."""
    alone, first, second = trained(minor)
    newest_alone, newest, _ = trained(MINORS[-1])
    assert equal(first, second)
    assert not equal(first, alone)
    if equal(alone, newest_alone):
        assert equal(first, newest)
    else:
        for one, other in zip(first, newest, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_the_doctor_is_content(minor, trained):
    trained(minor)  # installs
    python = python_of(minor)
    report = run(python, "-m", "tf_adasum.doctor", folder=BUILD)
    assert all(f"ok    {each} " in report for each in ("compiled op", "self-test", "hooks"))
    assert not re.search("^(warn|FAIL)", report, re.MULTILINE)
    assert "no broken requirements" in run(python, "-m", "pip", "check").lower()
