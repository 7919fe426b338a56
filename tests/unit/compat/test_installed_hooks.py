"""Every hook of the installed Keras: what it replaces is there, with the arguments that it takes.

The list is the registries'. If a new TensorFlow or Keras has moved something, the failing test's
name shows what.
"""

import inspect
import re
import sys
from pathlib import Path

import keras
import pytest
from support import hooks_page
from support.launching import output_of

import tf_adasum
from tf_adasum import _version
from tf_adasum._version import major_minor
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat.keras.calls import CALLS
from tf_adasum.compat.keras.generation import IS_KERAS_2, private_names

PACKAGE = Path(tf_adasum.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PRIVATE_MODULE = re.compile(r"tensorflow\.(?:python|compiler|tsl)\b")
ALL_HOOKS = [hook for hooks in hooks_page.registries() for hook in hooks]
# Without those of functions that this version is too old for.
HOOKS = [hook for hook in ALL_HOOKS if hook.is_there or not hook.is_expected]


def parameters_of(hook):
    return inspect.signature(getattr(hook.owner, hook.name)).parameters


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.target)
def test_what_it_replaces_takes_the_same_arguments(hook):
    assert hasattr(hook.owner, hook.name), f"{hook.target} has gone"
    original = parameters_of(hook)
    # One function may run instead of several, of which some lack what is optional in it.
    optional = {
        name for other in HOOKS if other.function is hook.function for name in parameters_of(other)
    }
    signature = inspect.signature(hook.function)
    own = list(signature.parameters.values())[0 if hook.is_override else 1 :]  # without `original`
    stale = {each.name for each in own if each.default is not each.empty} - optional
    assert not stale, f"{hook.target} has no longer {stale}: {list(original)}"
    by_position = sum(each.kind is each.POSITIONAL_ONLY for each in own)
    assert len(original) >= by_position
    needed = {
        name: None
        for name, each in list(original.items())[by_position:]
        if (each.default, each.kind) == (each.empty, each.POSITIONAL_OR_KEYWORD)
        or name in signature.parameters
    }
    by_position += not hook.is_override
    if any(each.kind is each.VAR_POSITIONAL for each in own):
        signature.bind(*[None] * (by_position + len(needed)))
    else:
        signature.bind(*[None] * by_position, **needed)


def test_no_feature_is_off():
    assert [hooks.off for hooks in hooks_page.registries()] == [{}, {}]
    assert HOOKS and (
        HOOKS == ALL_HOOKS or major_minor(keras.__version__) < major_minor(_version.KERAS[-1])
    )


def test_few_functions_are_replaced():
    """A function counts once, however many hooks it has. Each can break with a new version."""
    targets = {hook.target for hook in HOOKS if not hook.is_override}
    of_tensorflow = {each for each in targets if each.startswith("tensorflow.")}
    assert len(of_tensorflow) <= 6, sorted(of_tensorflow)
    of_keras, most = targets - of_tensorflow, 23 if IS_KERAS_2 else 36
    assert len(of_keras) <= most, f"{sorted(of_keras)}: do without a function, or raise the limit"
    hooks_of_calls = [
        hook for hook in HOOKS if hook.name in CALLS and hook.owner is private_names.Trainer
    ]
    assert sorted(hook.name for hook in hooks_of_calls) == sorted(CALLS)


INSPECTED = """
import tf_adasum.strategy
from tf_adasum import callbacks, optimizers, rules, schedules
from tf_adasum.compat import keras as keras_compat, tensorflow as tensorflow_compat
rules.Adasum(), callbacks.GainTracker()
hooks = [*keras_compat.hooks, *tensorflow_compat.hooks]
print("BEFORE", len({hook.target for hook in hooks if hook._is_installed}))
tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
print("AFTER", len({hook.target for hook in hooks if hook._is_installed}))
"""


def test_nothing_is_replaced_before_the_first_strategy():
    printed = output_of(sys.executable, "-c", INSPECTED, cwd=PACKAGE.parent)
    targets = {hook.target for hook in HOOKS if not hook.is_override}
    assert "BEFORE 0" in printed and f"AFTER {len(targets)}" in printed


@pytest.mark.skipif(
    _version.series(keras.__version__) not in (_version.KERAS[-1], _version.KERAS_OF_ADDONS),
    reason="the page has the names of the newest supported Keras",
)
def test_the_page_of_the_docs_is_up_to_date():
    text = hooks_page.PAGE.read_text()
    assert hooks_page.renewed(text) == text, "run: python tests/support/hooks_page.py"


def test_private_names_are_imported_in_the_seams_only():
    """Those of Keras in one file for each generation; two docstrings have an example."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in FILES}
    of_keras = {name for name, text in texts.items() if "keras.src" in text}
    of_tensorflow = {name for name, text in texts.items() if PRIVATE_MODULE.search(text)}
    seams = {f"compat/keras/private_names_keras{each}.py" for each in (2, 3)}
    assert of_keras == {*seams, "compat/hooks.py", "compat/library.py"}
    assert of_tensorflow == {"compat/tensorflow/private_names.py"}


def test_the_names_that_the_package_uses_are_there():
    """With Keras 2, backups are refused, and what they use is missing."""
    used = {
        name
        for path in FILES
        if not (IS_KERAS_2 and path.parent.name == "backup")
        for name in re.findall(r"keras_compat\.(\w+)", path.read_text())
    }
    missing = {name for name in used if not hasattr(keras_compat, name)}
    assert len(used) > 50 and not missing
