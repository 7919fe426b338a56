"""Writes tf_adasum/compat/README.md: what this package changes in TensorFlow and Keras.

    python tests/support/hooks_page.py

The sections come from the registries of hooks. The script writes the sections of the Keras that is
installed (2 or 3), and keeps the other sections. To write all sections, run it in both
environments.
"""

import importlib
import inspect
import itertools
import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "tf_adasum" / "compat" / "README.md"


def registries():
    """Return the registries of the versions that are installed."""
    importlib.import_module("tf_adasum.strategy")  # which imports all files that have hooks
    from tf_adasum.compat import keras as keras_compat
    from tf_adasum.compat import tensorflow as tensorflow_compat

    return [keras_compat.hooks, tensorflow_compat.hooks]


def renewed(text):
    """Return the page with the sections of the installed versions as they are now.

    Args:
        text: the page, with a section for each registry of Keras 2 and Keras 3.
    """
    for hooks in registries():
        begin, end = (f"<!-- {word} of {hooks.of} -->\n" for word in ("begin", "end"))
        section = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not section.search(text):
            raise ValueError(f"{PAGE} has no section of {hooks.of}: {begin.strip()}")
        new = begin + section_of(hooks) + end
        text = section.sub(lambda match, new=new: new, text)
    return text


def section_of(hooks):
    """Return the list of hooks by the files that they stand in."""
    lines = []
    hooks = sorted(hooks, key=lambda hook: hook.function.__module__)  # keeps their order in a file
    for module, own in itertools.groupby(hooks, lambda hook: hook.function.__module__):
        path = f"{module.replace('.', '/')}.py"
        link = os.path.relpath(path, "tf_adasum/compat")
        lines += ["", f"In [{path}]({link}):", ""]
        for function, same in itertools.groupby(own, lambda hook: hook.function):
            summary = " ".join(inspect.getdoc(function).split("\n\n")[0].split())
            same = list(same)
            optional = [hook for hook in same if hook.feature]
            of = f" of {_names(optional)}" if len(optional) < len(same) else ""
            features = dict.fromkeys(hook.feature for hook in optional)
            only = "".join(f" *Feature{of}: {feature}.*" for feature in features)
            lines.append(f"- {_names(same)}: {summary}{only}")
    return "\n".join(lines[1:]) + "\n"


def _names(hooks):
    """Names as "`Model.fit`, `.evaluate`": with the owner's where it is another one."""
    names, last = [], None
    for hook in hooks:
        *_, owner, name = hook.target.split(".")
        kind = " (override)" if hook.is_override else ""
        names.append(f"`.{name}`{kind}" if owner == last else f"`{owner}.{name}`{kind}")
        last = owner
    return ", ".join(names)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
