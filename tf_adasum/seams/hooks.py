"""The registry of hooks: what this package changes in TensorFlow and Keras, where, and why.

A hook is written once, as the function that runs instead, with the reason as its docstring:

    hooks = Hooks("Keras 3")

    @hooks.replaces(TFOptimizer, "_all_reduce_sum_gradients")
    def all_reduce_sum_gradients(original, self, grads_and_vars):
        \"\"\"Mark the reduction as one of gradients, for which there is no public hook.\"\"\"
        if not our_replica_context():
            return original(self, grads_and_vars)
        ...

Hooks are installed when the first strategy, wrapper optimizer or `BackupAndRestore` is made, and
stay: one that has nothing to do calls `original` with the arguments as they came. The tests of
names and the page `docs/hooks.md` are made from the registries.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator

# The attribute of a replaced function that holds the hooks around it, the innermost first.
MARK = "hooks_of_tf_adasum"


class Hook:
    """One hook.

    Args:
        owner: the class or module whose function it is about.
        name: the function's name.
        function: what runs instead: gets the original function and the arguments; or the method of
            a subclass that overrides the function.
        outermost: whether it goes around the function's other hooks. Defaults to `False`.
        is_override: whether it is a method of a subclass, which needs no installing. Defaults to
            `False`.
    """

    def __init__(
        self,
        owner: type | types.ModuleType,
        name: str,
        function: Callable,
        *,
        outermost: bool = False,
        is_override: bool = False,
    ):
        self.owner, self.name, self.function = owner, name, function
        self.outermost, self.is_override = outermost, is_override

    @property
    def target(self) -> str:
        """The function's full name, as ``"keras.src.models.model.Model.fit"``."""
        if isinstance(self.owner, types.ModuleType):
            return f"{self.owner.__name__}.{self.name}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def reason(self) -> str:
        """What the hook changes and why: the function's docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def source(self) -> str:
        """Where the function stands, as ``"tf_adasum.seams.keras.fit.on_epoch_end"``."""
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
        of: whose functions they are about, such as ``"Keras 3"``.
    """

    def __init__(self, of: str):
        self.of = of
        self._hooks: list[Hook] = []

    def __iter__(self) -> Iterator[Hook]:
        """Give the hooks, in the order in which they stand."""
        return iter(self._hooks)

    def replaces(
        self, owner: type | types.ModuleType, *names: str, outermost: bool = False
    ) -> Callable:
        """Return a decorator of the function that runs instead of some of `owner`'s.

        Args:
            owner: a class or module.
            names: names of functions or methods.
            outermost: whether it goes around other hooks of the same functions, wherever they
                stand. Defaults to `False`.
        """
        return self._adding(owner, names, outermost=outermost)

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

    def install(self) -> None:
        """Replace the functions; a second call does nothing.

        Raises:
            AttributeError: naming a function that is not there.
        """
        for hook in sorted(self, key=lambda hook: hook.outermost):
            hook.install()
