"""The devices that hold a replica each. Logical devices are made before TensorFlow's runtime runs,
so the cases are run in order in a process of their own, and judged here."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.launching import output_of

# Prints, for each case, the devices it gave or the error; a case is an expression.
PROGRAM = """
import json, os, sys
import tensorflow as tf
from tf_adasum.cluster.devices import local_devices as devices

def per_worker(text, requested=None):
    os.environ["TF_ADASUM_DEVICES_PER_WORKER"] = text
    try:
        return devices(requested)
    finally:
        del os.environ["TF_ADASUM_DEVICES_PER_WORKER"]

outcomes = []
for case in json.loads(sys.stdin.read()):
    try:
        outcomes.append(eval(case))
    except Exception as error:
        outcomes.append(f"{type(error).__name__}: {error}")
print("OUTCOMES" + json.dumps(outcomes))
"""

# Cases with what they give; a text is a part of a ValueError.
CASES = [
    ("devices()", ["CPU:0"]),
    ("per_worker('2')", ["CPU:0", "CPU:1"]),
    ("per_worker('1')", ["CPU:0"]),
    ("per_worker('')", ["CPU:0", "CPU:1"]),
    ("per_worker('7', ['CPU:1'])", ["CPU:1"]),
    ("devices()", ["CPU:0", "CPU:1"]),
    ("devices(['CPU:1', 'CPU:0'])", ["CPU:1", "CPU:0"]),
    ("devices(('/device:CPU:1',))", ["CPU:1"]),
    ("devices(name for name in ['CPU:1'])", ["CPU:1"]),
    ("devices(['CPU:0', 'CPU:7', 'CPU:2'])", "This worker has CPU:0, CPU:1. To create more"),
    ("devices(['GPU:0'])", "Received: devices=['GPU:0']"),
    ("devices(['CPU:-1'])", "Received: devices=['CPU:-1']"),
    ("devices(['CPU:0', '/device:CPU:0'])", "of different devices"),
    ("devices(['CPU:0', 'GPU:0'])", "all GPUs or all CPUs"),
    ("devices(['CPU'])", "Received: devices=['CPU']"),
    ("devices(['CPU:0:1'])", "such as ['GPU:0', 'GPU:1']"),
    ("devices(['/job:worker/task:3/device:CPU:0'])", "devices="),
    ("devices([])", "Received: devices=[]"),
    ("devices('CPU:0')", "`devices` must be a list"),
    ("devices(['CPU:0', 1])", "`devices` must be a list"),
    ("devices(2)", "`devices` must be a list"),
    ("per_worker('0')", "number of at least 1. Received: TF_ADASUM_DEVICES_PER_WORKER='0'"),
    ("per_worker('1.5')", "TF_ADASUM_DEVICES_PER_WORKER='1.5'"),
    ("per_worker('5')", ["CPU:0", "CPU:1", "CPU:2", "CPU:3", "CPU:4"]),
    ("devices(['CPU:4'])", ["CPU:4"]),
    ("len(tf.config.list_logical_devices('CPU'))", 5),  # which starts the runtime
    ("per_worker('1')", ["CPU:0"]),
    ("per_worker('6')", "TF_ADASUM_DEVICES_PER_WORKER=6 needs 6 logical CPU devices, which"),
    ("devices(['CPU:5'])", "This worker has CPU:0, "),
]


@pytest.fixture(scope="module")
def outcomes():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TF_ADASUM_DEVICES_PER_WORKER", None)
    cases = json.dumps([case for case, _ in CASES])
    folder = Path(__file__).parents[3]
    printed = output_of(
        *(sys.executable, "-c", PROGRAM), input=cases, cwd=folder, env=environment, stderr=None
    )
    return json.loads(printed.partition("OUTCOMES")[2])


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number][0])
def test_local_devices(outcomes, number):
    outcome, expected = outcomes[number], CASES[number][1]
    if isinstance(expected, str):
        assert outcome.startswith("ValueError: ") and expected in outcome
    else:
        assert outcome == expected
