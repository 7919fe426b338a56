"""What opening UCX does to a process, and which compiled op it takes."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support import meshes

from tf_adasum.ops import library as op_library
from tf_adasum.transport import library

ROOT = Path(__file__).parents[3]

# Handlers of signals, the code of functions that UCX could patch, and ports that are listened on.
LOOK = """
import ctypes, json, os, re
from pathlib import Path
from tf_adasum.ops import library as op_library
from tf_adasum.transport import library

def handled():
    return re.search(r"SigCgt:\\s*(\\w+)", Path("/proc/self/status").read_text())[1]

def code():
    libc = ctypes.CDLL(None)
    functions = [getattr(libc, name) for name in ("mmap", "munmap", "mremap", "malloc", "free")]
    places = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    return [ctypes.string_at(place, 16).hex() for place in places]

def listening():
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in own:
                found.append(local.split(":")[0])
    return found

op_library.load()
before = [handled(), code(), listening()]
functions = library.opened()
functions.create("posix,cma,tcp,self", "lo")
print(json.dumps({"before": before, "after": [handled(), code(), listening()]}))
"""


def test_signals_memory_and_other_interfaces_are_left_alone():
    meshes.opened()
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)  # UCX itself says nothing there
    assert seen["after"][:2] == seen["before"][:2]
    assert seen["before"][2] == []
    assert set(seen["after"][2]) == {"0100007F"}, "127.0.0.1, in the kernel's form"


# A /dev/shm of this size lets UCX 1.22 crash.
CRASH = """
from tf_adasum.transport import library

functions = library.opened()
try:
    functions.rehearse("posix,tcp,self", "lo")
    functions.create("posix,tcp,self", "lo")
except library.Unavailable as error:
    print(error)
functions.rehearse("tcp,self", "lo")
functions.create("tcp,self", "lo")
print("goes on")
"""
MOUNT = 'mount -t tmpfs -o size=16384k tmpfs /dev/shm && exec "$@"'


def test_a_crash_of_ucx_is_an_error():
    meshes.opened()
    command = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", sys.executable, "-c", CRASH]
    if os.geteuid() != 0 or not shutil.which(command[0]):
        pytest.skip("needs root and unshare")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    *crash, last = done.stdout.splitlines()
    assert last == "goes on"
    # Another release of UCX may not crash; then it has made the mesh.
    assert crash in ([], ["UCX crashes where it starts (Segmentation fault)"])


FILES = """
import os
from support import meshes

before = set(os.listdir("/dev/shm"))
meshes.pair()
print(len([name for name in set(os.listdir("/dev/shm")) - before if name.startswith("ucx")]))
print(*(set(os.listdir("/dev/shm")) - before))
"""


def test_no_file_stays_in_dev_shm():
    meshes.opened()
    done = subprocess.run(
        [sys.executable, "-c", FILES],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "UCX_POSIX_USE_PROC_LINK": "n",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    count, names = done.stdout.splitlines()
    assert int(count) > 0, "else this test shows nothing"
    assert not [name for name in names.split() if os.path.exists(f"/dev/shm/{name}")]


NAMES = ["all_to_all", "all_gather", "scatter_gram", "combine_gather"]


def opened_with(monkeypatch, names, op=lambda channel: None):
    """Call `library.opened` in a process whose compiled op has these of the ops over UCX."""
    ops = types.SimpleNamespace(**{f"tf_adasum_ucx_{name}": op for name in names})
    status = types.SimpleNamespace(reason=None, path="the library's")
    monkeypatch.setattr(op_library, "load", lambda: ops)
    monkeypatch.setattr(op_library, "status", lambda: status)
    monkeypatch.setattr(library, "Library", lambda path, ops: (path, ops))
    return library.opened.__wrapped__(), ops


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "built without UCX's headers"),
        (NAMES[:2], "is older than this package and lacks scatter_gram, combine_gather: build it"),
        (NAMES[:3], "lacks combine_gather:"),
        (NAMES[1:], "lacks all_to_all:"),
    ],
)
def test_all_ops_are_needed(monkeypatch, names, message):
    with pytest.raises(library.Unavailable, match=re.escape(message)):
        opened_with(monkeypatch, names)


def test_ops_with_other_arguments_are_older(monkeypatch):
    with pytest.raises(library.Unavailable, match="lacks the argument channel: build it again"):
        opened_with(monkeypatch, NAMES, op=lambda turn: None)


def test_a_library_with_all_ops_is_taken(monkeypatch):
    (path, taken), ops = opened_with(monkeypatch, NAMES)
    assert path == "the library's" and taken is ops


def test_the_ops_that_are_needed_are_those_that_are_built():
    names = dir(meshes.opened().ops)
    built = {name for name in names if re.fullmatch("tf_adasum_ucx_[a-z_]+", name)}
    built -= {name for name in built if name.endswith("_eager_fallback")}
    assert built == {f"tf_adasum_ucx_{name}" for name in NAMES}


FORK = """
import os
import threading
import tensorflow as tf
from support import meshes

def gather(own):
    own.all_gather(tf.ones([1]))

threads = [threading.Thread(target=gather, args=[own]) for own in meshes.pair()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_ends_as_without_ucx():
    meshes.opened()
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
