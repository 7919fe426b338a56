"""Backups on a disk that is too small: what `fit` says, and when; on a real file system."""

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

SIZES = {"half": 1 << 20, "one": 3 << 20, "two": 5 << 20}  # bytes; a backup takes 2 MiB

# $1: a folder; the rest: a command. The mounts end with the processes that see them.
MOUNT = "; ".join(
    [
        "set -e",
        'folder="$1"; shift',
        *(f'mount -t tmpfs -o size={size} none "$folder/{name}"' for name, size in SIZES.items()),
        'exec "$@"',
    ]
)

SCRIPT = """
import json, os, sys, warnings
import keras, numpy as np, tf_adasum

def trained(folder):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input([512]), keras.layers.Dense(512, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    backup = tf_adasum.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    epochs = []
    noting = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    x = np.zeros([2, 512])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model.fit(x, x, epochs=4, verbose=0, callbacks=[backup, noting])
            error = ""
        except OSError as raised:
            error = f"{type(raised).__name__} {raised}"
    texts = [str(each.message) for each in said if "backup" in str(each.message)]
    return {"error": error, "warnings": texts, "epochs": epochs, "left": sorted(os.listdir(folder))}

print(json.dumps({name: trained(f"{sys.argv[1]}/{name}") for name in sys.argv[2:]}))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disks")
    for name in SIZES:
        (folder / name).mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) to mount a small disk with")
    mounted = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", folder]
    if subprocess.run([*mounted, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("this user may not mount a small disk")
    command = [sys.executable, "-c", SCRIPT, folder, *SIZES]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    ended = subprocess.run(
        [*mounted, *command], env=environment, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert not any(list((folder / name).iterdir()) for name in SIZES), "mounted for it alone"
    return {"folder": folder, **json.loads(ended.stdout.splitlines()[-1])}


def test_where_none_fits_fit_does_not_begin(outcomes):
    own = outcomes["half"]
    assert own["epochs"] == [] and own["left"] == []
    assert f"{outcomes['folder']}/half has 1.0 MiB of free space, and a" in own["error"]
    assert "needs at least 2.0 MiB. Free some space" in own["error"]


def test_where_one_fits_a_warning_tells_and_the_last_good_one_stays(outcomes):
    own = outcomes["one"]
    (warning,) = own["warnings"]
    assert f"{outcomes['folder']}/one has 3.0 MiB of free space" in warning
    assert own["epochs"] == [0, 1]
    assert "No space left on device: the backup epoch-2-batch-0.backup (2.0 MiB)" in own["error"]
    assert f"cannot be written to {outcomes['folder']}/one" in own["error"]
    assert own["left"] == ["epoch-1-batch-0.backup"]


def test_where_two_fit_one_is_kept_while_the_next_is_written(outcomes):
    own = outcomes["two"]
    assert (own["error"], own["warnings"], own["epochs"]) == ("", [], [0, 1, 2, 3])
    assert own["left"] == ["epoch-3-batch-0.backup", "epoch-4-batch-0.backup"]
