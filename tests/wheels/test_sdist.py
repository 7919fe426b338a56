"""The source distribution holds all that is needed to build, to install and to test."""

import os
import sys
import tarfile
from pathlib import Path

import pytest
from support.launching import output_of

pytest.importorskip("setuptools", "77")
pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
OF_GIT_ALONE = {".ci/run", ".pre-commit-config.yaml"}
# A few tests that need no worker.
CHOSEN = ["test_arguments.py", "test_documents.py", "test_schedules.py", "ops/test_library.py"]


def run(*command, folder=ROOT, **variables):
    return output_of(*command, cwd=folder, env=os.environ | variables)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of the unpacked distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    steps = ["egg_info", "--egg-base", folder, "sdist", "--dist-dir", folder]
    said = run(sys.executable, "-W", "default", "setup.py", *steps)
    assert "Deprecat" not in said
    (archive,) = folder.glob("tf_adasum-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_it_holds_what_git_has(unpacked):
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    in_git = set(run("git", "ls-files").splitlines())
    strays = set(run("git", "ls-files", "--others", "--exclude-standard").splitlines())
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert len(in_git) > 500
    assert in_git - held == OF_GIT_ALONE
    made = {name for name in held if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert not [name for name in held if name.endswith((".so", ".pyc", ".fatbin"))]
    assert held - in_git - strays - made == set()


@pytest.mark.slow
def test_it_is_installed_and_tested(unpacked, tmp_path):
    """Without a C++ compiler: that is what the tests of the op say then, and nothing else."""
    options = ["--no-deps", "--no-build-isolation", "--target", tmp_path, "--quiet"]
    said = run(sys.executable, "-m", "pip", "install", *options, unpacked, CXX="no-compiler")
    assert "error" not in said.lower()
    tests = [unpacked / "tests" / "unit" / name for name in CHOSEN]
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    assert " passed" in run(*command, folder=unpacked, PYTHONPATH=str(tmp_path))
