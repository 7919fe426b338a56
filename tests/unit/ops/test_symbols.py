"""The compiled libraries ask for no symbol that is younger than RHEL 8, as their wheel promises."""

import re
import subprocess
from pathlib import Path

import pytest
from support.cuda_library import build_cuda

import tf_adasum.ops as ops

FOLDER = Path(ops.__file__).parent
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


def numbers(version):
    return [int(number) for number in version.split(".")]


def too_young(table):
    """The versions in the output of `objdump -T` that RHEL 8 does not have."""
    found = set(VERSION.findall(table))
    return {each for each in found if numbers(each[1]) > numbers(NEWEST[each[0]])}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check(library):
    table = output("objdump", "-T", str(library))
    assert "(GLIBC_2." in table
    assert not too_young(table)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(library))))
    assert "libdl.so.2" in needed, "before glibc 2.34 that is where dlopen is"
    assert needed <= SYSTEM | OTHERS


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_the_compiled_ops(backend):
    libraries = sorted(FOLDER.glob("_adasum_ops_tf*.so"))
    assert libraries
    for library in libraries:
        check(library)


@pytest.mark.one_stack
def test_the_library_for_gpus(tmp_path):
    check(build_cuda.compile_host(tmp_path))


def test_a_young_symbol_is_found():
    old, young = "UND (GLIBC_2.17) a\nUND (GLIBCXX_3.4.9) b", "UND (GLIBC_2.34) dlopen"
    assert not too_young(old)
    assert too_young(f"{old}\n{young}") == {("GLIBC", "2.34")}
