"""A library and its private names that the package uses, and names that this version lacks.

    keras = Library("Keras", keras.__version__, INSTALL_KERAS)
    TFOptimizer = keras.name("keras.src.backend.tensorflow.optimizer", "TFOptimizer")
    saving_lib = keras.name("keras.src.saving", "saving_lib", feature="whole files")
    keras.check()

If a required name has moved, `check` raises an error with all such names. A name that only a
feature needs is replaced by a class without objects, and the feature is off.
"""

import collections
import importlib

from tf_adasum._version import STACKS, place
from tf_adasum.errors import see


class Absent:
    """Replaces a name that a library does not have; it has no instances.

    Attributes:
        library: the library that lacks it, with its version.
        is_expected: whether the library is older than the name.
    """

    library = ""
    is_expected = False

    def __new__(cls, *args, **kwargs):
        """Raise an error: the name does not exist."""
        raise NotImplementedError(f"{cls.library} has no {cls.__module__}.{cls.__qualname__}")


class Library:
    """One library in one version.

    Args:
        name: such as "Keras".
        version: the installed version.
        install: the command that installs a supported version.
    """

    def __init__(self, name: str, version: str, install: str):
        self.title, self._install = f"{name} {version}".strip(), install
        self._version = version
        self._missing: list[str] = []
        self._off: dict[str, list[str]] = collections.defaultdict(list)
        self._cause: ImportError | None = None

    def name(self, module, name, *, also_in=(), feature=None, since=None):
        """Return what a module has under a name, as `from module import name` does.

        Args:
            module: the module's full name.
            name: of a class, a function or a module in it.
            also_in: other modules that may have it. Defaults to none.
            feature: what does not work without it, in words. Defaults to None: nothing does.
            since: the first version that has it, if older versions are supported. Defaults to None.

        Returns:
            it; a subclass of `Absent` if it does not exist.
        """
        for each in (module, *also_in):
            try:
                return _imported(each, name)
            except ImportError as error:
                cause = error
        is_expected = since is not None and place(self._version) < place(since)
        if not is_expected:
            self._note(f"{module}.{name}", feature, cause)
        own = {"__module__": module, "is_expected": is_expected, "library": self.title}
        return type(name, (Absent,), own)

    def _note(self, target, feature, cause):
        if feature is None:
            self._missing.append(target)
            self._cause = cause
        else:
            self._off[feature].append(target)

    @property
    def off(self) -> dict[str, list[str]]:
        """The features that are off, each with the names that it lacks."""
        return {feature: list(names) for feature, names in self._off.items()}

    def check(self) -> None:
        """Check that all required names exist.

        Raises:
            ImportError: with all that are not.
        """
        if self._missing:
            raise self.moved(self._missing) from self._cause

    def moved(self, targets: list[str]) -> ImportError:
        """Return the error that lists the moved names, and what to install.

        Args:
            targets: full names.
        """
        return ImportError(
            f"{self.title} lacks functions that tf_adasum needs: {', '.join(targets)}. tf_adasum "
            f"works with {STACKS}. Install a supported version: {self._install} {see('TFA-103')}"
        )


def _imported(module, name):
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:  # a module in a package, perhaps
        return importlib.import_module(f"{module}.{name}")
