"""The devices that hold a replica each. Logical devices are made before TensorFlow's runtime runs,
so the cases are run in three processes of their own, and judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Prints, for each case, the devices it gave or the error; a case is an expression or statements.
PRELUDE = """
import json, os, sys
import tensorflow as tf
from tf_adasum.cluster.devices import local_devices

def cpus(count):
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, logical)

def per_worker(text, requested=None):
    os.environ["TF_ADASUM_DEVICES_PER_WORKER"] = text
    try:
        return local_devices(requested)
    finally:
        del os.environ["TF_ADASUM_DEVICES_PER_WORKER"]

outcomes = {}
for case in json.loads(sys.stdin.read()):
    try:
        outcomes[case] = eval(case)
    except Exception as error:
        outcomes[case] = f"{type(error).__name__}: {error}"
print("OUTCOMES" + json.dumps(outcomes))
"""

REFUSED = {
    "local_devices(['CPU:2'])": "do not exist: CPU:2. This worker has CPU:0, CPU:1",
    "local_devices(['CPU:0', 'CPU:7', 'CPU:2'])": "do not exist: CPU:7, CPU:2",
    "local_devices(['GPU:0'])": "do not exist: GPU:0",
    "local_devices(['TPU:0'])": "do not exist: TPU:0",
    "local_devices(['CPU:-1'])": "Received: devices=['CPU:-1']",
    "local_devices(['CPU:0', 'CPU:0'])": "must not repeat a device",
    "local_devices(['CPU:0', '/device:CPU:0'])": "must not repeat a device",
    "local_devices(['CPU:0', 'GPU:0'])": "must be of one type",
    "local_devices(['nonsense'])": "'nonsense' in `devices` is no device name",
    "local_devices(['CPU'])": "'CPU' in `devices` is no device name",
    "local_devices(['CPU:x'])": "'CPU:x' in `devices` is no device name",
    "local_devices(['CPU:0:1'])": "'CPU:0:1' in `devices` is no device name",
    "local_devices([''])": "'' in `devices` is no device name",
    "local_devices(['/'])": "'/' in `devices` is no device name",
    "local_devices(['/device:'])": "'/device:' in `devices` is no device name",
    "local_devices(['CPU:*'])": "'CPU:*' in `devices`",
    "local_devices(['/job:worker/task:3/device:CPU:0'])": "devices=",
    "local_devices([])": "must name at least one device. Received: devices=[]",
    "local_devices(())": "must name at least one device",
    "local_devices('CPU:0')": "must be a list of device names",
    "local_devices(b'CPU:0')": "must be a list of device names",
    "local_devices(['CPU:0', 1])": "must be a list of device names",
    "local_devices([None])": "must be a list of device names",
    "local_devices(2)": "must be a list of device names",
    "per_worker('0')": "whole number of at least 1. Received: TF_ADASUM_DEVICES_PER_WORKER='0'",
    "per_worker('-1')": "TF_ADASUM_DEVICES_PER_WORKER='-1'",
    "per_worker('two')": "TF_ADASUM_DEVICES_PER_WORKER='two'",
    "per_worker('1.5')": "TF_ADASUM_DEVICES_PER_WORKER='1.5'",
}
GIVEN = {
    "local_devices()": ["CPU:0", "CPU:1"],
    "local_devices(['CPU:1'])": ["CPU:1"],
    "local_devices(['CPU:1', 'CPU:0'])": ["CPU:1", "CPU:0"],
    "local_devices(('/device:CPU:1',))": ["CPU:1"],
    "local_devices(name for name in ['CPU:1'])": ["CPU:1"],
    "per_worker('')": ["CPU:0", "CPU:1"],
    "per_worker('1')": ["CPU:0"],
    "per_worker('2')": ["CPU:0", "CPU:1"],
    "per_worker('7', ['CPU:1'])": ["CPU:1"],
}

TWO_CPUS = ["cpus(2)", *REFUSED, *GIVEN]
MADE_HERE = [
    "local_devices()",
    "per_worker('3')",
    "local_devices(['CPU:2'])",
    "per_worker('2')",
    "per_worker('5')",
    "len(tf.config.list_logical_devices('CPU'))",
]
TOO_LATE = [
    "int(tf.constant(1) + 1)",
    "local_devices()",
    "per_worker('1')",
    "per_worker('2')",
    "local_devices(['CPU:1'])",
]


@pytest.fixture(scope="module")
def outcomes():
    """What each list of cases gave."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TF_ADASUM_DEVICES_PER_WORKER", None)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            env=environment,
        )
        for _ in range(3)
    ]
    results = []
    for process, cases in zip(processes, (TWO_CPUS, MADE_HERE, TOO_LATE), strict=True):
        output, errors = process.communicate(json.dumps(cases), timeout=120)
        assert "OUTCOMES" in output, errors[-2000:]
        results.append(json.loads(output.partition("OUTCOMES")[2]))
    return dict(zip(("two cpus", "made here", "too late"), results, strict=True))


@pytest.mark.parametrize("case", GIVEN)
def test_given(outcomes, case):
    assert outcomes["two cpus"][case] == GIVEN[case]


@pytest.mark.parametrize("case", REFUSED)
def test_refused(outcomes, case):
    outcome = str(outcomes["two cpus"][case])
    assert outcome.startswith("ValueError: ") and REFUSED[case] in outcome


def test_logical_cpus_are_made_as_the_environment_says(outcomes):
    outcome = outcomes["made here"]
    assert outcome["local_devices()"] == ["CPU:0"]
    assert outcome["per_worker('3')"] == ["CPU:0", "CPU:1", "CPU:2"]
    assert outcome["local_devices(['CPU:2'])"] == ["CPU:2"]
    assert outcome["per_worker('2')"] == ["CPU:0", "CPU:1"], "those there are suffice"
    assert outcome["per_worker('5')"] == [f"CPU:{i}" for i in range(5)]
    assert outcome["len(tf.config.list_logical_devices('CPU'))"] == 5, "they really exist"


def test_after_an_operation_no_more_can_be_made(outcomes):
    outcome = outcomes["too late"]
    assert outcome["int(tf.constant(1) + 1)"] == 2
    assert outcome["local_devices()"] == ["CPU:0"]
    assert outcome["per_worker('1')"] == ["CPU:0"]
    assert outcome["per_worker('2')"].startswith("ValueError: TF_ADASUM_DEVICES_PER_WORKER=2 needs")
    assert "Create the strategy first" in outcome["per_worker('2')"]
    assert "do not exist: CPU:1. This worker has CPU:0." in outcome["local_devices(['CPU:1'])"]
