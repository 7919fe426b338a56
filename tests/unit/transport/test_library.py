"""What opening UCX does to a process, and which compiled op it takes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import meshes
from support.pace import PACE

ROOT = Path(__file__).parents[3]


def run(program, *prefix):
    """Run a program in a process of its own; return what it prints."""
    meshes.opened()
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300 * PACE,
    )
    return ended.stdout


# Handlers of signals, the code of functions that UCX could patch, and addresses that are listened
# on, before and after UCX is opened. Then the files of a mesh, and how a forked child ends.
PROGRAM = """
import ctypes, json, os, re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import tensorflow as tf
from support import meshes
from tf_adasum.ops import library as op_library
from tf_adasum.transport import library, ucx_port

def look():
    handled = re.search(r"SigCgt:\\s*(\\w+)", Path("/proc/self/status").read_text())[1]
    libc = ctypes.CDLL(None)
    functions = [getattr(libc, name) for name in ("mmap", "munmap", "mremap", "malloc", "free")]
    places = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    code = [ctypes.string_at(place, 16).hex() for place in places]
    return [handled, code, sorted({each.endpoint[0] for each in ucx_port.listening()})]

op_library.load()
before = look()
library.opened().create("posix,cma,tcp,self", "lo")
after = look()

os.environ["UCX_POSIX_USE_PROC_LINK"] = "n"  # else there are no files
there = set(os.listdir("/dev/shm"))
pair = meshes.pair()
files = [name for name in set(os.listdir("/dev/shm")) - there if name.startswith("ucx")]

with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda own: own.all_gather(tf.ones([1])), pair))
child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([before, after, files, code]))
"""


def test_what_opening_ucx_leaves_alone():
    before, after, files, status = json.loads(run(PROGRAM))  # UCX itself prints nothing
    assert after[:2] == before[:2], "signals and memory"
    assert (before[2], after[2]) == ([], ["127.0.0.1"]), "other interfaces"
    assert files, "else this test does not show that no file stays"
    assert not [name for name in files if os.path.exists(f"/dev/shm/{name}")]
    assert status == 0, "a forked child ends as without UCX"


# A /dev/shm of this size lets UCX 1.22 crash.
CRASH = """
from tf_adasum.transport import library

functions = library.opened()
try:
    functions.probe_in_subprocess("posix,tcp,self", "lo")
    functions.create("posix,tcp,self", "lo")
except library.UcxUnavailableError as error:
    print(error)
functions.probe_in_subprocess("tcp,self", "lo")
functions.create("tcp,self", "lo")
print("continues")
"""
MOUNT = 'mount -t tmpfs -o size=16384k tmpfs /dev/shm && exec "$@"'


def test_a_crash_of_ucx_is_an_error():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    *crash, last = run(CRASH, "unshare", "--mount", "sh", "-c", MOUNT, "sh").splitlines()
    assert last == "continues"
    # Another release of UCX may not crash; then it has made the mesh.
    assert crash in ([], ["UCX crashed while it started (Segmentation fault)"])


NAMES = ["all_to_all", "all_gather", "scatter_gram", "combine_gather"]


def test_the_ops_that_are_needed_are_those_that_are_built():
    names = dir(meshes.opened().ops)
    built = {name for name in names if re.fullmatch("tf_adasum_ucx_[a-z_]+", name)}
    built -= {name for name in built if name.endswith("_eager_fallback")}
    assert built == {f"tf_adasum_ucx_{name}" for name in NAMES}
