"""Every hook of this stack: what it replaces is there, with the arguments that it takes.

The list is the registries'. Where a new TensorFlow or Keras has moved something, the failing test's
name says what.
"""

import ast
import inspect
import re
from pathlib import Path

import keras
import pytest
from support import hooks_page

import tf_adasum
from tf_adasum import _version
from tf_adasum._version import place
from tf_adasum.compat.hooks import MARK

PACKAGE = Path(tf_adasum.__file__).parent
ALL_HOOKS = [hook for hooks in hooks_page.registries() for hook in hooks]
# Without those of functions that this version is too old for.
HOOKS = [hook for hook in ALL_HOOKS if hook.is_there or not hook.is_expected]


def named(hook):
    return f"{hook.target.removeprefix('keras.src.').removeprefix('tensorflow.python.')}"


def parameters_of(hook):
    return inspect.signature(getattr(hook.owner, hook.name)).parameters


@pytest.mark.parametrize("hook", HOOKS, ids=named)
def test_what_it_replaces_takes_the_same_arguments(hook):
    assert hasattr(hook.owner, hook.name), f"{hook.target} has gone"
    original = parameters_of(hook)
    # One function may run instead of several, of which some lack what is optional in it.
    optional = {
        name for other in HOOKS if other.function is hook.function for name in parameters_of(other)
    }
    own = list(inspect.signature(hook.function).parameters.values())
    own = own if hook.is_override else own[1:]  # the first is the original
    by_position = [one for one in own if one.kind is one.POSITIONAL_ONLY]
    by_name = [one for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [
        one.name
        for one in by_name
        if one.name not in (original if one.default is one.empty else optional)
    ]
    assert not missing, f"{hook.target} has no longer {missing}: {list(original)}"
    assert len(original) >= len(by_position)
    takes_others = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own)
    unknown = [
        one.name
        for one in list(original.values())[len(by_position) :]
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    unknown = [name for name in unknown if name not in [one.name for one in by_name]]
    assert takes_others or not unknown, f"{hook.target} now requires {unknown}"


@pytest.mark.parametrize("hook", HOOKS, ids=named)
def test_it_says_why(hook):
    first_line = hook.reason.partition("\n")[0]
    assert len(first_line.split()) > 2 and first_line.endswith((".", ":")), hook


def test_no_feature_is_off():
    assert [hooks.off for hooks in hooks_page.registries()] == [{}, {}]
    assert HOOKS and (HOOKS == ALL_HOOKS or place(keras.__version__) < place(_version.KERAS[-1]))


def test_installing_again_changes_nothing():
    install()
    once = [getattr(hook.owner, hook.name) for hook in HOOKS]
    install()
    assert all(a is getattr(h.owner, h.name) for a, h in zip(once, HOOKS, strict=True))
    for hook, function in zip(HOOKS, once, strict=True):
        if not hook.is_override:
            assert getattr(function, MARK).count(hook.source) == 1, hook


def install():
    for hooks in hooks_page.registries():
        hooks.install()


def test_the_page_of_the_docs_is_up_to_date():
    text = hooks_page.PAGE.read_text()
    assert hooks_page.renewed(text) == text, "run: python tests/support/hooks_page.py"


def test_private_names_of_keras_are_imported_in_one_file_of_each_generation():
    importing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for module in imported_by(path)
        if module.startswith("keras.src")
    }
    of_generation = "compat/keras/keras{}/private_names.py"
    assert importing == {of_generation.format(2), of_generation.format(3)}


def test_private_names_of_tensorflow_are_imported_in_its_seam_only():
    private = ("tensorflow.python", "tensorflow.compiler", "tensorflow.tsl")
    importing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for module in imported_by(path)
        if module.startswith(private)
    }
    assert importing, "the search finds them"
    assert all(name.startswith("compat/tensorflow/") for name in importing), importing


def imported_by(path):
    """Yield the modules that a file imports, by statements and by names of theirs in texts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+", str(node.value)):
            yield str(node.value)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            yield getattr(node, "module", None) or ""


def test_the_face_has_the_same_names_for_both_generations():
    tree = ast.parse((PACKAGE / "compat/keras/__init__.py").read_text())
    (choice,) = (node for node in tree.body if isinstance(node, ast.If))

    def names(body):
        found = {alias.asname or alias.name for node in body for alias in node.names}
        # Modules that are imported for their hooks alone.
        return {name for name in found if not name.endswith(("_of_keras2", "_of_keras3"))}

    assert names(choice.body) == names(choice.orelse)
