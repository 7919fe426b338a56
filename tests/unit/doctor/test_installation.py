"""What the doctor finds on one worker, without having to break an installation."""

import dataclasses
import json
import os
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
from tf_adasum.transport import shared_memory

# What TensorFlow's libraries log whatever TF_CPP_MIN_LOG_LEVEL says; what depends on the processor.
OF_TENSORFLOW = re.compile(
    r"[IWE]\d{4} \d|WARNING: All log messages before absl::InitializeLog"
    r"|[\d-]+ [\d:.]+: [IWE] "  # up to TensorFlow 2.20
)

BUILD_IT = "build it: pip install ."
LIMIT = 120  # seconds; importing TensorFlow takes several on a busy machine


def levels(findings):
    return [finding.level for finding in findings]


@dataclasses.dataclass(frozen=True)
class Status:
    """What tf_adasum.ops.library.status() returns."""

    loaded: bool
    path: str | None
    reason: str | None
    built_for: str | None
    gpu_reason: str | None = None
    fix: str | None = BUILD_IT


@pytest.fixture
def stub(monkeypatch):
    """Replace TensorFlow, Keras and tf_adasum.ops by what a test describes."""

    def install(
        *,
        gpus=0,
        keras="3.15.1",
        backend="tensorflow",
        version="2.21.0",
        status=Status(True, "/lib/op.so", None, "2.21.0"),
        failures=lambda device: [],
        ucx="1.22.0",
        crash="",
        free=100,
    ):
        kinds = ["CPU"] + ["GPU"] * gpus
        devices = [types.SimpleNamespace(name=f"/device:{kind}", kind=kind) for kind in kinds]
        config = types.SimpleNamespace(
            list_physical_devices=lambda kind: [d for d in devices if d.kind == kind],
            list_logical_devices=lambda: devices,
        )
        library = types.SimpleNamespace(status=lambda: status, BUILD_IT=BUILD_IT)
        hooks = Hooks("a library")

        class Unavailable(Exception):
            pass

        def rehearse(transports, device):
            if crash:
                raise Unavailable(crash)

        def opened():
            if ucx is None:
                raise Unavailable("UCX cannot be opened (no such file): pip install it")
            return types.SimpleNamespace(version=ucx, rehearse=rehearse)

        modules = {
            "tensorflow": types.SimpleNamespace(__version__=version, config=config),
            "keras": types.SimpleNamespace(
                __version__=keras, backend=types.SimpleNamespace(backend=lambda: backend)
            ),
            "tf_adasum.ops": types.SimpleNamespace(
                backend=lambda: "custom" if status.loaded else "tensorflow",
            ),
            "tf_adasum.ops.self_test": types.SimpleNamespace(failures=failures),
            "tf_adasum.ops.library": library,
            "tf_adasum.transport.library": types.SimpleNamespace(
                opened=opened, Unavailable=Unavailable
            ),
            "tf_adasum.compat.keras": types.SimpleNamespace(hooks=hooks),
            "tf_adasum.compat.tensorflow": types.SimpleNamespace(hooks=hooks),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(shared_memory, "place", lambda: (1, 1, free))
        monkeypatch.delenv("TF_CONFIG", raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        installed = {"tensorflow-cpu": version, "numpy": "1.26.4"}
        monkeypatch.setattr(installation, "_installed_version", installed.get)

    return install


# The report


def test_a_good_installation_exits_with_0(stub, capsys):
    stub()
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith((WARN, FAIL)) for line in lines)
    for subject in ("python", "tensorflow", "keras", "compiled op", "devices", "self-test"):
        assert any(line.split(maxsplit=1)[1].startswith(subject) for line in lines)


def test_a_missing_op_is_a_warning_with_the_build_command(stub, capsys):
    stub(status=Status(False, None, "no library file", None))
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert "warn  compiled op   not loaded: no library file" in output
    assert f"everything works, but slower. {BUILD_IT}" in output


@pytest.mark.parametrize(
    ("version", "level"), [("0.23.0", OK), ("0.22.0", FAIL), (None, NOTE)], ids=str
)
def test_addons_are_looked_for_on_their_stack(stub, version, level):
    stub(version="2.15.1", keras="2.15.0")
    (finding,) = installation.check_addons(lambda name: version)
    assert finding.level == level
    stub()
    assert installation.check_addons(lambda name: version) == []


@pytest.mark.parametrize(("gpus", "level"), [(0, NOTE), (1, OK)])
def test_gpu_kernels_are_used_where_there_is_a_gpu(stub, gpus, level):
    stub(gpus=gpus)
    _, gpu = installation.check_custom_op()
    assert (gpu.level, gpu.text == "used") == (level, bool(gpus))


@pytest.mark.parametrize(("gpus", "level"), [(0, NOTE), (1, WARN)])
def test_missing_gpu_kernels_matter_where_there_is_a_gpu(stub, gpus, level):
    stub(gpus=gpus, status=Status(True, "/lib/op.so", None, "2.21.0", "no CUDA compiler found"))
    op, gpu = installation.check_custom_op()
    assert (op.level, gpu.level) == (OK, level)
    assert "no CUDA compiler found" in gpu.text
    assert (gpu.fix is not None) == (level == WARN)


@pytest.mark.parametrize(
    ("version", "level", "text"), [("1.22.0", OK, "1.22.0, for the"), (None, NOTE, "no such file")]
)
def test_ucx_is_only_noted_where_it_is_missing(stub, version, level, text):
    stub(ucx=version)
    (finding,) = installation.check_ucx()
    assert finding.level == level and text in finding.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"free": 16}, "/dev/shm has 16 MiB free, and 2 workers need 26 MiB"),
        ({"crash": "UCX crashes where it starts (Bus error)"}, "where it starts (Bus error)"),
    ],
)
def test_ucx_without_shared_memory_is_noted(stub, options, why):
    stub(**options)
    (finding,) = installation.check_ucx()
    assert finding.level == NOTE and finding.text.endswith(why) and "--shm-size" in finding.fix


def test_every_device_is_tested_and_every_failure_reported(stub):
    stub(gpus=1, failures=lambda device: ["this", "and that"] if "GPU" in device else [])
    findings = installation.check_arithmetic()
    assert levels(findings) == [OK, FAIL, FAIL]
    assert [f.text for f in findings[1:]] == ["/device:GPU: this", "/device:GPU: and that"]


@pytest.mark.parametrize(
    ("broken", "subject"),
    [
        ({"version": "2.14.1"}, "tensorflow"),
        ({"version": "2.1.0"}, "tensorflow"),
        ({"keras": "3.8.0"}, "keras"),
        ({"keras": "2.15.0"}, "keras"),
        ({"version": "2.15.1"}, "keras"),
        ({"backend": "jax"}, "keras"),
        ({"failures": lambda device: ["segment_gram of float16 is wrong by up to 3"]}, "self-test"),
    ],
)
def test_what_makes_it_unusable_exits_with_1_and_says_what_to_do(stub, capsys, broken, subject):
    stub(**broken)
    assert doctor.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = next(n for n, line in enumerate(lines) if line.startswith(f"FAIL  {subject} "))
    assert lines[failed + 1].lstrip().startswith("-> ")


def test_an_exception_in_a_check_is_a_finding_and_the_others_still_run(stub):
    def explode(device):
        raise RuntimeError("kernel not found\nand a long trace")

    stub(failures=explode)
    findings = doctor.diagnose()
    (failed,) = [finding for finding in findings if finding.level == FAIL]
    assert failed.subject == "arithmetic"
    assert failed.text == "could not be checked: RuntimeError: kernel not found"
    assert any(finding.subject == "compiled op" for finding in findings)


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
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT
    )
    assert result.returncode == 1
    assert result.stderr == ""
    assert "FAIL  import" in result.stdout
    assert f"pip install 'tensorflow-cpu{requirement(TENSORFLOW)}'" in result.stdout
    assert ("pip uninstall" in result.stdout) == removes
    assert "self-test" not in result.stdout


def test_the_real_installation():
    result = subprocess.run(
        [sys.executable, "-m", "tf_adasum.doctor"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line for line in result.stderr.splitlines() if not OF_TENSORFLOW.match(line)] == []
    assert "ok    self-test     /device:CPU:0" in result.stdout


def test_json_says_the_same_to_programs(stub, capsys):
    stub(status=Status(False, None, "no library file", None))
    code = doctor.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["usable"], report["cluster"]) == (0, True, None)
    assert report["tensorflow"] == "2.21.0" and report["keras"] == "3.15.1"
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["physical_devices"] == {"CPU": 1, "GPU": 0}
    assert report["op"] == "tensorflow" and report["tensorboard"] is None
    (warning,) = [one for one in report["findings"] if one["level"] == WARN]
    assert warning["subject"] == "compiled op" and "pip install" in warning["fix"]


# Single checks


@pytest.mark.parametrize(("version", "level"), [("2.21.0", OK), (None, NOTE)])
def test_tensorboard(version, level):
    (finding,) = installation.check_tensorboard({"tensorboard": version}.get)
    assert (finding.level, finding.facts) == (level, {"tensorboard": version})
    assert ("pip install tensorboard" in finding.text) == (version is None)


def test_a_hook_whose_function_has_moved(stub):
    stub()
    hooks = sys.modules["tf_adasum.compat.keras"].hooks
    hooks.replaces(json, "dumps")(lambda original: original())
    (found,) = installation.check_hooks()
    assert (found.level, found.facts) == (OK, {"hooks": {"a library": 1}, "off": {}})
    hooks.replaces(json, "dump_all")(lambda original: original())
    hooks.replaces(json, "parse")(lambda original: original())
    (found,) = findings.run(installation.check_hooks)
    assert found.level == FAIL and "json.dump_all, json.parse" in found.text
    assert "Install a supported version" in found.fix


def test_a_feature_that_is_off(stub):
    stub()
    hooks = sys.modules["tf_adasum.compat.keras"].hooks
    hooks.replaces(json, "dump_all", feature="long texts")(lambda original: original())
    hooks.replaces(json, "dumps")(lambda original: original())
    found, off = installation.check_hooks()
    assert (found.level, found.facts["hooks"]) == (OK, {"a library": 1})
    assert (off.level, off.text) == (WARN, "off: long texts (json.dump_all has moved)")
    assert found.facts["off"] == {"long texts": ["json.dump_all"]} and off.fix


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ({"version": "2.22.0"}, "TensorFlow 2.22.0 is newer than 2.21, the newest tested"),
        ({"keras": "3.16.0"}, "3.16.0 is newer than 3.15, the newest tested"),
    ],
)
def test_newer_versions_are_tried(stub, capsys, versions, text):
    stub(**versions)
    assert doctor.main([]) == 0
    assert text in capsys.readouterr().out


def test_versions_that_are_too_old_have_one_fix(stub, capsys):
    stub(keras="3.8.0")
    assert doctor.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    (failed,) = [place for place, line in enumerate(lines) if line.startswith(FAIL)]
    assert "Keras 3.8.0 is too old: pip install 'keras>=3.11,<3.16'" in lines[failed + 1]


@pytest.mark.parametrize(
    ("version", "level"),
    [((3, 9, 18), FAIL), ((3, 10, 0), OK), ((3, 13, 5), OK), ((3, 14, 0), FAIL)],
)
def test_python(version, level):
    (finding,) = [each for each in installation.check_python(version) if each.subject == "python"]
    assert finding.level == level
    assert (finding.fix is not None) == (level == FAIL)


@pytest.mark.parametrize(
    ("installed", "level", "text"),
    [
        ({"tensorflow": "2.21.0"}, OK, "tensorflow 2.21.0"),
        ({"tensorflow-cpu": "2.21.1"}, OK, "tensorflow-cpu 2.21.1"),
        ({"tensorflow": "2.16.2"}, OK, "tensorflow 2.16.2"),
        ({"tensorflow": "2.22.0"}, WARN, "newer than 2.21"),
        ({"tensorflow": "2.14.1"}, FAIL, "not supported"),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, FAIL, "overwrite each other"),
        ({}, WARN, "neither"),
    ],
)
def test_distributions(installed, level, text):
    (finding,) = installation.check_distributions(installed.get)
    assert finding.level == level
    assert text in finding.text
    if len(installed) == 2:
        assert "pip uninstall -y tensorflow tensorflow-cpu" in finding.fix


@pytest.mark.parametrize(
    ("numpy", "tensorflow", "level"),
    [("1.26.4", "2.17.1", OK), ("2.1.0", "2.17.1", FAIL), ("2.1.0", "2.18.0", OK)],
)
def test_numpy(numpy, tensorflow, level):
    (finding,) = installation.check_numpy({"numpy": numpy, "tensorflow": tensorflow}.get)
    assert (finding.level, finding.facts) == (level, {"numpy": numpy})
    assert (finding.fix is not None) == (level == FAIL)


def test_a_keras_that_cannot_import_its_backend(stub, monkeypatch):
    stub()
    monkeypatch.setitem(sys.modules, "keras", None)
    found = doctor.diagnose()
    (finding,) = [each for each in found if each.level == FAIL]
    assert finding.subject == "keras" and "KERAS_BACKEND=tensorflow" in finding.fix


def test_where_tf_keras_is_another_package(stub, monkeypatch):
    stub()
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    warned = [each for each in installation.check_keras() if each.level == WARN]
    assert ["tf_keras" in each.text for each in warned] == [True]


def test_compiler():
    (found,) = installation.check_compiler({"c++": "/usr/bin/c++"}.get)
    (missing,) = installation.check_compiler(lambda name: None)
    assert (found.level, found.text) == (OK, "/usr/bin/c++")
    assert missing.level == NOTE


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"),
    [("", 0, [OK]), ("0,1", 2, [OK]), ("0,1", 0, [OK, WARN]), ("", 1, [OK])],
)
def test_gpus_that_tensorflow_does_not_see(stub, visible, gpus, expected):
    stub(gpus=gpus)
    findings = installation.check_devices({"CUDA_VISIBLE_DEVICES": visible})
    assert levels(findings) == expected
    assert f"1 CPU, {gpus} GPU" in findings[0].text
