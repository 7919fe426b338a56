"""The compiled libraries ask for no symbol that is younger than RHEL 8, as their wheel promises."""

from pathlib import Path

import pytest
from support import symbols
from support.cuda_library import build_cuda

import tf_adasum.ops as ops

FOLDER = Path(ops.__file__).parent


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_the_compiled_ops(backend):
    libraries = sorted(FOLDER.glob("_adasum_ops_tf*.so"))
    assert libraries
    for library in libraries:
        symbols.check(library)


@pytest.mark.version_independent
def test_the_library_for_gpus(tmp_path):
    symbols.check(build_cuda.compile_host(tmp_path))


def test_a_young_symbol_is_found():
    old, young = "UND (GLIBC_2.17) a\nUND (GLIBCXX_3.4.9) b", "UND (GLIBC_2.34) dlopen"
    assert not symbols.too_young(old)
    assert symbols.too_young(f"{old}\n{young}") == {("GLIBC", "2.34")}
