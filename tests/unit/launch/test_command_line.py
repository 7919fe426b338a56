"""The command line of the launcher."""

import os
import subprocess
import sys

import pytest
from support.launching import LIMIT

import tf_adasum
from tf_adasum.launch import launch, main

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))


TWO_NODES = ["-n", "2", "--nnodes", "2", "--node-rank", "1"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-n", "0", "SCRIPT"], "-n"),
        (["-n", "-2", "SCRIPT"], "-n"),
        (["-n", "two", "SCRIPT"], "-n"),
        (["SCRIPT"], "-n"),
        (["-n", "2", "--devices-per-worker", "0", "SCRIPT"], "--devices-per-worker"),
        (["-n", "2", "--timeout", "0", "SCRIPT"], "--timeout"),
        (["-n", "2", "--timeout", "nan", "SCRIPT"], "--timeout"),
        (["-n", "2", "--timeout", "inf", "SCRIPT"], "--timeout"),
        (["-n", "2", "--time", "3", "SCRIPT"], "--time"),
        (["-n", "2", "--nnodes", "0", "SCRIPT"], "--nnodes 0"),
        (["-n", "2", "--nnodes", "1", "--node-rank", "1", "SCRIPT"], "--node-rank 1"),
        (["-n", "2", "--node-rank", "-1", "SCRIPT"], "--node-rank -1"),
        (["-n", "2", "--nnodes", "2", "--coordinator", "a:1", "SCRIPT"], "--node-rank: expected"),
        (["-n", "2", "--nnodes", "2", "--node-rank", "0", "SCRIPT"], "--coordinator: expected"),
        ([*TWO_NODES, "--coordinator", "a", "SCRIPT"], "--coordinator: an address"),
        ([*TWO_NODES, "--coordinator", "::1:2222", "SCRIPT"], "'::1:2222'"),
        ([*TWO_NODES, "--coordinator", "a:1", "--node-rank", "2", "SCRIPT"], "--node-rank 2"),
        (["-n", "2", "--coordinator", "a:1", "SCRIPT"], "--coordinator a:1"),
        (["-n", "2", "--log-dir", "/dev/null/logs", "SCRIPT"], "--log-dir /dev/null/logs"),
        (["-n", "2", "missing.py"], "missing.py"),
        (["-n", "2"], "nothing to run"),
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


@pytest.mark.parametrize(
    "arguments", [([], 1), (["true"], 0), (["true"], 1, 0), (["true"], 1, 1, -1)]
)
def test_launch_rejects_what_it_cannot_use(arguments):
    with pytest.raises(ValueError, match="Received"):
        launch(*arguments)


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "tf-adasum-launch -n 4 train.py --lr 0.1" in capsys.readouterr().out


def test_the_launcher_the_doctor_and_the_watch_need_no_packages():
    # -S: without site-packages there is no TensorFlow, Keras or NumPy to import.
    modules = "launch launch.run doctor arguments atomic_files errors cluster.rendezvous"
    modules += " cluster.start_timeout cluster.tf_config watch.watch seams"
    code = f"import sys; sys.path.insert(0, {ROOT!r})\n"
    code += "\n".join(f"import tf_adasum.{module}" for module in modules.split())
    subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=LIMIT, check=True)
