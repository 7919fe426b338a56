"""The layout of the package: few files at the top, short files, packages without TensorFlow.

The tests read the sources; nothing is imported. pyproject.toml lists which package may import
which, and `make lint` checks it.
"""

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tf_adasum"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_FILES_AT_THE_TOP = 10
MOST_LINES = 450

# What opens without TensorFlow: the launcher and the doctor start without it.
LIGHT = ["backup", "cluster", "launch", "replicas", "compat", "health", "workers", "doctor"]


def name_of(path):
    """The dotted name of a module, as "tf_adasum.cluster.tasks"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def is_for_types_alone(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements_at_import(body):
    """Yield the import statements that run when a module is imported: not those in functions."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not is_for_types_alone(node):
                yield from statements_at_import(ast.iter_child_nodes(node))


def imports(module):
    """Return the names of the modules that one imports when it is imported itself."""
    found = set()
    for node in statements_at_import(ast.parse(MODULES[module].read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        assert not node.level, f"{module} has a relative import"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            found.add(whole if whole in MODULES else node.module)
    return found


def with_packages(module):
    """A module and the packages that hold it, which are imported before it."""
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def all_imports(module):
    """Return what is imported by a module, and by what that imports, and so on."""
    found, ahead = set(), with_packages(module)
    while ahead:
        found |= ahead
        further = {name for each in ahead if each in MODULES for name in imports(each)}
        ahead = {each for name in further for each in with_packages(name)} - found
    return found


def test_few_files_stand_at_the_top():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_THE_TOP


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", LIGHT)
def test_a_package_is_imported_without_tensorflow(name):
    found = {module.partition(".")[0] for module in all_imports(f"tf_adasum.{name}")}
    assert found - sys.stdlib_module_names == {"tf_adasum"}


def test_the_check_can_fail():
    assert "tensorflow" in all_imports("tf_adasum.strategy")
