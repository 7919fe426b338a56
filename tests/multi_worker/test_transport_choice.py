"""How workers choose a transport when they start: UCX works, is slow or is missing."""

import os
import shutil
import subprocess
import sys

import pytest
from support import meshes
from support.pace import PACE
from support.worker_group import worker_environment

from tf_adasum.environment_variables import TRANSPORT

PROGRAM = """
import ctypes, json, logging, os, sys, zlib
logging.basicConfig(level=logging.INFO)  # the details of the transport
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
{prelude}
import keras, numpy as np, tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy()
with strategy.scope():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(1500), keras.layers.Dense(900)]
    model = keras.Sequential([keras.layers.Input([4]), *layers])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
print("trained", zlib.crc32(b"".join(map(bytes, model.get_weights()))))
"""
# As in a container whose processes may not look into each other.
NOT_LOOKED_INTO = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE"
WITHOUT_PTRACE = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
SMALL = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
SMALL_SHARED_MEMORY = ["unshare", "--mount", "sh", "-c", SMALL, "sh"]
CAN_UNSHARE = os.geteuid() == 0 and all(map(shutil.which, ["setpriv", "unshare"]))


@pytest.fixture(scope="module", autouse=True)
def ucx():
    meshes.opened()


def trained(folder, prelude="", prefix=()):
    """The details at the start, and what each worker printed.

    If the prelude asks for it, worker 1 finds the module of a UCX that cannot be opened.
    """
    library = folder / "of worker 1" / "libucx" / "lib" / "libucp.so.0"
    library.parent.mkdir(parents=True)
    library.write_text("not a library")
    (folder / "of worker 1" / "libucx" / "__init__.py").touch()
    path = folder / "program.py"
    path.write_text(PROGRAM.format(prelude=prelude))
    ended = subprocess.run(
        [*prefix, sys.executable, "-m", "tf_adasum.launch", "-n", "2", str(path)],
        env={**worker_environment([], 0, devices=1), TRANSPORT: ""},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100 * PACE,
    )
    assert ended.returncode == 0, ended.stdout
    lines = ended.stdout.splitlines()
    (found,) = [line for line in lines if "INFO:tf_adasum:TF_CONFIG: 2 workers" in line]
    return found, [line.partition("trained ")[2] for line in lines if "trained " in line]


needs_unshare = pytest.mark.skipif(not CAN_UNSHARE, reason="needs root and unshare")


@pytest.mark.parametrize(
    ("options", "over", "text"),
    [
        pytest.param(
            {"prelude": 'if rank == 1: sys.path.insert(0, "of worker 1")'},
            "TensorFlow's collectives (UCX is not used: worker 1 (127.0.0.1:",
            "libucp.so.0",
            id="one has no library",
        ),
        pytest.param(
            {"prefix": SMALL_SHARED_MEMORY}, "UCX", "", id="small /dev/shm", marks=needs_unshare
        ),
        pytest.param(
            {"prefix": WITHOUT_PTRACE, "prelude": NOT_LOOKED_INTO},
            *("UCX", "(TCP; lo)"),
            id="no single copies",
            marks=needs_unshare,
        ),
    ],
)
@pytest.mark.slow
def test_auto(tmp_path, options, over, text):
    """What UCX computes is compared with TensorFlow's collectives in test_transport.py."""
    line, weights = trained(tmp_path, **options)
    assert f"radix plan [2], over {over}" in line
    assert text in line
    assert len(set(weights)) == 1
