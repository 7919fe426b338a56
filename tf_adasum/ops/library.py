"""The compiled op: found, checked and loaded at its first use, never at import.

A compiled op fits exactly one TensorFlow. `_build_info.json`, written beside the library when it is
built, names that TensorFlow; a library built for another one is not loaded. Without the library the
stock TensorFlow implementation is used, and a warning says so once. The kernels for NVIDIA GPUs are
two more files beside it, which may be missing on their own.

The environment variable `TF_ADASUM_OPS` chooses, and is read at every call:

* `auto` (default): the compiled op where it can be loaded, else stock TensorFlow with one warning;
* `custom`: the compiled op, or an error;
* `tensorflow`: stock TensorFlow, silently.
"""

import dataclasses
import functools
import json
import os
import threading
import types
import warnings
from pathlib import Path

import tensorflow as tf

CHOICE_VARIABLE = "TF_ADASUM_OPS"
CHOICES = ("auto", "custom", "tensorflow")
LIBRARY_NAME = "_adasum_ops.so"
BUILD_INFO_NAME = "_build_info.json"
CUDA_NAMES = ("_adasum_cuda.so", "_adasum_kernels.fatbin")
HOW_TO_BUILD = (
    "To build it for the installed TensorFlow, run in the source folder of tf_adasum: "
    "`pip install --no-build-isolation --no-deps --force-reinstall .` (with `-e .` for an editable "
    "installation). `python -m tf_adasum.doctor` tells more."
)


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether the compiled op is loaded, and why not.

    Attributes:
        loaded: Whether the library is loaded in this process.
        path: Where the library is, or would be.
        reason: Why it is not loaded; `None` if it is.
        built_for: The TensorFlow it was built for, "version (git version)"; `None` if not known.
        gpu_reason: Why there are no kernels for GPUs; `None` if there are.
    """

    loaded: bool
    path: str
    reason: str | None
    built_for: str | None
    gpu_reason: str | None = None


class OpLibrary:
    """One compiled op on disk, loaded at most once.

    Args:
        folder: The folder that holds the library and its `_build_info.json`.
    """

    def __init__(self, folder: Path):
        self._path = folder / LIBRARY_NAME
        self._build_info_path = folder / BUILD_INFO_NAME
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._module: types.ModuleType | None = None
        self._has_warned_about: set[str] = set()

    def load(self, device_type: str | None = "CPU") -> types.ModuleType | None:
        """Return the module with the wrappers of the ops, or `None` for stock TensorFlow.

        Args:
            device_type: What the ops are to run on, "CPU" or "GPU". On any other device it is stock
                TensorFlow. Defaults to "CPU".

        Raises:
            ValueError: If `TF_ADASUM_OPS` has a value other than auto, custom, tensorflow.
            RuntimeError: If it is "custom" and the library cannot be loaded.
        """
        choice = os.environ.get(CHOICE_VARIABLE) or "auto"
        if choice not in CHOICES:
            raise ValueError(
                f"The environment variable {CHOICE_VARIABLE} is expected to be one of "
                f"{', '.join(CHOICES)}; Received: {CHOICE_VARIABLE}={choice!r}"
            )
        if choice == "tensorflow" or device_type not in ("CPU", "GPU"):
            return None
        status = self.status()
        reason = status.reason or (status.gpu_reason if device_type == "GPU" else None)
        if reason is None:
            return self._module
        if choice == "custom":
            raise RuntimeError(
                f"{CHOICE_VARIABLE}=custom asks for tf_adasum's compiled op, but {reason}. "
                f"{HOW_TO_BUILD}"
            )
        self._warn_once(reason)
        return None

    def status(self) -> Status:
        """Try to load the library if that has not been tried yet, and say how it went."""
        with self._lock:
            if self._status is None:
                self._status = self._attempt()
            return self._status

    def _attempt(self) -> Status:
        failed = functools.partial(Status, False, str(self._path))
        if not self._path.exists():
            return failed(f"{self._path} does not exist: it was not built", None)
        try:
            build_info = json.loads(self._build_info_path.read_text())
            built_for = _describe(
                build_info["tensorflow_version"], build_info["tensorflow_git_version"]
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            return failed(f"{self._build_info_path} cannot be read: {error!r}", None)
        installed = _describe(tf.version.VERSION, tf.version.GIT_VERSION)
        if built_for != installed:
            return failed(
                f"it was built for TensorFlow {built_for}, and TensorFlow {installed} is installed",
                built_for,
            )
        try:
            self._module = tf.load_op_library(str(self._path))
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            return failed(f"TensorFlow cannot load {self._path}: {error}", built_for)
        return Status(True, str(self._path), None, built_for, self._why_not_on_gpus(build_info))

    def _why_not_on_gpus(self, build_info: dict) -> str | None:
        cuda = build_info.get("cuda", {})
        if "not_built" in cuda:
            return f"its kernels for GPUs were not built ({cuda['not_built']})"
        for name in CUDA_NAMES:
            path, built_bytes = self._path.with_name(name), cuda.get("bytes", {}).get(name)
            if not path.exists():
                return f"its kernels for GPUs are not there: {path} does not exist"
            if path.stat().st_size != built_bytes:
                return f"its kernels for GPUs are damaged: {path} is not the file that was built"
        return None

    def _warn_once(self, reason: str) -> None:
        with self._lock:
            is_first = reason not in self._has_warned_about
            self._has_warned_about.add(reason)
        if is_first:
            warnings.warn(
                f"tf_adasum's compiled op is not used: {reason}. Slower stock TensorFlow "
                f"operations take its place, with the same contract. {HOW_TO_BUILD}",
                RuntimeWarning,
                stacklevel=4,
            )


def _describe(version: str, git_version: str) -> str:
    return f"{version} ({git_version})"


_installed = OpLibrary(Path(__file__).parent)


def load(device_type: str | None = "CPU") -> types.ModuleType | None:
    """Load the installed library; see `OpLibrary.load`."""
    return _installed.load(device_type)


def status() -> Status:
    """Return the state of the installed library; see `OpLibrary.status`.

    Example:
        >>> from tf_adasum.ops import library
        >>> library.status().loaded  # needs a compiler  # doctest: +SKIP
        True
    """
    return _installed.status()
