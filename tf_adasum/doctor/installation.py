"""Check what is installed, built and visible on this worker.

Every check is a function that can be called without arguments and returns `Finding`s. Only the
checks import TensorFlow, because a missing or broken TensorFlow has to become a finding.
"""

import importlib
import os
import sys

from tf_adasum import _version
from tf_adasum.doctor.findings import FAIL, NOTE, OK, WARN, Finding, describe
from tf_adasum.launch.commands import installed_version
from tf_adasum.launch.environments import visible_gpus


def check_python() -> list[Finding]:
    """Report the versions of tf_adasum and Python, which pip has checked."""
    python = ".".join(map(str, sys.version_info[:3]))
    return [Finding(OK, "tf_adasum", _version.__version__), Finding(OK, "python", python)]


def check_tensorflow() -> list[Finding]:
    """Import TensorFlow, and report its version and that of NumPy."""
    try:
        tensorflow = importlib.import_module("tensorflow")
        version = tensorflow.__version__  # missing if a removed wheel left an empty folder
    except Exception as error:  # a broken installation raises more than ImportError
        is_there = getattr(error, "name", None) != "tensorflow"
        fix = f"pip uninstall -y tensorflow tensorflow-cpu, then {_version.INSTALL_BOTH}"
        fix = f"if no line above explains the error: {fix}" if is_there else _version.INSTALL_BOTH
        return [Finding(FAIL, "tensorflow", describe(error), fix)]
    return [Finding(OK, "tensorflow", f"{version}, with NumPy {installed_version('numpy')}")]


def check_keras() -> list[Finding]:
    """Check the version of Keras with this TensorFlow, and its backend."""
    tensorflow = importlib.import_module("tensorflow").__version__
    fix = 'set KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
    try:
        keras = importlib.import_module("keras")
        version, backend = keras.__version__, keras.backend.backend()
    except Exception as error:  # Keras imports its backend, which may not be installed
        fix = f"{fix}; if it is already set: {_version.INSTALL_KERAS} --force-reinstall"
        return [Finding(FAIL, "keras", describe(error), fix)]
    if reason := _version.unsupported_reason(tensorflow, version):
        text = f"{version} with TensorFlow {tensorflow} is not supported"
        return [Finding(FAIL, "keras", text, reason)]
    text = f"{version}, backend {backend}"
    if backend != "tensorflow":
        return [Finding(FAIL, "keras", text, fix)]
    if what := _version.newer(tensorflow, version):
        text = f"{what} is newer than the newest tested version; it may work"
        return [Finding(WARN, "keras", text, _version.INSTALL_BOTH)]
    return [Finding(OK, "keras", text)]


def check_hooks() -> list[Finding]:
    """Check whether this TensorFlow and this Keras have the functions that the hooks replace."""
    texts, off = [], []
    fix = "all other features work; an older version of the library supports it"
    try:
        importlib.import_module("tf_adasum.workers.callbacks")  # has a hook of its own
        for name in ("tensorflow", "keras"):
            hooks = importlib.import_module(f"tf_adasum.compat.{name}").hooks
            hooks.check()
            replaced = {hook.target for hook in hooks if hook.is_there and not hook.is_override}
            texts.append(f"{len(replaced)} functions of {hooks.of}")
            for feature, gone in hooks.off.items():
                text = f"off: {feature} ({', '.join(gone)} has moved)"
                off.append(Finding(WARN, "hooks", text, fix))
    except ImportError as error:  # its message has all names that moved, and what to install
        text, _, fix = str(error).partition(". ")
        return [Finding(FAIL, "hooks", text, fix)]
    return [Finding(OK, "hooks", f"{' and '.join(texts)} are replaced"), *off]


def check_devices() -> list[Finding]:
    """List the devices of TensorFlow, and warn if it does not see the GPUs of the machine."""
    config = importlib.import_module("tensorflow").config
    text = ", ".join(device.name for device in config.list_logical_devices())
    found = Finding(OK, "devices", text)
    try:
        gpus = visible_gpus(os.environ)
    except ValueError as error:  # nvidia-smi does not answer
        return [found, Finding(WARN, "devices", str(error))]
    if not gpus or config.list_physical_devices("GPU"):
        return [found]
    text = f"{len(gpus)} GPUs are visible, but TensorFlow uses none"
    fix = f"pip uninstall -y tensorflow-cpu, then {_version.INSTALL_WITH_GPUS}"
    return [found, Finding(WARN, "devices", text, fix)]


def check_custom_op() -> list[Finding]:
    """Check whether the compiled op is used on CPUs and GPUs; if not, report how to build it."""
    library = importlib.import_module("tf_adasum.ops.library")
    status, slower = library.status(), "everything works, but slower."
    if not status.loaded:
        text = f"not loaded: {status.reason or 'no reason given'}"
        return [Finding(WARN, "compiled op", text, f"{slower} {status.fix}")]
    backend = importlib.import_module("tf_adasum.ops").backend()
    text = f"{status.path}, built for {status.built_for}; backend on CPUs: {backend}"
    found = Finding(OK, "compiled op", text)
    has_gpus = bool(importlib.import_module("tensorflow").config.list_physical_devices("GPU"))
    text = status.gpu_reason or ("used" if has_gpus else "built, but TensorFlow sees no GPU")
    if status.gpu_reason and has_gpus:
        fix = f"{slower} {library.BUILD_IT}, with nvcc or NVRTC"
        return [found, Finding(WARN, "GPU kernels", text, fix)]
    return [found, Finding(OK if has_gpus else NOTE, "GPU kernels", text)]


def check_ucx() -> list[Finding]:
    """Check whether UCX can be used; if not, TensorFlow's collectives send gradients."""
    library = importlib.import_module("tf_adasum.transport.library")
    try:
        version = library.opened().version
    except library.UcxUnavailableError as error:
        text = f"not used: {error}; workers exchange gradients over TensorFlow's collectives"
        return [Finding(NOTE, "UCX", text)]
    return [Finding(OK, "UCX", f"{version}, for the gradients of several workers")]


def check_arithmetic() -> list[Finding]:
    """Run every operation on every logical device, and compare the results with NumPy."""
    config = importlib.import_module("tensorflow").config
    self_test = importlib.import_module("tf_adasum.ops.self_test")
    build_it = importlib.import_module("tf_adasum.ops.library").BUILD_IT
    names = [device.name for device in config.list_logical_devices()]
    failures = [f"{name}: {text}" for name in names for text in self_test.failures(name)]
    fix = f"{build_it}; until then set TF_ADASUM_OPS=tensorflow"
    found = [Finding(FAIL, "self-test", text, fix) for text in failures]
    return found or [Finding(OK, "self-test", "all operations are correct, with all dtypes")]
