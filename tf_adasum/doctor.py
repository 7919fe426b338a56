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
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

from tf_adasum._version import (
    ADDONS,
    KERAS,
    KERAS_OF_TENSORFLOW,
    PYTHON,
    TENSORFLOW_OF_ADDONS,
    __version__,
    series,
)
from tf_adasum.cluster import tf_config
from tf_adasum.launch import visible_gpus

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "FAIL"

_INSTALL = (
    f"pip install 'tf-adasum[cpu]' or 'tf-adasum[cuda]', or for TensorFlow {TENSORFLOW_OF_ADDONS} "
    "'tf-adasum[addons]'; in a checkout: -e '.[cpu]'"
)
_BUILD = (
    "in the source folder, with a C++ compiler: "
    "pip install --no-build-isolation --no-deps --force-reinstall -e ."
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: what was found about a subject, and the fix if it needs one.

    Attributes:
        level: `OK`, `NOTE`, `WARN` or `FAIL`.
        subject: what was looked at, such as "keras".
        text: what was found.
        fix: what to do about it. Defaults to None: nothing.
    """

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
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit code: 0 when tf_adasum can be used, 1 when something must be done first.

    Raises:
        SystemExit: with code 2 and a message on stderr for any argument; with 0 for ``--help``.

    Example:
        >>> main([])  # takes half a minute, and depends on the machine  # doctest: +SKIP
        0
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
    own = Finding(OK, "tf_adasum", __version__)
    if series(text) in PYTHON:
        return [own, Finding(OK, "python", text)]
    fix = f"make an environment with one of Python {', '.join(PYTHON)}"
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
    return [_series_finding("tensorflow", text, version, *KERAS_OF_TENSORFLOW)]


def check_tensorflow_import() -> list[Finding]:
    """Import TensorFlow, the way everything else here will."""
    try:
        tensorflow = importlib.import_module("tensorflow")
        version = tensorflow.__version__  # missing where a removed wheel left an empty folder
    except Exception as error:  # a broken installation raises more than ImportError
        fix = f"pip uninstall -y tensorflow tensorflow-cpu, then {_INSTALL}"
        return [Finding(FAIL, "import", f"TensorFlow: {_describe(error)}", fix)]
    return [_series_finding("import", f"TensorFlow {version}", version, *KERAS_OF_TENSORFLOW)]


def check_keras() -> list[Finding]:
    """Compare Keras and the backend it was told to use."""
    tensorflow = importlib.import_module("tensorflow").__version__
    wanted = KERAS_OF_TENSORFLOW.get(series(tensorflow), KERAS)
    fix = 'set KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
    try:
        keras = importlib.import_module("keras")
        version, backend = keras.__version__, keras.backend.backend()
    except Exception as error:  # Keras imports its backend, which may not be installed
        fix = f"{fix}; if it is: pip install --force-reinstall 'keras=={wanted}.*'"
        return [Finding(FAIL, "keras", _describe(error), fix)]
    findings = [_series_finding("keras", version, version, wanted)]
    if backend == "tensorflow":
        return [*findings, Finding(OK, "keras", "backend tensorflow")]
    return [*findings, Finding(FAIL, "keras", f"backend {backend}, not tensorflow", fix)]


def check_addons(
    version_of: Callable[[str], str | None] | None = None,
) -> list[Finding]:
    """Look for TensorFlow Addons on its stack: `optimizers.LAMB` is made of it there."""
    if series(importlib.import_module("tensorflow").__version__) != TENSORFLOW_OF_ADDONS:
        return []
    version = (version_of or _installed_version)("tensorflow-addons")
    if version is None:
        text = "not installed; only needed for optimizers.LAMB: pip install"
        return [Finding(NOTE, "addons", f"{text} 'tensorflow-addons=={ADDONS}.*'")]
    return [_series_finding("addons", f"TensorFlow Addons {version}", version, ADDONS)]


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
    text = (os.environ if environment is None else environment).get(tf_config.NAME)
    if not text:
        return [Finding(NOTE, tf_config.NAME, "not set: one process, no cluster")]
    try:
        cluster = tf_config.parse(text)
    except ValueError as error:
        fix = f"{tf_config.EXAMPLE}, or start with tf-adasum-launch"
        return [Finding(FAIL, tf_config.NAME, str(error), fix)]
    if cluster is None:
        return [Finding(NOTE, tf_config.NAME, "no cluster in it: one process")]
    text = f"{cluster.names[cluster.rank]} of {', '.join(cluster.addresses)}"
    _, port = cluster.host_and_port(cluster.rank)
    return [Finding(OK, tf_config.NAME, text), _port_finding(port)]


def _port_finding(port: int) -> Finding:
    """Try this task's port on every interface, as TensorFlow's server will."""
    with socket.socket() as probe:
        # A connection that was closed a minute ago does not hold the port; a server does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            fix = f"end the process that holds it (ss -ltnp 'sport = :{port}') or change the port"
            return Finding(FAIL, tf_config.NAME, f"port {port}: {error.strerror}", fix)
    return Finding(OK, tf_config.NAME, f"port {port} is free")


def _series_finding(subject: str, text: str, version: str, *supported: str) -> Finding:
    """Compare a version with the series that are supported."""
    if series(version) in supported:
        return Finding(OK, subject, text)
    wanted = " or ".join(f"{each}.x" for each in supported)
    return Finding(FAIL, subject, f"{text} is not supported", f"{wanted}: {_INSTALL}")


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
