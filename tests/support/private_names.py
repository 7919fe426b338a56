"""Which private names of others a module uses."""

import ast
import inspect
from pathlib import Path


def private_names(module):
    """Return the attributes with a leading underscore that a module uses and does not define.

    Those that its classes set on `self` are its own; those that it sets on other objects are not.
    """
    tree = ast.parse(Path(module.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).isidentifier()
    }
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    stored = {
        node.attr
        for owner in classes
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    functions = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    private = {name for name in used if isinstance(name, str) and name.startswith("_")}
    return {name for name in private if not name.startswith("__")} - stored - defined


def signature_problem(function, arguments):
    """Return what is wrong with how a function is called, as a str; None if nothing is.

    Args:
        function: the function.
        arguments: names of the arguments that it is called with, all that it requires among them.
    """
    parameters = inspect.signature(function).parameters
    missing = [argument for argument in arguments if argument not in parameters]
    if missing:
        return f"has no longer {missing}: {list(parameters)}"
    required = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    unknown = [argument for argument in required if argument not in arguments]
    return f"now requires {unknown}" if unknown else None
