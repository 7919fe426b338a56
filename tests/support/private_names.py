"""Which private names of others a module uses."""

import ast
import inspect
import itertools
from pathlib import Path


def private_names(module):
    """Return the attributes with a leading underscore that a module uses and does not define.

    Those that its classes set on `self` are its own; those that it sets on other objects are not.
    """
    nodes = list(ast.walk(ast.parse(Path(module.__file__).read_text())))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    used = {node.attr for node in attributes}
    used |= {text for text in texts if isinstance(text, str) and text.isidentifier()}
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    in_classes = [ast.walk(node) for node in nodes if isinstance(node, ast.ClassDef)]
    own |= {
        node.attr
        for node in itertools.chain(*in_classes)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def signature_problem(function, arguments):
    """Return what is wrong with how a function is called, as a str; None if nothing is.

    Args:
        function: the function.
        arguments: names of the arguments that it is called with, all that it requires among them.
    """
    parameters = inspect.signature(function).parameters
    if missing := [argument for argument in arguments if argument not in parameters]:
        return f"has no longer {missing}: {list(parameters)}"
    unknown = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in arguments
    ]
    return f"now requires {unknown}" if unknown else None
