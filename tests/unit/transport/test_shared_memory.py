"""Who shares memory, and whether there is enough of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tf_adasum.transport import shared_memory

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


OTHER = """
import ctypes, json, sys
from tf_adasum.transport import shared_memory
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, as UCX does
if sys.argv[1] == "forbids":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print(json.dumps(shared_memory.own_mark()), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_who_may_copy(is_forbidden):
    prefix = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    if is_forbidden and not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, "forbids" if is_forbidden else "allows"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        theirs = json.loads(process.stdout.readline())
        look = LOOK.format(theirs=theirs)
        command = [*(prefix if is_forbidden else []), sys.executable, "-c", look]
        said = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        process.stdin.close()
    expected = "it may not copy from the memory of worker 1 (b:2)" if is_forbidden else ""
    assert said.stdout.splitlines() == ["", expected], said.stderr


LOOK = """
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport import shared_memory
cluster = Cluster(("a:1", "b:2"), ("worker 0", "worker 1"), 0)
own, (memory, *other) = shared_memory.own_mark(), {theirs}
print(shared_memory.forbidden_copy(cluster, [own, [memory + 1, *other]]))
print(shared_memory.forbidden_copy(cluster, [own, [memory, *other]]))
"""


def test_this_process():
    memory, network, free = shared_memory.facts()
    assert shared_memory.facts()[:2] == (memory, network)
    assert memory and network and free >= 0
