"""The site says what the package has: every public name, every message, and no more."""

import ast
import importlib
import inspect
import re

import api
import messages
import numpy as np
import pictures
import pytest
import tensorflow as tf

import tf_adasum

NAMES = [(module, name) for module in api.MODULES for name in api.public_names(module)]


def own_public_names(module):
    """The classes and functions that a module offers, by asking the module itself."""
    own = [
        name
        for name, each in vars(module).items()
        if getattr(each, "__module__", 0) == module.__name__
    ]
    names = getattr(module, "__all__", own)
    return {name for name in names if name[0] != "_" and callable(getattr(module, name))}


@pytest.mark.parametrize("module", api.MODULES)
def test_the_reference_has_every_public_name(module):
    place, _, name = module.rpartition(".")
    found = getattr(importlib.import_module(place), name) if place else None
    found = found or importlib.import_module(module)
    assert set(api.public_names(module)) == own_public_names(found)
    page = api.pages()[f"{name}.md"]
    for each in api.public_names(module):
        assert f"(tf_adasum.md#{each})" in page or f"#{module}.{each})" in page
        assert re.search(rf"^::: tf_adasum\.(\w+\.)*{each}$", page, re.MULTILINE)


@pytest.mark.version_independent
@pytest.mark.keras3_only("there LAMB is that of TensorFlow Addons")
@pytest.mark.parametrize(("module", "name"), NAMES, ids=map(".".join, NAMES))
def test_public_names_are_documented_with_types_and_an_example(module, name):
    place, node = api.definition(module, name)
    docstring = ast.get_docstring(node)
    assert docstring and docstring.splitlines()[0].endswith((".", ":"))
    if isinstance(node, ast.FunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        assert node.returns and all(argument.annotation for argument in arguments)
    found = importlib.import_module(place)
    assert inspect.getdoc(getattr(found, name)).splitlines()[0] == docstring.splitlines()[0]
    assert ">>>" in docstring


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


@pytest.mark.version_independent
def test_every_message_stands_on_the_page_of_all():
    page = messages.page()
    assert len(messages.explained()) > 35 and len(messages.messages()) > 240
    for each in messages.messages():
        assert f'<a id="{each.anchor}"></a>' in page
    # One each that is raised, warned, compared between workers, and put together by another file.
    for text in (
        "`values` must contain at least one tensor. Received: values=[]",
        "The model does not have any trainable weights.",
        "All workers have to check the same variables. Received: … "
        + messages.END.format("TFA-508"),
        "… was lost: …. … " + messages.END.format("TFA-501"),
    ):
        assert text in {each.text for each in messages.messages()}
    assert not messages.is_in("is said by … nobody", "is said by anybody")


@pytest.mark.version_independent
@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_those_of_the_script(name):
    assert (pictures.FOLDER / name).read_text() == pictures.PICTURES[name]()


def test_the_tree_in_the_picture_is_the_rule():
    gram = tf.constant([pictures.gram()], tf.float64)
    (expected,) = tf_adasum.rules.Adasum().coefficients(gram).numpy()
    leaves = [[float(i == j) for j in range(4)] for i in range(4)]
    pairs = [pictures.node(pictures.gram(), *leaves[i : i + 2]) for i in (0, 2)]
    # float64, a few operations: some units in the last place.
    np.testing.assert_allclose(pictures.node(pictures.gram(), *pairs), expected, rtol=1e-15)
