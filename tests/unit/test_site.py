"""The reference has every public name, and every message with a code has an answer."""

import inspect
import re
from pathlib import Path

import pytest
from support import messages

import tf_adasum

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
MODULES = [
    "tf_adasum",
    *(f"tf_adasum.{n}" for n in "callbacks optimizers rules schedules ops".split()),
]


def public_names(name):
    """The classes and functions that a module offers, by asking the module itself."""
    module = getattr(tf_adasum, name.partition(".")[2], tf_adasum)
    own = [each for each, found in vars(module).items() if getattr(found, "__module__", 0) == name]
    names = getattr(module, "__all__", own)
    return {each: getattr(module, each) for each in names if each[0] != "_"}


NAMES = [
    pytest.param(module, name, found, id=f"{module}.{name}")
    for module in MODULES
    for name, found in public_names(module).items()
    if callable(found)
]


@pytest.mark.keras3_only("the reference is written for Keras 3")
def test_the_reference_has_every_public_name():
    shown = re.findall(r"^::: ([\w.]+)$", REFERENCE.read_text(), re.MULTILINE)
    names = {
        "tf_adasum.optimizers.lamb.LAMB" if name == "LAMB" else f"{module}.{name}"
        for module, name, _ in (case.values for case in NAMES)
    }
    assert sorted(shown) == sorted(names)


@pytest.mark.version_independent
@pytest.mark.keras3_only("there LAMB is that of TensorFlow Addons")
@pytest.mark.parametrize(("module", "name", "found"), NAMES)
def test_public_names_are_documented_with_types_and_an_example(module, name, found):
    docstring = inspect.getdoc(found)
    assert docstring.splitlines()[0].endswith((".", ":")) and ">>>" in docstring
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        kinds = [each.annotation for each in signature.parameters.values()]
        assert inspect.Signature.empty not in (*kinds, signature.return_annotation)


@pytest.mark.version_independent
@pytest.mark.parametrize("code", messages.explained())
def test_what_troubleshooting_explains_is_said_by_the_package(code):
    fragment = messages.explained()[code]
    of_code = [each for each in messages.messages() if each.code == code]
    joined = {each.path for each in of_code} & set(messages.SAID_BY)  # of several texts
    of_code += [each for each in messages.messages() if each.path in joined]
    assert [each for each in of_code if messages.is_in(fragment, each.text)]


# Messages that need no answer although they are none about an argument, and why. A path stands for
# the messages of its files, a text for those that begin so.
PLAIN = {
    "doctor/": "they become findings of the doctor, which say what to do",
    "transport/network_interface.py": "it becomes a part of TFA-213",
    "transport/library.py": "they become a part of TFA-213",
    "DamagedBackup": "it becomes a part of TFA-602",
    "This attribute is called": "it says the new name",
    "launch/function_worker.py": "it says what to install, or to return",
    "launch/run.py": "the worker's own message follows",
    "launch/output.py": "it is caught",
    "….plot needs matplotlib": "it says what to install",
    "The store of … has ended with an error": "Python has printed this error, a fault of ours",
    "With Keras 2, optimizers.LAMB": "it says what to install",
    "Nothing was measured yet": "it says which line to write",
    "… works only inside a keras.callbacks.CallbackList": "it says which line to write",
    "The model does not have any trainable weights": "it is Keras's own",
}


NEED_NONE = {"ValueError", "TypeError", "AttributeError", "NotImplementedError"}  # of one line


@pytest.mark.version_independent
def test_messages_end_with_the_code_of_their_answer():
    plain = set()
    for each in messages.messages():
        places = (each.path, each.text, each.kind)
        own = {one for one in PLAIN if any(place.startswith(one) for place in places)}
        plain |= own if not each.code else set()
        assert each.code or own or each.kind in NEED_NONE or each.path in messages.SAID_BY, each
        assert len(messages.CODE.findall(each.text)) == bool(each.code), "at the end, nowhere else"
    assert plain == PLAIN.keys()
    assert {each.code for each in messages.messages()} == {"", *messages.explained()}
    for path in messages.SAID_BY.keys() - {"launch/failures.py"}:  # it shows a worker's own
        assert any(each.code for each in messages.messages() if each.path == path)
