"""Check what is installed, built and visible on this worker.

Every check is a function that can be called without arguments and returns `Finding`s. Only the
checks import TensorFlow, because a missing or broken TensorFlow has to become a finding.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import Any

from tf_adasum._version import (
    INSTALL_BOTH,
    INSTALL_KERAS,
    INSTALL_WITH_GPUS,
    PYTHON,
    __version__,
    newer,
    series,
    unsupported_reason,
)
from tf_adasum.doctor.findings import FAIL, NOTE, OK, WARN, Finding, describe
from tf_adasum.launch.environments import visible_gpus


def check_python() -> list[Finding]:
    """Check the version of Python, and report the version of tf_adasum."""
    text = ".".join(map(str, sys.version_info[:3]))
    own = Finding(OK, "tf_adasum", __version__, facts={"tf_adasum": __version__})
    facts = {"python": text}
    if series(text) in PYTHON:
        return [own, Finding(OK, "python", text, facts=facts)]
    fix = f"make an environment with one of Python {', '.join(PYTHON)}"
    return [own, Finding(FAIL, "python", f"{text} is not supported", fix, facts)]


def check_tensorflow() -> list[Finding]:
    """Import TensorFlow, and report its version and that of NumPy."""
    try:
        tensorflow = importlib.import_module("tensorflow")
        version = tensorflow.__version__  # missing if a removed wheel left an empty folder
    except Exception as error:  # a broken installation raises more than ImportError
        is_there = getattr(error, "name", None) != "tensorflow"
        fix = f"pip uninstall -y tensorflow tensorflow-cpu, then {INSTALL_BOTH}"
        fix = f"if no line above explains the error: {fix}" if is_there else INSTALL_BOTH
        return [Finding(FAIL, "tensorflow", describe(error), fix)]
    facts = {"tensorflow": version, "numpy": installed_version("numpy")}
    return [Finding(OK, "tensorflow", f"{version}, with NumPy {facts['numpy']}", facts=facts)]


def check_keras() -> list[Finding]:
    """Check the version of Keras with this TensorFlow, and its backend."""
    tensorflow = importlib.import_module("tensorflow").__version__
    fix = 'set KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
    try:
        keras = importlib.import_module("keras")
        version, backend = keras.__version__, keras.backend.backend()
    except Exception as error:  # Keras imports its backend, which may not be installed
        fix = f"{fix}; if it is already set: {INSTALL_KERAS} --force-reinstall"
        return [Finding(FAIL, "keras", describe(error), fix)]
    text, facts = f"{version}, backend {backend}", {"keras": version}
    if reason := unsupported_reason(tensorflow, version):
        text = f"{version} with TensorFlow {tensorflow} is not supported"
        return [Finding(FAIL, "keras", text, reason, facts)]
    if backend != "tensorflow":
        return [Finding(FAIL, "keras", text, fix, facts)]
    if what := newer(tensorflow, version):
        text = f"{what} is newer than the newest tested version; it may work"
        return [Finding(WARN, "keras", text, INSTALL_BOTH, facts)]
    return [Finding(OK, "keras", text, facts=facts)]


def check_hooks() -> list[Finding]:
    """Check whether this TensorFlow and this Keras have the functions that the hooks replace."""
    counts: dict[str, int] = {}
    off: dict[str, Any] = {}
    try:
        importlib.import_module("tf_adasum.workers.callbacks")  # has a hook of its own
        for name in ("tensorflow", "keras"):
            hooks = importlib.import_module(f"tf_adasum.compat.{name}").hooks
            hooks.check()
            replaced = {hook.target for hook in hooks if hook.is_there and not hook.is_override}
            counts[hooks.of] = len(replaced)
            off |= hooks.off
    except ImportError as error:  # its message has all names that moved, and what to install
        text, _, fix = str(error).partition(". ")
        return [Finding(FAIL, "hooks", text, fix)]
    text = " and ".join(f"{count} functions of {library}" for library, count in counts.items())
    text += " are replaced"
    facts = {"hooks": counts, "off": off}
    if not off:
        return [Finding(OK, "hooks", text, facts=facts)]
    fix = "all other features work; an older version of the library supports it"
    return [
        Finding(OK, "hooks", text, facts=facts),
        *(
            Finding(WARN, "hooks", f"off: {feature} ({', '.join(gone)} has moved)", fix)
            for feature, gone in off.items()
        ),
    ]


def check_custom_op() -> list[Finding]:
    """Check whether the compiled op is used on CPUs and GPUs; if not, report how to build it."""
    ops = importlib.import_module("tf_adasum.ops")
    status = importlib.import_module("tf_adasum.ops.library").status()
    backend = f"backend of operations on CPUs: {ops.backend()}"
    if not status.loaded:
        text = f"not loaded: {status.reason or 'no reason given'}; {backend}"
        fix = f"everything works, but slower. {status.fix}"
        return [Finding(WARN, "compiled op", text, fix, {"op": ops.backend()})]
    built_for = f", built for {status.built_for}" if status.built_for else ""
    text = f"{status.path}{built_for}; {backend}"
    found = Finding(OK, "compiled op", text, facts={"op": ops.backend()})
    has_gpus = bool(importlib.import_module("tensorflow").config.list_physical_devices("GPU"))
    if status.gpu_reason is None:
        text = "used" if has_gpus else "built, but TensorFlow sees no GPU"
        return [found, Finding(OK if has_gpus else NOTE, "GPU kernels", text)]
    if not has_gpus:
        return [found, Finding(NOTE, "GPU kernels", status.gpu_reason)]
    build_it = importlib.import_module("tf_adasum.ops.library").BUILD_IT
    fix = f"everything works, but slower. {build_it}, with nvcc or NVRTC"
    return [found, Finding(WARN, "GPU kernels", status.gpu_reason, fix)]


def check_ucx() -> list[Finding]:
    """Check whether UCX works on this machine; if not, TensorFlow's collectives send gradients."""
    library = importlib.import_module("tf_adasum.transport.library")
    shared_memory = importlib.import_module("tf_adasum.transport.shared_memory")
    try:
        functions = library.opened()
    except library.UcxUnavailableError as error:
        text = f"not used: {error}; workers exchange gradients over TensorFlow's collectives"
        return [Finding(NOTE, "UCX", text)]
    text = f"{functions.version}, for the gradients of several workers"
    unsupported_reason = shared_memory.too_small(shared_memory.facts()[2], workers=2)
    if not unsupported_reason:
        try:
            functions.probe_in_subprocess(shared_memory.TRANSPORTS, "lo")
        except library.UcxUnavailableError as error:
            unsupported_reason = str(error)
    if not unsupported_reason:
        return [Finding(OK, "UCX", text)]
    fix = "make /dev/shm larger (docker run --shm-size=1g; Kubernetes: an emptyDir in memory)"
    return [Finding(NOTE, "UCX", f"{text}, without shared memory: {unsupported_reason}", fix)]


def check_devices() -> list[Finding]:
    """List the devices of TensorFlow, and warn if it does not see the GPUs of the machine."""
    config = importlib.import_module("tensorflow").config
    counts = {kind: len(config.list_physical_devices(kind)) for kind in ("CPU", "GPU")}
    text = f"physical: {counts['CPU']} CPU, {counts['GPU']} GPU; logical: "
    names = [device.name for device in config.list_logical_devices()]
    text += ", ".join(names)
    facts = {"physical_devices": counts, "logical_devices": names}
    findings = [Finding(OK, "devices", text, facts=facts)]
    try:
        gpus = visible_gpus(os.environ)
    except ValueError as error:  # nvidia-smi does not answer
        return [*findings, Finding(WARN, "devices", str(error))]
    if gpus and not counts["GPU"]:
        text = f"{len(gpus)} GPUs are visible, but TensorFlow uses none"
        fix = f"pip uninstall -y tensorflow-cpu, then {INSTALL_WITH_GPUS}"
        findings.append(Finding(WARN, "devices", text, fix))
    return findings


def check_arithmetic() -> list[Finding]:
    """Run every operation on every logical device, and compare the results with NumPy."""
    config = importlib.import_module("tensorflow").config
    self_test = importlib.import_module("tf_adasum.ops.self_test")
    build_it = importlib.import_module("tf_adasum.ops.library").BUILD_IT
    fix = f"{build_it}; until then set TF_ADASUM_OPS=tensorflow"
    findings = []
    for name in (device.name for device in config.list_logical_devices()):
        failures = self_test.failures(name)
        findings += [Finding(FAIL, "self-test", f"{name}: {text}", fix) for text in failures]
        if not failures:
            text = f"{name}: all operations are correct, with all dtypes"
            findings.append(Finding(OK, "self-test", text))
    return findings


def installed_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
