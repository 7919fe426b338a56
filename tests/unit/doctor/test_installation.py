"""What the doctor finds on one worker, without having to break an installation."""

import dataclasses
import json
import re
import subprocess
import sys
import types

import pytest

from tf_adasum import doctor
from tf_adasum._version import TENSORFLOW, requirement
from tf_adasum.compat.hooks import Hooks
from tf_adasum.doctor import findings, installation
from tf_adasum.doctor.findings import FAIL, NOTE, OK, WARN
from tf_adasum.ops.library import Status

# What TensorFlow's libraries for GPUs log whatever TF_CPP_MIN_LOG_LEVEL says.
OF_TENSORFLOW = re.compile(r".*cuda|WARNING: All log messages before absl::InitializeLog")

BUILD_IT = "build it: pip install ."
LOADED = Status(True, "/lib/op.so", None, "2.21.0")
WITHOUT_KERNELS = dataclasses.replace(LOADED, gpu_reason="no CUDA compiler found")
With = types.SimpleNamespace


@pytest.fixture
def stub(monkeypatch):
    """Replace TensorFlow, Keras and tf_adasum.ops by what a test describes."""

    def install(
        *,
        gpus=0,
        keras="3.15.1",
        backend="tensorflow",
        version="2.21.0",
        status=LOADED,
        failures=lambda device: [],
        ucx="1.22.0",
        visible="",
    ):
        devices = [With(name=f"/device:{kind}") for kind in ["CPU"] + ["GPU"] * gpus]
        config = With(
            list_physical_devices=lambda kind: [each for each in devices if kind in each.name],
            list_logical_devices=lambda: devices,
        )
        hooks = With(hooks=Hooks("a library"))

        def opened():
            if ucx is None:
                raise OSError("UCX cannot be opened (no such file): pip install it")
            return With(version=ucx)

        modules = {
            "tensorflow": With(__version__=version, config=config),
            "keras": With(__version__=keras, backend=With(backend=lambda: backend)),
            "tf_adasum.ops": With(backend=lambda: "custom" if status.loaded else "tensorflow"),
            "tf_adasum.ops.self_test": With(failures=failures),
            "tf_adasum.ops.library": With(status=lambda: status, BUILD_IT=BUILD_IT),
            "tf_adasum.transport.library": With(opened=opened, UcxUnavailableError=OSError),
            "tf_adasum.workers.callbacks": With(),
            "tf_adasum.compat.keras": hooks,
            "tf_adasum.compat.tensorflow": hooks,
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delenv("TF_CONFIG", raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return install


# The report


@pytest.mark.parametrize(
    ("broken", "subject", "fix"),
    [
        ({"version": "2.14.1"}, "keras", "TensorFlow 2.14.1 is too old"),
        ({"keras": "3.8.0"}, "keras", "Keras 3.8.0 is too old: pip install 'keras>=3.11,<3.16'"),
        ({"keras": "2.15.0"}, "keras", "Keras 2.15.0 is too old"),
        ({"version": "2.15.1"}, "keras", "'keras==2.15.*'"),
        ({"backend": "jax"}, "keras", "KERAS_BACKEND=tensorflow"),
        ({"failures": lambda device: ["float16 is wrong by up to 3"]}, "self-test", BUILD_IT),
    ],
)
def test_what_makes_it_unusable_exits_with_1_and_says_what_to_do(
    stub, capsys, broken, subject, fix
):
    stub(**broken)
    assert doctor.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = next(n for n, line in enumerate(lines) if line.startswith(f"FAIL  {subject} "))
    assert lines[failed + 1].lstrip().startswith("-> ") and fix in lines[failed + 1]


def test_an_exception_in_a_check_is_a_finding_and_the_others_still_run(stub):
    def explode(device):
        raise RuntimeError("kernel not found\nand a long trace")

    stub(failures=explode)
    findings = doctor.diagnose()
    (failed,) = [finding for finding in findings if finding.level == FAIL]
    assert failed.subject == "arithmetic"
    assert failed.text == "could not be checked: RuntimeError: kernel not found"
    assert any(finding.subject == "compiled op" for finding in findings)


def test_a_keras_that_cannot_import_its_backend(stub, monkeypatch):
    stub()
    monkeypatch.setitem(sys.modules, "keras", None)
    (finding,) = [each for each in doctor.diagnose() if each.level == FAIL]
    assert finding.subject == "keras" and "KERAS_BACKEND=tensorflow" in finding.fix


@pytest.mark.parametrize(
    ("broken", "removes"),
    [
        ("sys.modules['tensorflow'] = None", False),  # not installed
        # An empty folder is left.
        ("sys.modules['tensorflow'] = types.ModuleType('tensorflow')", True),
    ],
)
def test_without_tensorflow_there_is_a_fix_and_no_traceback(broken, removes):
    code = f"import sys, types; {broken}; from tf_adasum import doctor; sys.exit(doctor.main([]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, "")
    assert "FAIL  tensorflow" in result.stdout
    assert f"pip install 'tensorflow-cpu{requirement(TENSORFLOW)}'" in result.stdout
    assert ("pip uninstall" in result.stdout) == removes
    assert "self-test" not in result.stdout


def test_the_real_installation(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    command = [sys.executable, "-m", "tf_adasum.doctor"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line for line in result.stderr.splitlines() if not OF_TENSORFLOW.match(line)] == []
    assert "ok    self-test     all operations" in result.stdout
    for subject in ("python", "tensorflow", "keras", "compiled op", "devices"):
        assert f"  {subject} " in result.stdout


def test_a_missing_op_is_a_warning_with_the_build_command(stub, capsys):
    stub(status=Status(False, "/lib/op.so", "no library file", None, fix=BUILD_IT))
    assert doctor.main([]) == 0
    printed = capsys.readouterr().out
    assert "warn  compiled op   not loaded: no library file" in printed
    assert f"everything works, but slower. {BUILD_IT}" in printed


# Single checks


@pytest.mark.parametrize(
    ("options", "check", "levels", "text", "fix"),
    [
        ({}, "custom_op", [OK, NOTE], "built, but TensorFlow sees no GPU", None),
        ({"gpus": 1}, "custom_op", [OK, OK], "used", None),
        ({"status": WITHOUT_KERNELS}, "custom_op", [OK, NOTE], "no CUDA compiler found", None),
        ({"status": WITHOUT_KERNELS, "gpus": 1}, "custom_op", [OK, WARN], "no CUDA", BUILD_IT),
        ({}, "ucx", [OK], "1.22.0, for the gradients", None),
        ({"ucx": None}, "ucx", [NOTE], "no such file", None),
        ({"visible": "0,1", "gpus": 2}, "devices", [OK], "/device:CPU, /device:GPU", None),
        ({"visible": "0,1"}, "devices", [OK, WARN], "TensorFlow uses none", "tensorflow[and-cuda]"),
        ({}, "keras", [OK], "3.15.1, backend tensorflow", None),
        ({"version": "2.22.0"}, "keras", [WARN], "TensorFlow 2.22.0 is newer", "pip install"),
        ({"keras": "3.16.0"}, "keras", [WARN], "Keras 3.16.0 is newer", "pip install"),
    ],
)
def test_what_tensorflow_has(stub, options, check, levels, text, fix):
    stub(**options)
    found = getattr(installation, f"check_{check}")()
    assert [each.level for each in found] == levels
    assert any(text in each.text for each in found)
    assert fix in found[-1].fix if fix else found[-1].fix is None


def test_every_device_is_tested_and_every_failure_reported(stub):
    stub(gpus=1, failures=lambda device: ["this", "and that"] if "GPU" in device else [])
    failed = installation.check_arithmetic()
    assert [each.level for each in failed] == [FAIL, FAIL]
    assert [each.text for each in failed] == ["/device:GPU: this", "/device:GPU: and that"]


def test_hooks_whose_functions_have_moved(stub):
    stub()
    hooks = sys.modules["tf_adasum.compat.keras"].hooks
    hooks.replaces(json, "dumps")(lambda original: original())
    hooks.replaces(json, "dump_one", feature="long texts")(lambda original: original())
    found, off, _ = installation.check_hooks()  # the stub has the same hooks twice
    assert found.level == OK and "1 functions of a library" in found.text
    assert (off.level, off.text) == (WARN, "off: long texts (json.dump_one has moved)")
    assert off.fix
    hooks.replaces(json, "dump_all")(lambda original: original())
    hooks.replaces(json, "parse")(lambda original: original())
    (found,) = findings.run(installation.check_hooks)
    assert found.level == FAIL and "json.dump_all, json.parse" in found.text
    assert "Install a supported version" in found.fix
