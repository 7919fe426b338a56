"""The command line of the launcher."""

import os
import re
import subprocess
import sys

import pytest

import tf_adasum
from tf_adasum import doctor
from tf_adasum._version import __version__
from tf_adasum.launch import launch, main
from tf_adasum.launch.command_line import build_parser

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))


TWO_NODES = ["-n", "2", "--nnodes", "2", "--node-rank", "1"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-n", "0", "SCRIPT"], "-n"),
        (["-n", "two", "SCRIPT"], "-n"),
        (["-n", "2", "--devices-per-worker", "0", "SCRIPT"], "--devices-per-worker"),
        (["-n", "2", "--timeout", "0", "SCRIPT"], "--timeout"),
        (["-n", "2", "--timeout", "nan", "SCRIPT"], "--timeout"),
        (["-n", "2", "--time", "3", "SCRIPT"], "--time"),
        (["-n", "2", "--time-out", "3", "SCRIPT"], "Do you mean --timeout?"),
        (["-n", "2", "--max-restarts", "-1", "SCRIPT"], "max_restarts=-1"),
        (["-n", "2", "--nnodes", "0", "SCRIPT"], "--nnodes: expected M, or"),
        (["--nnodes", "3:2", "SCRIPT"], "MIN:MAX with 1 <= MIN <= MAX"),
        (["--nnodes", "0:2", "SCRIPT"], "MIN:MAX"),
        (["--nnodes", "1:x", "SCRIPT"], "Received: 1:x"),
        (["--nnodes", "1:2", "SCRIPT"], "--coordinator"),
        (["--nnodes", "1:2", "--coordinator", "0.0.0.0:1", "SCRIPT"], "at which all hosts reach"),
        (["--nnodes", "1:2", "--node-rank", "0", "--coordinator", "a:1", "SCRIPT"], "--node-rank"),
        (["-n", "2", "--node-rank", "-1", "SCRIPT"], "--node-rank -1"),
        (["-n", "2", "--nnodes", "2", "--coordinator", "a:1", "SCRIPT"], "--node-rank: expected"),
        (["-n", "2", "--nnodes", "2", "--node-rank", "0", "SCRIPT"], "--coordinator: expected"),
        ([*TWO_NODES, "--coordinator", "a", "SCRIPT"], "--coordinator: an address"),
        ([*TWO_NODES, "--coordinator", "a:1", "--node-rank", "2", "SCRIPT"], "--node-rank 2"),
        (["-n", "2", "--coordinator", "a:1", "SCRIPT"], "--coordinator a:1"),
        (["-n", "2", "--log-dir", "/dev/null/logs", "SCRIPT"], "--log-dir /dev/null/logs"),
        (["-n", "2", "missing.py"], "missing.py"),
        (["-n", "2", "python", "SCRIPT"], "Leave out 'python': the launcher runs Python"),
        (["-n", "2", "--"], "nothing to run"),
        (["-n", "2", "-m"], "nothing to run"),
    ],
)
def test_unusable_arguments_are_named_and_give_2(script, capfd, arguments, named):
    path = script("print('started')")
    with pytest.raises(SystemExit) as end:
        main([path if argument == "SCRIPT" else argument for argument in arguments])
    output = capfd.readouterr()
    assert end.value.code == 2
    assert output.out == ""
    assert named in output.err.splitlines()[-1]


def test_another_backend_of_keras_is_refused_at_once(script, capfd, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(SystemExit, match="2"):
        main([script("print('started')")])
    assert "Received: KERAS_BACKEND=jax. Unset the variable" in capfd.readouterr().err


def test_launch_needs_a_command():
    with pytest.raises(ValueError, match="Received: an empty list"):
        launch([], 1)


@pytest.mark.parametrize(
    ("arguments", "gpus", "workers"),
    [
        ([], "", 1),
        ([], "0,1,2", 3),
        (["-n", "auto", "--devices-per-worker", "2"], "0,1,2,3", 2),
        (["-n", "auto", "--devices-per-worker", "2"], "", 1),
        (["-n", "2"], "0,1,2", 2),
        (["-n2"], "", 2),
        (["-np", "2"], "", 2),
        (["--workers", "2"], "", 2),
    ],
)
def test_the_number_of_workers(script, capfd, monkeypatch, arguments, gpus, workers):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    assert main([*arguments, script("print('started')")]) == 0
    assert capfd.readouterr().out.count("started") == workers


def test_the_number_of_workers_after_the_script_is_pointed_out(script, capfd):
    assert main([script("import sys; print(sys.argv[1:])"), "-n", "2"]) == 0
    output = capfd.readouterr()
    assert output.out == "['-n', '2']\n"
    assert "-n stands after" in output.err
    assert main(["-n", "1", script("print('started')"), "-n", "2"]) == 0
    assert "stands after" not in capfd.readouterr().err


@pytest.mark.parametrize("command", [main, doctor.main])
def test_help_ends_with_examples_that_are_understood(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        command(["--help"])
    _, _, examples = capsys.readouterr().out.partition("examples:\n")
    commands = [line.split() for line in examples.splitlines()[::2]]
    assert 3 <= len(commands) <= 4
    parsers = {"tf-adasum-launch": build_parser(), "tf-adasum-doctor": doctor.build_parser()}
    for program, *arguments in commands:
        options = parsers[program].parse_args(arguments)
        assert not getattr(options, "command", [""])[0].startswith("-")


@pytest.mark.parametrize("module", ["launch", "doctor"])
def test_version_is_printed_without_tensorflow(module):
    code = f"import sys; from tf_adasum import {module}\n"
    code += f"try: {module}.main(['--version'])\n"
    code += "finally: assert 'tensorflow' not in sys.modules"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    expected = rf"tf_adasum {re.escape(__version__)} \(TensorFlow 2\.\S+, Python 3\.\S+\)\n"
    assert re.fullmatch(expected, printed)
