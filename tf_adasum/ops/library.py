"""Find, check and load the compiled op, at its first use and never at import.

The compiled op is in a library that fits one minor version of TensorFlow. A wheel has libraries for
several versions, a build from source has one. The build writes `_build_info.json` with the version
of each library. A library for another minor version, or with another C++ ABI, is not loaded. If no
library fits, stock TensorFlow is used, with one warning. The kernels for NVIDIA GPUs are in two
more files, which serve all versions of TensorFlow. They can be missing even if a library exists.

The environment variable `TF_ADASUM_OPS` chooses the backend, and is read at every call:

* `auto` (default): the compiled op if it can be loaded, else stock TensorFlow with one warning;
* `custom`: the compiled op, or an error;
* `tensorflow`: stock TensorFlow, silently.
"""

import dataclasses
import hashlib
import json
import os
import platform
import re
import threading
import types
import warnings
from pathlib import Path

import tensorflow as tf

from tf_adasum._version import series
from tf_adasum.environment_variables import OPS
from tf_adasum.errors import see
from tf_adasum.ops import gpu_kernels

CHOICES = ("auto", "custom", "tensorflow")
LIBRARY_NAME = "_adasum_ops_tf{}.so"  # for a minor version, such as 2.21
BUILD_INFO_NAME = "_build_info.json"
_SOURCE = Path(__file__).parents[2]  # the repository, if the installation is editable
BUILD_IT = (
    f"Build it for this TensorFlow: `pip install --no-build-isolation --no-deps -e {_SOURCE}`"
    if (_SOURCE / "setup.py").exists()
    else "Build it for this TensorFlow, from the sdist or in a clone of tf_adasum: `pip install "
    "--no-build-isolation --no-deps --force-reinstall tf_adasum-*.tar.gz`"
)
INSTALL_AGAIN = "Install the same wheel again: `pip install --no-deps --force-reinstall FILE.whl`"
ASK_THE_DOCTOR = "`python -m tf_adasum.doctor` prints the details."


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of the compiled op: whether it is loaded and, if not, why.

    Attributes:
        loaded: Whether the library is loaded in this process.
        path: The path of the library for the installed TensorFlow, even if it does not exist.
        reason: Why the library is not loaded; `None` if it is loaded.
        fix: What to do if the library is not loaded; `None` if it is loaded.
        built_for: The TensorFlow that the library was built for, "version (git version)"; `None` if
            no library fits.
        gpu_reason: Why the kernels for GPUs cannot be used; `None` if they can be used, or if the
            library is not loaded.
    """

    loaded: bool
    path: str
    reason: str | None
    built_for: str | None
    gpu_reason: str | None = None
    fix: str | None = None


class OpLibrary:
    """The compiled libraries on disk. At most one library is loaded, and only once.

    Args:
        folder: The folder that holds the libraries and their `_build_info.json`.
    """

    def __init__(self, folder: Path):
        self._path = folder / LIBRARY_NAME.format(series(tf.version.VERSION))
        self._build_info_path = folder / BUILD_INFO_NAME
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._module: types.ModuleType | None = None
        self._has_warned_about: set[str] = set()

    def load(self, device_type: str | None = "CPU") -> types.ModuleType | None:
        """Return the module with the wrappers of the ops, or `None` for stock TensorFlow.

        Args:
            device_type: The type of the device that runs the ops, "CPU" or "GPU". Any other device
                uses stock TensorFlow. Defaults to "CPU".

        Raises:
            ValueError: If `TF_ADASUM_OPS` has a value other than auto, custom, tensorflow.
            RuntimeError: If `TF_ADASUM_OPS` is "custom" and the library cannot be loaded.
        """
        choice = os.environ.get(OPS) or "auto"
        if choice not in CHOICES:
            raise ValueError(
                f"The environment variable {OPS} is expected to be one of "
                f"{', '.join(CHOICES)}; Received: {OPS}={choice!r}"
            )
        if choice == "tensorflow" or device_type not in ("CPU", "GPU"):
            return None
        status = self.status()
        reason = status.reason or (status.gpu_reason if device_type == "GPU" else None)
        if reason is None:
            return self._module
        if choice == "custom":
            raise RuntimeError(
                f"{OPS}=custom requires tf_adasum's compiled op, but {reason}. "
                f"{status.fix or BUILD_IT}. {ASK_THE_DOCTOR} {see('TFA-102')}"
            )
        self._warn_once(reason, status.fix or BUILD_IT)
        return None

    def status(self) -> Status:
        """Try to load the library at the first call; return the result at every call."""
        with self._lock:
            if self._status is None:
                self._status = self._attempt()
            return self._status

    def _attempt(self) -> Status:
        def failed(reason: str, built_for: str | None, fix: str = BUILD_IT) -> Status:
            return Status(False, str(self._path), reason, built_for, fix=fix)

        if not self._build_info_path.exists():
            return failed(f"{self._build_info_path} does not exist: no library was built", None)
        try:
            build_info = json.loads(self._build_info_path.read_text())
            libraries = build_info["libraries"]
            versions = [each["tensorflow_version"] for each in libraries.values()]
            library = libraries.get(series(tf.version.VERSION))
            unsupported_reason = _why_it_does_not_fit(**library) if library else "no library fits"
            sha256 = (library or {"sha256": ""})["sha256"]
            cuda = dict(build_info.get("cuda", {}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return failed(f"{self._build_info_path} cannot be read: {error!r}", None)
        again = INSTALL_AGAIN if len(libraries) > 1 else BUILD_IT
        if unsupported_reason:
            built = ", ".join(sorted(versions, key=_numbers)) or "no version"
            return failed(
                f"{unsupported_reason}: TensorFlow {_installed_tensorflow()} is installed, and "
                f"there are libraries for {built}",
                None,
                f"{BUILD_IT}, or install a TensorFlow with a library" if versions else BUILD_IT,
            )
        built_for = _describe(**library)
        if not self._path.exists():
            return failed(f"{self._path} does not exist", built_for, again)
        try:  # loading a file other than the one that was built can crash Python
            if hashlib.sha256(self._path.read_bytes()).hexdigest() != sha256:
                reason = f"{self._path} is damaged: it is not the file that was built"
                return failed(reason, built_for, again)
            self._module = tf.load_op_library(str(self._path))
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            return failed(f"TensorFlow cannot load {self._path}: {error}", built_for, again)
        gpu_reason = gpu_kernels.unsupported_reason(self._path.parent, cuda)
        return Status(True, str(self._path), None, built_for, gpu_reason)

    def _warn_once(self, reason: str, fix: str) -> None:
        with self._lock:
            is_first = reason not in self._has_warned_about
            self._has_warned_about.add(reason)
        if is_first:
            warnings.warn(
                f"tf_adasum's compiled op is not used: {reason}. Stock TensorFlow operations are "
                f"used instead, which are slower. {fix}. {ASK_THE_DOCTOR} "
                f"{see('TFA-102')}",
                RuntimeWarning,
                stacklevel=4,
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _describe(tensorflow_version: str, tensorflow_git_version: str, **_: object) -> str:
    return f"{tensorflow_version} ({tensorflow_git_version})"


def _installed_tensorflow() -> str:
    return _describe(tf.version.VERSION, tf.version.GIT_VERSION)


def _why_it_does_not_fit(
    compile_flags: list[str],
    machine: str,
    tensorflow_version: str,
    tensorflow_git_version: str,
    **_: object,
) -> str | None:
    """Return why a library for the installed minor version does not fit; None if it fits.

    All releases of a minor version have the same headers, as far as the op uses them. Other builds,
    such as a nightly build, can have different headers. They need a library that was built for
    exactly this build.
    """
    if machine != platform.machine():
        return f"its library is for {machine}, and this machine is {platform.machine()}"
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    if missing := [flag for flag in flags if flag not in compile_flags]:
        return f"its library has another C++ ABI, without {' '.join(missing)}"
    releases = all(map(_is_release, (tensorflow_version, tf.version.VERSION)))
    same = _describe(tensorflow_version, tensorflow_git_version) == _installed_tensorflow()
    return None if releases or same else "its library fits only releases of TensorFlow"


def _is_release(version: str) -> bool:
    return re.fullmatch(r"\d+\.\d+\.\d+", version) is not None


_installed = OpLibrary(Path(__file__).parent)


load, status = _installed.load, _installed.status
