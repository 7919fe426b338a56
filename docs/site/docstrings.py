"""How the reference reads docstrings: ``Example:`` holds code, as ``Examples:`` does for griffe."""

import re

import griffe


class ExamplesAreCode(griffe.Extension):
    """Rename the section before the docstring is parsed."""

    def on_object(self, *, obj, **_):
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
            obj.docstring.value = text
