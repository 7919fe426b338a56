"""The pages of the reference: every public name, from the sources, without importing them."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_adasum"
# Public modules, and where they are.
MODULES = {
    "tf_adasum": PACKAGE / "__init__.py",
    "tf_adasum.callbacks": PACKAGE / "callbacks" / "__init__.py",
    "tf_adasum.optimizers": PACKAGE / "optimizers" / "__init__.py",
    "tf_adasum.rules": PACKAGE / "aggregation" / "rules" / "__init__.py",
    "tf_adasum.schedules": PACKAGE / "schedules.py",
    "tf_adasum.ops": PACKAGE / "ops" / "__init__.py",
}
# What Keras or this package calls, and no user.
INTERNAL = {
    *("build", "from_config", "get_config", "update_step"),
    *("check", "check_model", "check_strategy", "settings", "is_synchronized", "split_batch"),
    *("draw", "figure_inches", "measure", "settings_to_compare"),
    *("computes_as", "is_mean", "is_tree_of_pairs"),
    *(
        "combine_gradients",
        "rows_of_replicas",
        "are_gradients_combined",
        "gather_from_workers",
        "is_identity_for_one_replica",
        "exchange_ranks",
    ),
    *("empty_replicas", "nonfinite", "seeds", "sharding", "detecting_failures", "workers"),
}
# What users find in base classes of the package.
INHERITED = {
    "RankProperties": "tf_adasum.workers.rank_properties",
    "GradientReductions": "tf_adasum.replicas.gradient_reductions",
    "Plotting": "tf_adasum.callbacks.plotting",
}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)


def public_names(module):
    """Return the names of a public module that are classes or functions, in order.

    Args:
        module: a key of `MODULES`.
    """
    tree = ast.parse(MODULES[module].read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            names = ast.literal_eval(node.value)
            return [
                name for name in names if name[:2] != "__" and f"{module}.{name}" not in MODULES
            ]
    return [
        node.name for node in tree.body if isinstance(node, DEFINITIONS) and node.name[0] != "_"
    ]


def definition(module, name):
    """Return the dotted name of the module that defines a public name, and the definition."""
    path = MODULES[module]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DEFINITIONS) and node.name == name and node.col_offset == 0:
            return dotted(path), node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return find(node.module, name)
    return find(f"{module}.{name.lower()}", name)  # optimizers.LAMB is chosen when it is imported


def find(module, name):
    """Return the same for a module that defines or imports a name."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, DEFINITIONS) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return find(node.module, name)
    raise LookupError(f"{module} defines no {name}")


def dotted(path):
    """Return the dotted name of a file of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def members(node):
    """Return the members of a class that a user calls or reads, those of base classes too.

    What only the package calls says "See" and where in its docstring, and is left out.
    """
    found = []
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name[0] != "_" and child.name not in found:
            is_internal = child.name in INTERNAL or child.name.startswith("on_")
            if not is_internal and not summary(child).startswith("See `"):
                found.append(child.name)
    for base in node.bases:
        if getattr(base, "id", None) in INHERITED:
            found += members(find(INHERITED[base.id], base.id)[1])
    return found


def summary(node):
    """Return the first line of a docstring; what has none is an error."""
    docstring = ast.get_docstring(node)
    if not docstring:
        raise LookupError(f"the public name {node.name} has no docstring")
    return docstring.partition("\n")[0]


def pages():
    """Return the text of each page of the reference by its name."""
    texts, lists = {}, []
    for module, path in MODULES.items():
        own = f"{module.removeprefix('tf_adasum.')}.md"
        names = sorted(public_names(module), key=lambda name: name != "AdasumMirroredStrategy")
        nodes = {name: definition(module, name) for name in names}
        what, _, _ = ast.get_docstring(ast.parse(path.read_text())).partition("\n")
        table = "| name | |\n| --- | --- |\n"
        for name, (_, node) in nodes.items():
            table += f"| [`{name}`]({own}#{module}.{name}) | {summary(node)} |\n"
        lists.append(f"## [{module}]({own})\n\n{what}\n\n{table}")
        sections = (section(module, name, *found) for name, found in nodes.items())
        texts[own] = "\n".join([f"# {module}\n\n{what}\n\n{table}", *sections])
    texts["index.md"] = "\n".join([INDEX, *lists])
    return texts


INDEX = """# Reference

Every public name. Arguments, errors and examples are those of the docstrings; the examples run as
tests.
"""


def section(module, name, place, node):
    """Return what mkdocstrings makes the section of a name from."""
    text, path = "", f"{module}.{name}"
    if name == "LAMB":
        text, path = f'<a id="{path}"></a>\n\n', f"{place}.{name}"
    text += f"::: {path}\n"
    if isinstance(node, ast.ClassDef):
        own = members(node)
        text += (
            f"    options:\n      inherited_members: {bool(own)}\n      members: {own or False}\n"
        )
    return text


def anchors():
    """Return where each public name stands in the site, by its name as users write it.

    Both ``AdaScale`` and ``optimizers.AdaScale`` are keys, where only one module has the name.
    """
    found = {}
    for module in MODULES:
        own = module.removeprefix("tf_adasum.")
        for name in public_names(module):
            address = f"reference/{own}.html#{module}.{name}"
            found[f"{own}.{name}" if own != "tf_adasum" else name] = address
            if name != "get":
                found.setdefault(name, address)
    return found
