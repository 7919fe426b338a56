"""The registry of hooks, which are the changes that this package makes to TensorFlow and Keras.

A hook is a function that runs instead of a function of the library. The docstring of the hook gives
the reason:

    hooks = Hooks("Keras 3")

    @hooks.replaces(Layer, "add_loss")
    def add_loss(original, self, loss):
        \"\"\"Give each replica a list of its own for the losses that a layer adds.\"\"\"
        if not our_replica_context():
            return original(self, loss)
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
import types
import warnings
from collections.abc import Callable, Iterator

from tf_adasum.compat.library import Library
from tf_adasum.errors import see


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
        self._is_installed = False

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

    def install(self) -> None:
        """Replace the function, unless this hook has already replaced it.

        Raises:
            AttributeError: if the function does not exist.
        """
        original, function = getattr(self.owner, self.name), self.function
        if self.is_override or self._is_installed:
            return
        self._is_installed = True

        @functools.wraps(original)
        def replacement(*args, **kwargs):
            return function(original, *args, **kwargs)

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

        def add(function):
            self._hooks += [Hook(owner, name, function, feature=feature) for name in names]
            return function

        return add

    def overrides(self, *names: str, feature: str | None = None) -> Callable:
        """Return a decorator for a class that overrides private methods of its base class.

        Args:
            names: names of methods of both classes.
            feature: the feature that needs the methods, in words. Defaults to None: the whole
                package needs the methods.
        """

        def add(cls):
            (base,) = cls.__bases__
            for name in names:
                hook = Hook(base, name, vars(cls)[name], is_override=True, feature=feature)
                self._hooks.append(hook)
            return cls

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
            text = "lacks functions that some features need. These features are off:"
            text = "\n".join([f"{self._library.title} {text}", *lines, see("TFA-103")])
            warnings.warn(text, stacklevel=2)
