"""Which private names a module uses."""

import ast
from pathlib import Path


def private_names(module):
    """The attributes with a leading underscore that a module uses and does not define."""
    tree = ast.parse(Path(module.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).isidentifier()
    }
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    functions = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    private = {name for name in used if isinstance(name, str) and name.startswith("_")}
    return {name for name in private if not name.startswith("__")} - stored - defined
