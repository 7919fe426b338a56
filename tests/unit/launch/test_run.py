"""`tf_adasum.run`: functions and scripts on workers that do not import TensorFlow."""

import atexit
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from support.launching import LEAVE_PID, LIMIT, eventually, is_running, pids_in

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
    with pytest.raises(RuntimeError, match=r"^worker [01] failed first, with exit status 7$"):
        run(pathlib.Path(path), workers=2, args=[7])


def fails_on_1(folder):
    import json

    from tf_adasum.cluster import error_file
    from tf_adasum.errors import WorkerLostError

    def take_long():
        open(ready, "w").close()
        time.sleep(300)

    error_file.begin()
    ready = os.path.join(folder, "ready")
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        while not os.path.exists(ready):
            time.sleep(0.01)
        raise WorkerLostError("worker 1 (a:1) failed: ValueError: bad shape")
    atexit.register(take_long)  # called when the traceback has been printed
    raise ValueError("bad shape")


def test_the_error_names_the_worker_that_failed_first(tmp_path, capsys):
    with pytest.raises(RuntimeError, match=r"^worker 1 failed first: ValueError: bad shape$"):
        run(fails_on_1, workers=2, args=[str(tmp_path)])
    said = re.findall("^tf-adasum-launch: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert said == [
        "worker 0 ended with exit status 1, stopping the others",
        "worker 1 failed first: ValueError: bad shape",
        "ended because of it: worker 0",
    ]


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    ("function", "workers", "message"),
    [
        (sys.exit, 2, "worker 0 ended with exit status 0 before the function returned"),
        (Unreadable, 1, "cannot be read in this process: ValueError: inv"),
        (threading.Lock, 1, "The value that the function returned cannot be sent"),
    ],
)
def test_a_function_without_a_result_is_an_error(function, workers, message):
    with pytest.raises(RuntimeError, match=message):
        run(function, workers=workers)


def forgets_its_place():
    import json

    rank = json.loads(os.environ.pop("TF_CONFIG"))["task"]["index"]
    time.sleep(0.5 * rank)  # the last one to write would win
    return rank


def test_the_result_is_worker_0_s_whatever_the_function_does_to_its_environment():
    assert run(forgets_its_place, workers=2) == 0


@pytest.mark.parametrize(
    ("function", "options", "named"),
    [
        (place, {"workers": 0}, "workers=0"),
        (place, {"workers": True}, "workers=True"),
        (place, {"workers": 2.0}, "workers=2.0"),
        (place, {"devices_per_worker": 0}, "devices_per_worker=0"),
        (place, {"args": "ab"}, r"must be a list of arguments.*args='ab'"),
        (place, {"args": [threading.Lock()]}, r"place cannot be sent to the workers.*inside the"),
        (3, {}, "function_or_script=3"),
        ("missing.py", {}, "missing.py"),
    ],
)
def test_unusable_arguments_are_named(function, options, named):
    with pytest.raises(ValueError, match=named):
        run(function, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_notebook(script, tmp_path, number):
    path = script(LEAVE_PID + "time.sleep(300)")
    code = f"import tf_adasum; tf_adasum.run({path!r}, workers=2, args=[{str(tmp_path)!r}])"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: len(pids_in(tmp_path)) == 2)
            process.send_signal(number)
            assert process.wait(LIMIT) == -number
        finally:
            process.kill()
    eventually(lambda: not any(map(is_running, pids_in(tmp_path))))


def test_without_cloudpickle_an_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match="pip install cloudpickle"):
        run(lambda: 1)
    function_worker.write_call(str(tmp_path), place, [])  # that of a module needs none
