"""Imports private names of a library, and handles names that the installed version lacks.

    keras = Library("Keras", keras.__version__, INSTALL_KERAS)
    TFOptimizer = keras.name("keras.src.backend.tensorflow.optimizer", "TFOptimizer")
    saving_lib = keras.name("keras.src.saving", "saving_lib", feature="whole files")
    keras.check()

If names are missing that the whole package needs, `check` raises an error that lists all of them.
If only one feature needs a missing name, this feature is off. A subclass of `Absent` replaces each
missing name.
"""

import collections
import importlib

from tf_adasum._version import SUPPORTED_VERSIONS, major_minor
from tf_adasum.errors import see


class Absent:
    """Replaces a name that a library does not have. This class has no instances.

    Attributes:
        library: the name and version of the library that lacks the name.
        is_expected: whether the name is missing only because this supported version of the library
            is too old.
    """

    library = ""
    is_expected = False

    def __new__(cls, *args, **kwargs):
        """Raise an error, because the name does not exist."""
        raise NotImplementedError(f"{cls.library} has no {cls.__module__}.{cls.__qualname__}")


class Library:
    """The installed version of a library, from which private names are imported.

    Args:
        name: the name of the library, such as "Keras".
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
        """Return an object of a module, like `from module import name`.

        Args:
            module: the module's full name.
            name: the name of a class, a function or a submodule of the module.
            also_in: other modules that may have the name. ``"module:name"`` is another name in a
                module. Defaults to none.
            feature: the feature that needs the name, in words. Defaults to None: the whole package
                needs the name.
            since: the first version that has the name, if older versions are also supported.
                Defaults to None: all supported versions have the name.

        Returns:
            The object. If the name does not exist, a subclass of `Absent`.
        """
        for each in (module, *also_in):
            try:
                where, _, other = each.partition(":")
                return _imported(where, other or name)
            except ImportError as error:
                cause = error
        is_expected = since is not None and major_minor(self._version) < major_minor(since)
        if not is_expected and feature is None:
            self._missing.append(f"{module}.{name}")
            self._cause = cause
        elif not is_expected:
            self._off[feature].append(f"{module}.{name}")
        own = {"__module__": module, "is_expected": is_expected, "library": self.title}
        return type(name, (Absent,), own)

    @property
    def off(self) -> dict[str, list[str]]:
        """A dict from each feature that is off to the names that the library lacks."""
        return {feature: list(names) for feature, names in self._off.items()}

    def check(self) -> None:
        """Check that all required names exist.

        Raises:
            ImportError: if names are missing. The message lists all of them.
        """
        if self._missing:
            raise self.moved(self._missing) from self._cause

    def moved(self, targets: list[str]) -> ImportError:
        """Return an error that lists missing names, and the command to install a supported version.

        Args:
            targets: the full names that are missing.
        """
        return ImportError(
            f"{self.title} lacks functions that tf_adasum needs: {', '.join(targets)}. tf_adasum "
            f"works with {SUPPORTED_VERSIONS}. Install a supported version: {self._install} "
            f"{see('TFA-103')}"
        )


def _imported(module, name):
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:  # perhaps a module of a package
        return importlib.import_module(f"{module}.{name}")
