"""Report what is installed, built and visible, and what to do about what is not.

    python -m tf_adasum.doctor

Every check is a function that can be called without arguments and returns `Finding`s; `main`
prints them and exits with 1 if one of them is a failure. TensorFlow is imported inside the
checks only: a missing or broken TensorFlow is one of the findings.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

from tf_adasum._version import __version__
from tf_adasum.launch import visible_gpus

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "FAIL"

_PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
# The lanes: the series of Keras that goes with a series of TensorFlow.
_LANES = {"2.21": "3.15", "2.15": "2.15"}
_INSTALL = (
    "pip install 'tf-adasum[cpu]' or 'tf-adasum[cuda]', or for TensorFlow 2.15 "
    "'tf-adasum[addons]'; in a checkout: -e '.[cpu]'"
)
_BUILD = (
    "in the source folder, with a C++ compiler: "
    "pip install --no-build-isolation --no-deps --force-reinstall -e ."
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: what was found about a subject, and the fix if it needs one."""

    level: str
    subject: str
    text: str
    fix: str | None = None

    def __str__(self) -> str:
        """Return the line of the report, with the fix below it."""
        line = f"{self.level:<4}  {self.subject:<12}  {self.text}"
        return line if self.fix is None else f"{line}\n{'':<20}-> {self.fix}"


Check = Callable[[], list[Finding]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report.

    Args:
        arguments: the command line after the program's name; default ``sys.argv[1:]``.

    Returns:
        0 when tf_adasum can be used, 1 when something must be done first.
    """
    argparse.ArgumentParser(
        prog="python -m tf_adasum.doctor",
        description="Report what is installed, built and visible. Exit code 0: usable, 1: not.",
    ).parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own notes are not findings
    findings = diagnose()
    for finding in findings:
        print(finding)
    return int(any(finding.level == FAIL for finding in findings))


def diagnose() -> list[Finding]:
    """Run every check; those that need TensorFlow only if it can be imported."""
    findings = [
        finding
        for check in (check_python, check_distributions, check_compiler, check_tf_config)
        for finding in _run(check)
    ]
    imported = _run(check_tensorflow_import)
    findings += imported
    if all(finding.level != FAIL for finding in imported):
        for check in (check_keras, check_addons, check_devices, check_custom_op, check_arithmetic):
            findings += _run(check)
    return findings


def _run(check: Check) -> list[Finding]:
    """Run one check; what it did not expect becomes a finding instead of a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is reported as findings
            return check()
    except Exception as error:  # whatever it is, the remaining checks are still worth running
        subject = check.__name__.removeprefix("check_")
        return [
            Finding(
                FAIL,
                subject,
                f"could not be checked: {_describe(error)}",
                f"unless that says what to do, reinstall: {_INSTALL}",
            )
        ]


def check_python(version: tuple[int, ...] | None = None) -> list[Finding]:
    """Compare the running Python, and name our own version."""
    version = tuple(sys.version_info[:3]) if version is None else version
    text = ".".join(map(str, version))
    supported = ", ".join(".".join(map(str, each)) for each in _PYTHON_VERSIONS)
    own = Finding(OK, "tf_adasum", __version__)
    if version[:2] in _PYTHON_VERSIONS:
        return [own, Finding(OK, "python", text)]
    fix = f"make an environment with one of Python {supported}"
    return [own, Finding(FAIL, "python", f"{text} is not supported", fix)]


def check_distributions(
    version_of: Callable[[str], str | None] | None = None,
) -> list[Finding]:
    """Find the one distribution that provides TensorFlow, and its version.

    ``tensorflow`` and ``tensorflow-cpu`` install the same files: with both, the later one has
    overwritten the other, and removing either breaks what is left.
    """
    version_of = version_of or _installed_version
    names = ("tensorflow", "tensorflow-cpu")
    found = {name: version for name in names if (version := version_of(name)) is not None}
    text = " and ".join(f"{name} {version}" for name, version in found.items())
    if len(found) == 2:
        fix = f"pip uninstall -y tensorflow tensorflow-cpu, then {_INSTALL}"
        return [Finding(FAIL, "tensorflow", f"{text} overwrite each other's files", fix)]
    if not found:
        text = "neither tensorflow nor tensorflow-cpu is installed as a package"
        return [Finding(WARN, "tensorflow", text, _INSTALL)]
    (version,) = found.values()
    return [_series_finding("tensorflow", text, version, *_LANES)]


def check_tensorflow_import() -> list[Finding]:
    """Import TensorFlow, the way everything else here will."""
    try:
        tensorflow = importlib.import_module("tensorflow")
        version = tensorflow.__version__  # missing where a removed wheel left an empty folder
    except Exception as error:  # a broken installation raises more than ImportError
        fix = f"pip uninstall -y tensorflow tensorflow-cpu, then {_INSTALL}"
        return [Finding(FAIL, "import", f"TensorFlow: {_describe(error)}", fix)]
    return [_series_finding("import", f"TensorFlow {version}", version, *_LANES)]


def check_keras() -> list[Finding]:
    """Compare Keras and the backend it was told to use."""
    series = _keras_series(importlib.import_module("tensorflow").__version__)
    fix = 'set KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
    try:
        keras = importlib.import_module("keras")
        version, backend = keras.__version__, keras.backend.backend()
    except Exception as error:  # Keras imports its backend, which may not be installed
        fix = f"{fix}; if it is: pip install --force-reinstall 'keras=={series}.*'"
        return [Finding(FAIL, "keras", _describe(error), fix)]
    findings = [_series_finding("keras", version, version, series)]
    if backend == "tensorflow":
        return [*findings, Finding(OK, "keras", "backend tensorflow")]
    return [*findings, Finding(FAIL, "keras", f"backend {backend}, not tensorflow", fix)]


def check_addons(
    version_of: Callable[[str], str | None] | None = None,
) -> list[Finding]:
    """Look for TensorFlow Addons where there is Keras 2: `optimizers.LAMB` is made of it."""
    if not importlib.import_module("tensorflow").__version__.startswith("2.15."):
        return []
    version = (version_of or _installed_version)("tensorflow-addons")
    if version is None:
        text = "not installed; only needed for optimizers.LAMB: pip install"
        return [Finding(NOTE, "addons", f"{text} 'tensorflow-addons==0.23.*'")]
    return [_series_finding("addons", f"TensorFlow Addons {version}", version, "0.23")]


def check_compiler(which: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """Look for the C++ compiler that builds the op; without one nothing but speed is lost."""
    path = which("g++") or which("c++")
    if path:
        return [Finding(OK, "compiler", path)]
    return [Finding(NOTE, "compiler", "no g++ or c++; only needed to build the compiled op")]


def check_custom_op() -> list[Finding]:
    """Say whether the compiled op is used, on CPUs and on GPUs, and how to build it if not."""
    ops = importlib.import_module("tf_adasum.ops")
    status = importlib.import_module("tf_adasum.ops.library").status()
    backend = f"operations on CPUs run on: {ops.backend()}"
    if not status.loaded:
        text = f"not loaded: {status.reason or 'no reason given'}; {backend}"
        return [Finding(WARN, "compiled op", text, f"works, slower; to build it {_BUILD}")]
    built_for = f", built for {status.built_for}" if status.built_for else ""
    found = Finding(OK, "compiled op", f"{status.path}{built_for}; {backend}")
    if status.gpu_reason is None:
        return [found, Finding(OK, "GPU kernels", "built")]
    config = importlib.import_module("tensorflow").config
    if not config.list_physical_devices("GPU"):
        return [found, Finding(NOTE, "GPU kernels", status.gpu_reason)]
    fix = f"works, slower; to build them {_BUILD}, with nvcc or NVRTC"
    return [found, Finding(WARN, "GPU kernels", status.gpu_reason, fix)]


def check_devices(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """List what TensorFlow sees, and warn when it does not see the GPUs of the machine."""
    config = importlib.import_module("tensorflow").config
    counts = {kind: len(config.list_physical_devices(kind)) for kind in ("CPU", "GPU")}
    text = f"physical: {counts['CPU']} CPU, {counts['GPU']} GPU; logical: "
    text += ", ".join(device.name for device in config.list_logical_devices())
    findings = [Finding(OK, "devices", text)]
    gpus = visible_gpus(os.environ if environment is None else environment)
    if gpus and not counts["GPU"]:
        text = f"{len(gpus)} GPUs are visible, but TensorFlow uses none"
        fix = "pip uninstall -y tensorflow-cpu, then pip install 'tf-adasum[cuda]'"
        findings.append(Finding(WARN, "devices", text, fix))
    return findings


def check_arithmetic() -> list[Finding]:
    """Run every operation on every logical device, against NumPy."""
    config = importlib.import_module("tensorflow").config
    self_test = importlib.import_module("tf_adasum.ops.self_test")
    fix = f"rebuild the compiled op {_BUILD}; until then TF_ADASUM_OPS=tensorflow does without it"
    findings = []
    for name in (device.name for device in config.list_logical_devices()):
        failures = self_test.failures(name)
        findings += [Finding(FAIL, "self-test", f"{name}: {text}", fix) for text in failures]
        if not failures:
            text = f"{name}: all operations, all dtypes: as they should be"
            findings.append(Finding(OK, "self-test", text))
    return findings


def check_tf_config(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the cluster described by ``TF_CONFIG``, if there is one."""
    text = (os.environ if environment is None else environment).get("TF_CONFIG")
    if not text:
        return [Finding(NOTE, "TF_CONFIG", "not set: one process, no cluster")]
    try:
        kind, index, addresses = _parse_tf_config(text)
    except ValueError as error:
        fix = (
            '{"cluster": {"worker": ["host0:port", "host1:port"]}, '
            '"task": {"type": "worker", "index": 0}}, or start with tf-adasum-launch'
        )
        return [Finding(FAIL, "TF_CONFIG", str(error), fix)]
    found = Finding(OK, "TF_CONFIG", f"{kind} {index} of {', '.join(addresses)}")
    return [found, _port_finding(int(addresses[index].rpartition(":")[2]))]


def _parse_tf_config(text: str) -> tuple[str, int, list[str]]:
    """Return this task's type and index and the addresses of that type, or raise ValueError."""
    try:
        config = json.loads(text)
        kind, index = config["task"]["type"], int(config["task"]["index"])
        addresses = list(config["cluster"][kind])
        everyone = [address for group in config["cluster"].values() for address in group]
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"no usable cluster and task in it: {_describe(error)}") from error
    for address in everyone:
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{address!r} is not host:port")
    if len(set(everyone)) < len(everyone):
        raise ValueError("an address appears more than once")
    if not 0 <= index < len(addresses):
        raise ValueError(f"task index {index}, but {len(addresses)} addresses of type {kind!r}")
    return kind, index, addresses


def _port_finding(port: int) -> Finding:
    """Try this task's port on every interface, as TensorFlow's server will."""
    with socket.socket() as probe:
        # A connection that was closed a minute ago does not hold the port; a server does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            fix = f"end the process that holds it (ss -ltnp 'sport = :{port}') or change the port"
            return Finding(FAIL, "TF_CONFIG", f"port {port}: {error.strerror}", fix)
    return Finding(OK, "TF_CONFIG", f"port {port} is free")


def _series_finding(subject: str, text: str, version: str, *series: str) -> Finding:
    """Compare a version with the series that are supported."""
    if any(version.startswith(f"{each}.") for each in series):
        return Finding(OK, subject, text)
    supported = " or ".join(f"{each}.x" for each in series)
    return Finding(FAIL, subject, f"{text} is not supported", f"{supported}: {_INSTALL}")


def _keras_series(tensorflow_version: str) -> str:
    """Return the series of Keras of a TensorFlow's lane; of the main lane for an unknown one."""
    series = ".".join(tensorflow_version.split(".")[:2])
    return _LANES.get(series, next(iter(_LANES.values())))


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _describe(error: Exception) -> str:
    """Name an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
