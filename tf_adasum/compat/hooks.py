"""The registry of hooks, which are the changes that this package makes to TensorFlow and Keras.

A hook is a function that runs instead of a function of the library. The docstring of the hook gives
the reason:

    hooks = Hooks("Keras 3")

    @hooks.replaces(TFOptimizer, "_all_reduce_sum_gradients")
    def all_reduce_sum_gradients(original, self, grads_and_vars):
        \"\"\"Mark the reduction as a reduction of gradients. No public hook does this.\"\"\"
        if not our_replica_context():
            return original(self, grads_and_vars)
        ...

If only one feature needs the function, the hook names this feature: `hooks.replaces(owner, "name",
feature="...")`. If the library lacks this function, only this feature is off. Other hooks name no
feature. If the library lacks a function that one of these hooks replaces, `install` raises an error
and replaces nothing.

Hooks are installed when the first strategy, wrapper optimizer, `BackupAndRestore` or
`OnFirstWorker` is created. They stay installed, so a hook that has nothing to do calls `original`
with unchanged arguments. `README.md` lists all hooks.
"""

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator

from tf_adasum.compat.library import Library
from tf_adasum.errors import see

# Attribute of a replaced function: the names of the hooks that wrap it, the innermost first.
MARK = "hooks_of_tf_adasum"


class Hook:
    """A hook into one function.

    Args:
        owner: the class or module that contains the function.
        name: the function's name.
        function: the function that runs instead. Its arguments are the original function and the
            original arguments. With `is_override`, it is the method that overrides the function.
        is_override: whether the hook is a method of a subclass that overrides the function. Such a
            hook is not installed. Defaults to `False`.
        feature: the feature that needs the function, in words. Defaults to None: the whole package
            needs the function.
    """

    def __init__(
        self,
        owner: type | types.ModuleType,
        name: str,
        function: Callable,
        *,
        is_override: bool = False,
        feature: str | None = None,
    ):
        self.owner, self.name, self.function = owner, name, function
        self.is_override, self.feature = is_override, feature

    @property
    def is_there(self) -> bool:
        """Whether the function exists."""
        return hasattr(self.owner, self.name)

    @property
    def is_expected(self) -> bool:
        """Whether the function exists, or this version of the library is too old to have it."""
        return self.is_there or getattr(self.owner, "is_expected", False)

    @property
    def target(self) -> str:
        """The function's full name, such as ``"keras.src.models.model.Model.fit"``."""
        if isinstance(self.owner, types.ModuleType):
            return f"{self.owner.__name__}.{self.name}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def reason(self) -> str:
        """The docstring of the hook, which describes what the hook changes and why."""
        return inspect.getdoc(self.function) or ""

    @property
    def source(self) -> str:
        """The full name of the hook, such as ``"tf_adasum.compat.keras.layers.next_seed"``."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def install(self) -> None:
        """Replace the function, unless this hook has already replaced it.

        Raises:
            AttributeError: if the function does not exist.
        """
        original = getattr(self.owner, self.name)
        around = getattr(original, MARK, ())
        if self.is_override or self.source in around:
            return
        function = self.function

        @functools.wraps(original)
        def replacement(*args, **kwargs):
            return function(original, *args, **kwargs)

        setattr(replacement, MARK, (*around, self.source))
        setattr(self.owner, self.name, replacement)


class Hooks:
    """The hooks into one library. Iterate over this object to get each `Hook`.

    Args:
        of: the library whose functions are replaced, such as ``"Keras 3"``.
        library: the `Library` for this library. Defaults to a `Library` without a version.
    """

    def __init__(self, of: str, library: Library | None = None):
        self.of = of
        self._library = library or Library(of, "", "")
        self._hooks: list[Hook] = []
        self._has_warned = False

    def __iter__(self) -> Iterator[Hook]:
        """Yield the hooks, in the order of their definition."""
        return iter(self._hooks)

    def replaces(
        self, owner: type | types.ModuleType, *names: str, feature: str | None = None
    ) -> Callable:
        """Return a decorator for a function that runs instead of functions of `owner`.

        If several hooks replace the same function, the hook that was defined last runs first.

        Args:
            owner: a class or module.
            names: names of functions or methods.
            feature: the feature that needs the functions, in words. Defaults to None: the whole
                package needs the functions.
        """
        return self._adding(owner, names, feature=feature)

    def overrides(self, owner: type, *names: str, feature: str | None = None) -> Callable:
        """Return a decorator for a method that overrides private methods of `owner`.

        Args:
            owner: a class.
            names: names of methods of `owner`. Defaults to the name of the decorated method.
            feature: the feature that needs the methods, in words. Defaults to None: the whole
                package needs the methods.
        """
        return self._adding(owner, names, is_override=True, feature=feature)

    def _adding(self, owner, names, **kind):
        def add(function):
            for name in names or [function.__name__]:
                self._hooks.append(Hook(owner, name, function, **kind))
            return function

        return add

    def check(self) -> None:
        """Check that all required functions exist.

        Raises:
            ImportError: if functions are missing. The message lists all of them.
        """
        gone = [hook.target for hook in self if not hook.is_there and hook.feature is None]
        if gone:
            raise self._library.moved(list(dict.fromkeys(gone)))

    @property
    def off(self) -> dict[str, list[str]]:
        """A dict from each feature that is off to the names that the library lacks."""
        off = self._library.off
        for hook in self:
            if hook.feature and not hook.is_expected:
                targets = off.setdefault(hook.feature, [])
                targets += [] if hook.target in targets else [hook.target]
        return off

    def install(self) -> None:
        """Replace the functions of all hooks. A second call does nothing.

        Raises:
            ImportError: if required functions are missing. The message lists all of them.
        """
        self.check()
        for hook in self:
            if hook.is_there:
                hook.install()
        if self.off and not self._has_warned:
            self._has_warned = True
            lines = (f"- {feature} ({', '.join(gone)})" for feature, gone in self.off.items())
            warnings.warn(
                "\n".join(
                    [
                        f"{self._library.title} lacks functions that some features need. These "
                        "features are off:",
                        *lines,
                        see("TFA-103"),
                    ]
                ),
                stacklevel=2,
            )
