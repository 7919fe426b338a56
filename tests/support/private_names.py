"""Find private names of other modules that a module uses, and those that no longer exist."""

import ast
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
    names = used - own - {"_"}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def missing_names(module, objects):
    """Return the private names that a module uses but that none of the objects has."""
    return {name for name in private_names(module) if not any(hasattr(o, name) for o in objects)}
