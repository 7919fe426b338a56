"""What workers find out about UCX when they start: where it is there, slow or missing."""

import os
import shutil
import subprocess
import sys

import pytest
from support import meshes
from support.worker_group import worker_environment

from tf_adasum.transport import argument

PROGRAM = """
import ctypes, json, logging, os, sys, zlib
logging.basicConfig(level=logging.INFO)  # the details of the transport
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
{prelude}
import keras, numpy as np, tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy({arguments})
with strategy.scope():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(1500), keras.layers.Dense(900)]
    model = keras.Sequential([keras.layers.Input([4]), *layers])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
print("trained", zlib.crc32(b"".join(map(bytes, model.get_weights()))))
"""
WITHOUT_LIBRARY = "if rank == 1: sys.path.insert(0, {!r})"
# As in a container whose processes may not look into each other.
NOT_LOOKED_INTO = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE"
WITHOUT_PTRACE = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
SMALL = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
SMALL_SHARED_MEMORY = ["unshare", "--mount", "sh", "-c", SMALL, "sh"]


@pytest.fixture(scope="module", autouse=True)
def ucx():
    meshes.opened()


def played(folder, arguments="", prelude="", prefix=(), variables=None):
    """The exit status, the details at the start, what each worker has printed, and all output.

    Nothing says what carries the gradients but the arguments.
    """
    path = folder / "program.py"
    path.write_text(PROGRAM.format(arguments=arguments, prelude=prelude))
    command = [*prefix, sys.executable, "-m", "tf_adasum.launch", "-n", "2", str(path)]
    ended = subprocess.run(
        command,
        env={**worker_environment([], 0, devices=1), argument.VARIABLE: "", **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    lines = ended.stdout.splitlines()
    found = [line for line in lines if "INFO:tf_adasum:TF_CONFIG: 2 workers" in line]
    trained = [line.partition("trained ")[2] for line in lines if "trained " in line]
    return ended.returncode, "".join(found), trained, ended.stdout


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What is printed where TensorFlow carries the gradients."""
    code, line, trained, output = played(tmp_path_factory.mktemp("stock"), 'transport="tensorflow"')
    assert code == 0 and line.endswith("radix plan [2]") and len(set(trained)) == 1, output
    return trained


def without_library(folder):
    """Lines of a program whose worker 1 finds a UCX that cannot be opened."""
    folder = folder / "of worker 1"
    path = folder / "libucx" / "lib" / "libucp.so.0"
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    (folder / "libucx" / "__init__.py").touch()
    return WITHOUT_LIBRARY.format(str(folder))


@pytest.mark.feature('`transport="auto"`, the default: the fastest that works on all workers')
@pytest.mark.parametrize(
    ("case", "over"),
    [
        pytest.param("as it is", "UCX", marks=pytest.mark.slow),
        ("one has no library", "TensorFlow's collectives (UCX is not used: worker 1 (127.0.0.1:"),
        pytest.param("TCP is asked for", "UCX", marks=pytest.mark.slow),
        pytest.param("small /dev/shm", "UCX", marks=pytest.mark.slow),
        pytest.param("no single copies", "UCX", marks=pytest.mark.slow),
    ],
)
def test_auto(tmp_path, expected, case, over):
    options = {
        "as it is": dict,
        "one has no library": lambda: {"prelude": without_library(tmp_path)},
        "TCP is asked for": lambda: {"variables": {"UCX_TLS": "tcp,self"}},
        "small /dev/shm": lambda: {"prefix": SMALL_SHARED_MEMORY},
        "no single copies": lambda: {"prefix": WITHOUT_PTRACE, "prelude": NOT_LOOKED_INTO},
    }[case]()
    if "prefix" in options and (os.geteuid() != 0 or not shutil.which(options["prefix"][0])):
        pytest.skip("needs root, setpriv and unshare")
    code, line, trained, output = played(tmp_path, **options)
    assert code == 0, output
    assert f"radix plan [2], over {over}" in line, output
    if over == "UCX":
        assert "TensorFlow's collectives: " in line
        assert ("(UCX_TLS=tcp,self; lo)" in line) == (case == "TCP is asked for")
    else:
        assert "libucp.so.0" in line
    assert trained == expected


@pytest.mark.slow
def test_ucx_is_refused_by_all_where_one_worker_has_none(tmp_path):
    code, _, trained, output = played(
        tmp_path, 'transport="ucx"', prelude=without_library(tmp_path)
    )
    assert code == 1 and not trained
    said = "transport='ucx' cannot be used: UCX is not used: worker 1 (127.0.0.1:"
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"[worker {rank}]")]
        assert any(said in line for line in lines), output
