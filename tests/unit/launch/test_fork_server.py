"""Workers that the fork server starts are like workers that the launcher starts itself."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.launching import LIMIT, eventually, is_running, pids_in, running

from tf_adasum.launch.fork_server import ForkServer
from tf_adasum.launch.worker_process import Worker

SHOWS_ITSELF = """\
print(__name__, __file__, sys.argv[1:], sys.path[0], os.environ.get("OWN"), "HOME" in os.environ)
print(os.getsid(0) == os.getpid(), os.getppid(), sys.stdin.read() == "", file=sys.stderr)
"""


@contextlib.contextmanager
def fork_server(*modules):
    """A `ForkServer` that has tried to import these modules."""
    with ForkServer(os.environ, modules) as started:
        eventually(started.is_ready)
        yield started


@pytest.fixture(scope="module")
def server():
    with fork_server("a_module_that_is_not_installed", "multiprocessing") as started:
        yield started


@pytest.fixture
def run(server):
    """Run a worker; return its exit status, and what it wrote to stdout and stderr."""

    def to_its_end(*arguments, environment=(), start=server.start):
        command = [sys.executable, "-u", *map(str, arguments)]
        process = start(command, dict(environment), set(), True)
        with process.stdout, process.stderr:
            output, errors = process.stdout.read().decode(), process.stderr.read().decode()
        return process.wait(), output, errors

    return to_its_end


def test_a_script_runs_as_with_python(run, script, tmp_path):
    path = script(SHOWS_ITSELF)
    status, output, errors = run(path, "--lr", "0.1", environment={"OWN": "7"})
    assert status == 0
    assert output == f"__main__ {path} ['--lr', '0.1'] {tmp_path} 7 False\n"
    assert errors == f"True {os.getpid()} True\n"


def test_a_module_runs_as_with_python_m(run, script, tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    script(SHOWS_ITSELF, "package/__main__.py")
    monkeypatch.chdir(tmp_path)
    with fork_server() as own:
        status, output, _ = run("-m", "package", "x", start=own.start)
    path = tmp_path / "package" / "__main__.py"
    assert (status, output) == (0, f"__main__ {path} ['x'] {tmp_path} None False\n")


def test_a_fork_server_that_was_killed_is_started_again(run, script):
    with fork_server("json") as own:
        own._process.kill()
        eventually(lambda: own._process.poll() is not None)
        assert not own.is_ready()
        eventually(own.is_ready)
        assert run(script("print('trained')"), start=own.start)[:2] == (0, "trained\n")


def test_an_error_is_shown_as_by_python(run, script):
    path = script("def fail():\n    raise ValueError('bad')\nfail()\n")
    expected = subprocess.run([sys.executable, path], capture_output=True, text=True)
    status, _, errors = run(path)
    assert (status, errors) == (expected.returncode, expected.stderr)


def test_an_invalid_script_is_shown_as_by_python(run, script):
    path = script("x: int = 1\nx = (\n")
    expected = subprocess.run([sys.executable, path], capture_output=True, text=True)
    status, _, errors = run(path)
    assert (status, errors) == (expected.returncode, expected.stderr)


def test_annotations_are_those_of_the_script(run, script):
    assert run(script("x: int\nprint(__annotations__)"))[1] == "{'x': <class 'int'>}\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [("sys.exit(75)", 75), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_the_exit_status_is_that_of_the_script(run, script, text, status):
    assert run(script(text))[0] == status


def test_processes_of_multiprocessing_find_the_script(run, script):
    path = script(
        "import multiprocessing\n"
        "class Result:\n    pass\n"
        "def work(_): return Result()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map_async(work, [1]).get(30)[0].__class__ is Result)\n"
    )
    assert run(path, environment={"PATH": os.environ["PATH"]})[:2] == (0, "True\n")


def test_a_folder_runs_as_with_python(run, script, tmp_path):
    (tmp_path / "folder").mkdir()
    script("print(__name__)", "folder/__main__.py")
    assert run(tmp_path / "folder")[:2] == (0, "__main__\n")


def test_workers_have_different_random_numbers(run, script):
    path = script("import random; print(random.random())")
    assert run(path)[1] != run(path)[1]


def test_a_worker_and_its_children_are_stopped_together(server, script, tmp_path):
    path = script(
        "child = subprocess.Popen(['sleep', '300'])\n"
        "for pid in (os.getpid(), child.pid): open(f'{sys.argv[1]}/{pid}', 'w').close()\n"
        "child.wait()\n"
    )
    (folder := tmp_path / "pids").mkdir()
    command = [sys.executable, "-u", path, str(folder)]
    process = server.start(command, dict(os.environ), set(), True)
    eventually(lambda: len(pids_in(folder)) == 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    eventually(lambda: not any(map(is_running, pids_in(folder))))
    process.stdout.close()
    process.stderr.close()


def test_the_launcher_reaps_what_a_worker_left_behind(server, script):
    path = script("print(subprocess.Popen(['sleep', '300']).pid)")
    process = server.start([sys.executable, "-u", path], dict(os.environ), set(), True)
    child = int(process.stdout.readline())
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    worker = Worker(0, process)
    reader = threading.Thread(target=process.stdout.read)  # until the child ends
    reader.start()
    worker.readers.append(reader)
    assert worker.reap().code == 0
    assert not os.path.exists(f"/proc/{child}")
    process.stdout.close()
    process.stderr.close()


def test_all_processes_end_with_a_launcher_that_is_killed(script, tmp_path):
    (folder := tmp_path / "pids").mkdir()
    leave = "open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(300)\n"
    program = script(
        "from tf_adasum.launch.fork_server import ForkServer\n"
        "server = ForkServer(os.environ, modules=())\n"
        "while not server.is_ready(): time.sleep(0.01)\n"
        "command = [sys.executable, '-u', *sys.argv[1:]]\n"
        "process = server.start(command, dict(os.environ), set(), False)\n"
        "open(f'{sys.argv[2]}/{server._process.pid}', 'w').close(); time.sleep(300)\n",
        "launcher.py",
    )
    launcher = subprocess.Popen([sys.executable, program, script(leave), folder])
    with contextlib.ExitStack() as stack:
        stack.callback(launcher.wait)
        stack.callback(launcher.kill)
        eventually(lambda: len(pids_in(folder)) == 2)
    eventually(lambda: not any(map(is_running, pids_in(folder))))


def test_modules_beside_the_launcher_are_not_imported(script, tmp_path, monkeypatch):
    script("raise RuntimeError", "broken.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with fork_server("broken"):
        pass


def test_imports_that_fail_are_an_error(script, tmp_path, monkeypatch):
    script("raise RuntimeError('no such device')", "broken.py")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    expected = "--preload: broken cannot be imported: RuntimeError: no such device"
    with pytest.raises(ConnectionError, match=expected), fork_server("broken"):
        pass


def test_other_commands_are_refused(server):
    with pytest.raises(ValueError, match="--preload: expected a command that begins"):
        server.start(["sh", "-c", "exit"], {}, set(), True)


def test_a_fork_server_that_has_ended_is_an_error(script):
    with fork_server() as own:
        own._process.kill()
        with pytest.raises(ConnectionError, match="--preload: the process that imports TensorFlow"):
            own.start([sys.executable, "-u", script("")], {}, set(), True)


def test_a_signal_ends_the_wait_for_the_imports(script, tmp_path):
    with running("-n", 2, "--preload", script(""), stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: "fork_server" in children_of(process.pid))
        time.sleep(0.5)  # until the launcher handles signals; the imports take longer
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == "tf-adasum-launch: SIGINT, stopping all workers\n"
    assert time.monotonic() - begun < 2


def children_of(pid):
    """Return the commands of the children of a process."""
    listed = subprocess.run(
        ["ps", "-wwo", "args=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return listed.stdout


@pytest.mark.costly
def test_all_workers_restart_without_importing_tensorflow_again(script, tmp_path):
    path = script(
        "was_imported = 'tensorflow' in sys.modules\n"
        "restart = int(os.environ['TF_ADASUM_RESTART_COUNT'])\n"
        "import tf_adasum\n"
        "strategy = tf_adasum.AdasumMirroredStrategy()\n"
        "print(restart, was_imported, strategy.num_replicas_in_sync)\n"
        "if restart == 0: sys.exit(index)\n"
    )
    arguments = ["-n", 2, "--preload", "--max-restarts", 1, path]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with running(*arguments, **streams) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    expected = [f"[worker {rank}] {restart} True 2" for rank in (0, 1) for restart in (0, 1)]
    assert sorted(output.splitlines()) == expected
