"""`tf_adasum.run`: functions and scripts on workers that do not import TensorFlow."""

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from support.launching import LIMIT, eventually, is_running

import tf_adasum
from tf_adasum.launch import function_worker
from tf_adasum.launch.run import run

ROOT = pathlib.Path(tf_adasum.__file__).parents[1]


def place(*arguments):
    import json

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    print("here", config.get("task", {}).get("index"))
    return [config.get("task"), os.environ.get("TF_ADASUM_DEVICES_PER_WORKER"), *arguments]


def test_it_returns_what_worker_0_returns_and_shows_what_all_write(capsys):
    assert tf_adasum.run is run
    task = {"type": "worker", "index": 0}
    assert run(place, workers=2, args=[1.5, "ä"], devices_per_worker=3) == [task, "3", 1.5, "ä"]
    output = capsys.readouterr()
    assert sorted(output.out.splitlines()) == ["[worker 0] here 0", "[worker 1] here 1"]
    assert output.err == ""
    assert run(place, 1) == [None, None]
    assert capsys.readouterr().out == "here None\n"


def who_may_read(temporary):
    (folder,) = (path for path in pathlib.Path(temporary).iterdir() if path.is_dir())
    return folder.name, oct(folder.stat().st_mode), sys.argv


def test_what_is_sent_is_read_by_this_user_alone_and_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, mode, argv = run(who_may_read, workers=1, args=[str(tmp_path)])
    assert name.startswith("tf_adasum_") and mode == "0o40700" and argv == ["-c"]
    assert list(tmp_path.iterdir()) == []


def test_a_script(script, capsys):
    path = script("print('ö', *sys.argv[1:]); sys.exit(int(sys.argv[1]))")
    assert run(path, workers=2, args=[0, "x"]) is None
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker 0] ö 0 x", "[worker 1] ö 0 x"]
    with pytest.raises(RuntimeError, match=r"worker [01] of 2 failed, with exit status 7$"):
        run(pathlib.Path(path), workers=2, args=[7])


class WorkerLostError(RuntimeError):
    pass


def fails_on_1(folder):
    import json

    ready = os.path.join(folder, "ready")
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        while not os.path.exists(ready):
            time.sleep(0.01)
        raise WorkerLostError("worker 1 (a:1) failed: ValueError: bad shape")
    try:
        raise KeyError("inner")
    except KeyError as error:
        open(ready, "w").close()
        raise ValueError("bad shape") from error


def test_the_error_names_the_worker_and_has_its_traceback(tmp_path):
    with pytest.raises(RuntimeError, match="worker 1 of 2 failed") as raised:
        run(fails_on_1, workers=2, args=[str(tmp_path)])
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("ValueError: bad shape") and lines[-1] == "ValueError: bad shape"
    assert "KeyError: 'inner'" in lines and '    raise ValueError("bad shape") from error' in str(
        raised.value
    )
    assert "function_worker" not in str(raised.value)


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_signal_is_named():
    with pytest.raises(RuntimeError, match=r"worker 0 of 1 failed, with SIGKILL \(killed: poss"):
        run(kills_itself, workers=1)


def ends(code, how):
    os._exit(code) if how == "at once" else sys.exit(code)


@pytest.mark.parametrize("how", ["at once", "politely"])
def test_a_function_that_does_not_return_is_an_error(how):
    words = "worker 0 of 2 ended with exit status 0 before the function returned"
    with pytest.raises(RuntimeError, match=words):
        run(ends, workers=2, args=[0, how])


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def returns_what_cannot_be_read():
    return Unreadable()


def test_a_result_that_cannot_be_read_back_is_named():
    with pytest.raises(RuntimeError, match="cannot be read in this process: ValueError: inv"):
        run(returns_what_cannot_be_read, workers=1)


def forgets_its_place():
    import json

    rank = json.loads(os.environ.pop("TF_CONFIG"))["task"]["index"]
    time.sleep(0.5 * rank)
    return rank


def test_the_result_is_worker_0_s_whatever_the_function_does_to_its_environment():
    assert run(forgets_its_place, workers=2) == 0


class History:
    """As Keras's."""

    def __init__(self):
        self.model, self.history = threading.Lock(), {"loss": [1.0]}


def test_a_history_comes_without_its_model():
    result = pickle.loads(function_worker._result(History()))
    assert (result.history, result.model) == ({"loss": [1.0]}, None)


def returns_a_lock():
    return threading.Lock()


def test_what_cannot_be_sent_is_named():
    with pytest.raises(ValueError, match=r"place cannot be sent to the workers.*inside the"):
        run(place, args=[threading.Lock()])
    with pytest.raises(RuntimeError, match="The value that the function returned cannot be sent"):
        run(returns_a_lock, workers=1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((place, 0), "workers=0"),
        ((place, True), "workers=True"),
        ((place, 2.0), "workers=2.0"),
        ((3,), "function_or_script=3"),
        (("missing.py",), "missing.py"),
    ],
)
def test_unusable_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        run(*arguments)
    with pytest.raises(ValueError, match=r"must be a list of arguments.*args='ab'"):
        run(place, 1, args="ab")
    with pytest.raises(ValueError, match="devices_per_worker=0"):
        run(place, 1, devices_per_worker=0)


def test_too_few_gpus_are_an_error_here(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=r"1 visible GPUs \(7\)"):
        run(place, workers=2)


# A program as a notebook is one: its function is no module's.
NOTEBOOK = """
import os, signal, sys, time, tf_adasum
FOLDER = sys.argv[1]

def train():
    open(os.path.join(FOLDER, str(os.getpid())), "w").close()
    time.sleep({seconds})
    return FOLDER

try:
    print("returned", tf_adasum.run(train, workers=2))
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
assert "tensorflow" not in sys.modules
"""


def start_notebook(tmp_path, seconds, *options):
    (tmp_path / "notebook.py").write_text(NOTEBOOK.format(seconds=seconds))
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder, subprocess.Popen(
        [sys.executable, *options, tmp_path / "notebook.py", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pids_in(folder):
    return [int(path.name) for path in folder.iterdir()]


def test_a_function_of_the_main_program(tmp_path):
    pytest.importorskip("cloudpickle")
    folder, process = start_notebook(tmp_path, 0)
    output, errors = process.communicate(timeout=LIMIT)
    assert (output, errors) == (f"returned {folder}\n", "")
    assert len(pids_in(folder)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_cell(tmp_path, number):
    pytest.importorskip("cloudpickle")
    folder, process = start_notebook(tmp_path, 300)
    try:
        eventually(lambda: len(pids_in(folder)) == 2)
        process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    if number == signal.SIGINT:
        assert (process.returncode, output) == (0, "interrupted True\n")
    eventually(lambda: not any(map(is_running, pids_in(folder))))


def test_without_cloudpickle_an_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match="pip install cloudpickle"):
        run(lambda: 1)
    function_worker.write_call(str(tmp_path), place, [])  # that of a module needs none
