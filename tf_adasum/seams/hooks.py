"""The registry of hooks: what this package changes in TensorFlow and Keras, where, and why.

A hook is written once, as the function that runs instead, with the reason as its docstring:

    hooks = Hooks("Keras 3")

    @hooks.replaces(TFOptimizer, "_all_reduce_sum_gradients")
    def all_reduce_sum_gradients(original, self, grads_and_vars):
        \"\"\"Mark the reduction as one of gradients, for which there is no public hook.\"\"\"
        if not our_replica_context():
            return original(self, grads_and_vars)
        ...

If a new version of the library may lack the function, and only a feature needs it, the hook names
the feature: `hooks.replaces(owner, "name", feature="...")`. If any other function is missing, an
error is raised before anything is replaced.

Hooks are installed when the first strategy, wrapper optimizer or `BackupAndRestore` is created, and
stay installed: a hook that has nothing to do calls `original` with unchanged arguments. The tests
of names and the page `docs/hooks.md` are made from the registries.
"""

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator

from tf_adasum.errors import see
from tf_adasum.seams.library import Library

# The attribute of a replaced function with the hooks around it, the innermost first.
MARK = "hooks_of_tf_adasum"


class Hook:
    """One hook.

    Args:
        owner: the class or module with the function.
        name: the function's name.
        function: the function that runs instead, with the original function and the arguments; or
            the method of a subclass that overrides the function.
        outermost: whether it goes around the function's other hooks. Defaults to `False`.
        is_override: whether it is a method of a subclass, which needs no installing. Defaults to
            `False`.
        feature: what does not work without the function, in words. Defaults to None: nothing works.
    """

    def __init__(
        self,
        owner: type | types.ModuleType,
        name: str,
        function: Callable,
        *,
        outermost: bool = False,
        is_override: bool = False,
        feature: str | None = None,
    ):
        self.owner, self.name, self.function = owner, name, function
        self.outermost, self.is_override = outermost, is_override
        self.feature = feature

    @property
    def is_there(self) -> bool:
        """Whether the function exists."""
        return hasattr(self.owner, self.name)

    @property
    def is_expected(self) -> bool:
        """Whether the function exists, or this version of the library is older than it."""
        return self.is_there or getattr(self.owner, "is_expected", False)

    @property
    def target(self) -> str:
        """The function's full name, such as ``"keras.src.models.model.Model.fit"``."""
        if isinstance(self.owner, types.ModuleType):
            return f"{self.owner.__name__}.{self.name}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def reason(self) -> str:
        """What the hook changes and why: the function's docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def source(self) -> str:
        """The full name of the hook, such as ``"tf_adasum.seams.keras.fit.on_epoch_end"``."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def install(self) -> None:
        """Replace the function, unless this hook has done so in this process.

        Raises:
            AttributeError: if there is no such function.
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
    """The hooks of one seam; iterating gives each `Hook`.

    Args:
        of: the library whose functions are replaced, such as ``"Keras 3"``.
        library: the same, with its version. Defaults to None: `of` is enough.
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
        self,
        owner: type | types.ModuleType,
        *names: str,
        outermost: bool = False,
        feature: str | None = None,
    ) -> Callable:
        """Return a decorator of the function that runs instead of some of `owner`'s.

        Args:
            owner: a class or module.
            names: names of functions or methods.
            outermost: whether it goes around all other hooks of the same functions. Defaults to
                `False`.
            feature: what does not work without the functions, in words. Defaults to None: nothing
                works.
        """
        return self._adding(owner, names, outermost=outermost, feature=feature)

    def overrides(self, owner: type, *names: str) -> Callable:
        """Return a decorator of a method in a subclass of `owner`, which has it privately.

        Args:
            owner: a class.
            names: names of its methods. Defaults to the decorated method's.
        """
        return self._adding(owner, names, is_override=True)

    def _adding(self, owner, names, **kind):
        def add(function):
            for name in names or [function.__name__]:
                self._hooks.append(Hook(owner, name, function, **kind))
            return function

        return add

    def check(self) -> None:
        """Check that all required functions exist.

        Raises:
            ImportError: with all that are not.
        """
        gone = [hook.target for hook in self if not hook.is_there and hook.feature is None]
        if gone:
            raise self._library.moved(list(dict.fromkeys(gone)))

    @property
    def off(self) -> dict[str, list[str]]:
        """The features that are off, each with the functions and other names that it lacks."""
        off = self._library.off
        for hook in self:
            if hook.feature and not hook.is_expected:
                targets = off.setdefault(hook.feature, [])
                targets += [] if hook.target in targets else [hook.target]
        return off

    def install(self) -> None:
        """Replace the functions; a second call does nothing.

        Raises:
            ImportError: with all functions that are needed and not there.
        """
        self.check()
        for hook in sorted(self, key=lambda hook: hook.outermost):
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
