"""Nothing that comes from another process or a file is run: no pickle, eval or the like."""

import ast
from pathlib import Path

import pytest

import tf_adasum

PACKAGE = Path(tf_adasum.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# `tf_adasum.run`: a notebook's own function, in a folder that only this user can read.
ALLOWED = {
    PACKAGE / "launch" / "function_worker.py": {"pickle", "cloudpickle"},
}
FUNCTIONS = {"eval", "exec", "compile", "__import__", "unsafe_load"}
FUNCTIONS |= {"enable_unsafe_deserialization"}


def findings(source):
    """What a source has that would run or unpack what it is given, with the lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
            found += [(node.lineno, name) for name in names if name in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append((node.lineno, node.module))
        elif isinstance(node, ast.Call):
            function = node.func
            # model.compile and re.compile are methods: of functions only the bare name.
            name = function.id if isinstance(function, ast.Name) else None
            if isinstance(function, ast.Attribute) and function.attr not in ("compile", "eval"):
                name = function.attr
            if name in FUNCTIONS:
                found.append((node.lineno, name))
            unsafe = {"allow_pickle": True, "safe_mode": False, "shell": True}
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if keyword.arg in unsafe and value is not (not unsafe[keyword.arg]):
                    found.append((node.lineno, keyword.arg))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_that_is_read_is_run(path):
    found = [name for _, name in findings(path.read_text())]
    assert set(found) == ALLOWED.get(path, set())


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("from marshal import loads", 1),
        ("eval('1')", 1),
        ("np.load(file, allow_pickle=True)", 1),
        ("keras.models.load_model(path, safe_mode=False)", 1),
        ("subprocess.run(line, shell=True)", 1),
        ("torch.unsafe_load(x)", 1),
        ("re.compile('a'); model.compile('sgd'); np.load(file, allow_pickle=False)", 0),
    ],
)
def test_the_scan_finds(source, count):
    assert len(findings(source)) == count
