"""tf-adasum-launch, with tiny workers that do not import TensorFlow."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

import tf_adasum
from tf_adasum import launch as launcher
from tf_adasum.launch import launch, main, processes, visible_gpus, worker_environments

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))
LIMIT = 30  # seconds after which a launcher under test counts as hanging


@pytest.fixture
def script(tmp_path):
    """Write a worker script and return its path."""

    def write(text, name="worker.py"):
        path = tmp_path / name
        path.write_text("import json, os, signal, subprocess, sys, time\n" + text)
        return str(path)

    return write


def run(*arguments, **options):
    """Run the command line in a process of its own and return what it wrote."""
    command = [sys.executable, "-m", "tf_adasum.launch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)


@contextlib.contextmanager
def running(*arguments, **options):
    """Start the command line; whatever happens, it has ended after the block."""
    command = [sys.executable, "-m", "tf_adasum.launch", *map(str, arguments)]
    # As from an interactive shell, also where the tests themselves run with SIGINT ignored.
    process = subprocess.Popen(command, preexec_fn=_default_signals, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT)


def _default_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def eventually(condition, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_in(directory):
    """Return the pids workers left in files named by pid."""
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


# Workers that leave their pid in a file of that name. Each also starts a child that does.
LEAVE_PID = "open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
SLEEP_WITH_CHILD = (
    LEAVE_PID
    + "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    + "open(os.path.join(sys.argv[1], str(child.pid)), 'w').close()\n"
    + "time.sleep(300)\n"
)


# What the workers are told


def test_each_worker_gets_its_task_and_the_arguments_untouched(script):
    path = script(
        "names = 'TF_CONFIG TF_ADASUM_LAUNCHER TF_ADASUM_DEVICES_PER_WORKER'.split()\n"
        "print(json.dumps([sys.argv[1:], *(os.environ.get(name) for name in names)]))\n"
    )
    arguments = ["--lr", "0.1", "-n", "3", "--", "--help", "-m", "--timeout", ""]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = run("-n", 3, "--devices-per-worker", 2, path, *arguments, env=environment)
    assert result.returncode == 0, result.stderr
    seen = {}
    for line in result.stdout.splitlines():
        prefix, _, text = line.partition("] ")
        seen[prefix] = json.loads(text)
    assert sorted(seen) == ["[worker 0", "[worker 1", "[worker 2"]
    clusters = set()
    for index, (passed, config, launched, devices) in enumerate(seen[key] for key in sorted(seen)):
        assert passed == arguments
        assert (launched, devices) == ("1", "2")
        config = json.loads(config)
        assert config["task"] == {"type": "worker", "index": index}
        clusters.add(tuple(config["cluster"]["worker"]))
    (addresses,) = clusters
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("TF_ADASUM_SECRET", None),
        ("TF_ADASUM_SECRET", "of the user"),
        ("TF_ADASUM_SECRET_FILE", "of/the/user"),
    ],
)
def test_the_workers_have_a_secret_in_common(script, name, given):
    names = ["TF_ADASUM_SECRET", "TF_ADASUM_SECRET_FILE"]
    path = script(
        f"print(json.dumps([os.environ.get(name) for name in {names}]))\n"
        "sys.exit(0 if os.environ['TF_ADASUM_RESTART_COUNT'] == '1' else 3)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in names}
    if given:
        environment[name] = given
    result = run("-n", 2, "--max-restarts", 1, path, env=environment)
    assert result.returncode == 0, result.stderr
    told = [json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()]
    if given:
        assert all(each == [given if name == other else None for other in names] for each in told)
        return
    assert all(len(value) == 64 and file is None for value, file in told)
    assert 1 <= len({value for value, _ in told}) <= 2, "one for each start"


def test_one_worker_has_no_cluster_and_no_prefix(script):
    path = script("print(os.environ.get('TF_CONFIG'), sys.stdin.read())")
    environment = {**os.environ, "TF_CONFIG": '{"cluster": {}}'}
    result = run("-n", 1, path, env=environment, input="typed")
    assert (result.returncode, result.stdout) == (0, "None typed\n")


def test_one_worker_joins_nobody(script):
    path = script(
        "from tf_adasum.cluster.detection import find\n"
        "print(find(os.environ), find({**os.environ, 'TF_ADASUM_WORLD_SIZE': ''}) is None)"
    )
    outer = {"TF_ADASUM_COORDINATOR": "a:1", "TF_ADASUM_RANK": "3", "TF_ADASUM_WORLD_SIZE": "4"}
    outer |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
    result = run("-n", 1, path, env={**os.environ, **outer})
    assert (result.returncode, result.stdout) == (0, "None False\n")


def test_a_module_runs_as_with_python_m(script, tmp_path):
    script("print(__name__, __spec__.name, sys.argv[1:])", "some_module.py")
    result = run("-n", 1, "-m", "some_module", "-m", "x", env={**os.environ, "PYTHONPATH": "."})
    assert result.returncode == 1 and "some_module" in result.stderr  # not found from here
    environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}"}
    result = run("-n", 1, "-m", "some_module", "-m", "x", env=environment)
    assert result.stdout == "__main__ some_module ['-m', 'x']\n", result.stderr


def test_log_level_is_a_default_and_output_is_unbuffered():
    (given,) = worker_environments(["a:1"], environment={"TF_CPP_MIN_LOG_LEVEL": "0"})
    (default,) = worker_environments(["a:1"], environment={})
    assert given["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert default["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert default["PYTHONUNBUFFERED"] == "1"
    assert "TF_ADASUM_DEVICES_PER_WORKER" not in default


# GPUs


@pytest.fixture
def shares(monkeypatch):
    """Return what each worker sees of a machine's GPUs."""

    def divide(num_gpus, num_workers, per_worker):
        monkeypatch.setattr(launcher, "_count_gpus", lambda: num_gpus)
        addresses = [f"a:{index}" for index in range(num_workers)]
        workers = worker_environments(addresses, per_worker, environment={})
        return [worker.get("CUDA_VISIBLE_DEVICES") for worker in workers]

    return divide


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "per_worker", "expected"),
    [
        (4, 2, 2, ["0,1", "2,3"]),
        (4, 2, 1, ["0", "1"]),
        (4, 2, None, ["0,1", "2,3"]),
        (5, 2, None, ["0,1", "2,3"]),
        (4, 4, None, ["0", "1", "2", "3"]),
        (4, 1, 3, ["0,1,2"]),
        (4, 1, None, [None]),  # nothing to divide
        (0, 2, 2, [None, None]),  # CPUs
        (0, 2, None, [None, None]),
    ],
)
def test_gpus_are_divided_between_the_workers(shares, num_gpus, num_workers, per_worker, expected):
    assert shares(num_gpus, num_workers, per_worker) == expected


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "per_worker"), [(1, 2, None), (3, 2, 2), (3, 4, None), (1, 1, 2)]
)
def test_too_few_gpus_are_an_error(shares, num_gpus, num_workers, per_worker):
    with pytest.raises(ValueError, match=rf"Received: {num_gpus} visible GPUs"):
        shares(num_gpus, num_workers, per_worker)


def test_too_few_gpus_start_nothing_on_the_command_line(script):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "7"}
    result = run("-n", 2, script("print('started')"), env=environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert "1 visible GPUs (7)" in result.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("2, 0", ["2", "0"]), ("3,-1,4", ["3"])],
)
def test_cuda_visible_devices_is_read_as_cuda_does(value, expected):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == expected


def test_gpus_are_counted_by_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n[ $1 = -L ] && printf 'GPU 0: A (UUID: x)\\n  MIG\\nGPU 1: A (UUID: y)\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert visible_gpus({}) == ["0", "1"]
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 9\n")
    assert visible_gpus({}) == []


# Output


def test_lines_are_prefixed_and_never_mixed(script):
    path = script(
        "letter = 'ab'[json.loads(os.environ['TF_CONFIG'])['task']['index']]\n"
        "for number in range(1000):\n"
        "    print(letter * 3000, number)\n"
        "    print(letter.upper() * 100, number, file=sys.stderr)\n"
    )
    result = run("-n", 2, path)
    assert result.returncode == 0
    for text, length, letters in ((result.stdout, 3000, "ab"), (result.stderr, 100, "AB")):
        lines = text.splitlines()
        assert len(lines) == 2000
        for index, letter in enumerate(letters):
            prefix = f"[worker {index}] "
            assert [line for line in lines if line.startswith(prefix)] == [
                f"{prefix}{letter * length} {number}" for number in range(1000)
            ]


def test_only_worker_0_redraws_its_line(script):
    path = script(
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "time.sleep(index * 0.5)\n"
        "for text in ('\\r1/2 bar', '\\b\\b\\r2/2 bar', '\\n', 'dos\\r\\n', 'no newline'):\n"
        "    sys.stdout.write(text); sys.stdout.flush(); time.sleep(0.02)\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "tf_adasum.launch", "-n", "2", path],
        stdout=subprocess.PIPE,
        timeout=LIMIT,
    )
    assert result.returncode == 0
    zero, one = b"[worker 0] ", b"[worker 1] "
    # In any order of the two workers: every piece is intact and in its worker's order.
    pieces = result.stdout.splitlines(keepends=True)
    assert [piece for piece in pieces if piece.startswith(zero)] == [
        zero + piece
        for piece in (b"\r", b"1/2 bar\b\b\r", b"2/2 bar\n", b"dos\r\n", b"no newline\n")
    ]
    assert [piece for piece in pieces if piece.startswith(one)] == [
        one + piece for piece in (b"2/2 bar\n", b"dos\r\n", b"no newline\n")
    ]


def test_a_line_of_another_worker_starts_below_the_bar(capfdbinary):
    console = processes._Console(processes.queue.SimpleQueue())
    console.write(1, b"[worker 0] ", b"1/2\r")
    console.write(1, b"[worker 0] ", b"2/2\r")
    console.write(1, b"[worker 1] ", b"hello\n")
    console.write(1, b"[worker 1] ", b"again\n")
    expected = b"[worker 0] 1/2\r[worker 0] 2/2\r\n[worker 1] hello\n[worker 1] again\n"
    assert capfdbinary.readouterr().out == expected


def test_a_long_line_is_not_slow(script):
    path = script("print('x' * 1_000_000)")
    result = run("-n", 2, path)
    lines = [f"[worker {index}] {'x' * 1_000_000}" for index in range(2)]
    assert sorted(result.stdout.splitlines()) == lines


def test_one_worker_keeps_the_terminal(script):
    terminal, end = pty.openpty()
    try:
        with running("-n", 1, script("sys.exit(sys.stdout.isatty() + 40)"), stdout=end) as process:
            assert process.wait(LIMIT) == 41
    finally:
        os.close(terminal)
        os.close(end)


def test_a_slow_reader_still_gets_everything(script):
    # Fits into the pipe of each worker, but not both into the pipe of the launcher.
    path = script("for number in range(20): print('x' * 3000)")
    with running("-n", 2, path, stdout=subprocess.PIPE) as process:
        time.sleep(2.5)  # the workers have ended, the launcher waits for its reader
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert output.count(b"x" * 3000 + b"\n") == 40


def test_a_closed_output_stops_the_job(script):
    path = script("while True: print('x' * 1000)")
    with running("-n", 2, path, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(LIMIT) == 128 + signal.SIGPIPE


# Ends


def test_waits_for_all_workers(script):
    path = script(
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "time.sleep(index * 0.5)\nprint('end')\n"
    )
    result = run("-n", 2, path)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == ["[worker 0] end", "[worker 1] end"]


def test_the_first_failure_stops_the_others_and_gives_the_code(script, tmp_path):
    path = script(
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:\n"
        "    while len(os.listdir(sys.argv[1])) < 5: time.sleep(0.01)\n"  # script and 4 pids
        "    print('last words', file=sys.stderr); sys.exit(7)\n" + SLEEP_WITH_CHILD
    )
    result = run("-n", 3, path, tmp_path)
    assert result.returncode == 7
    assert result.stderr.splitlines() == [
        "[worker 1] last words",
        "tf-adasum-launch: worker 1 ended with exit code 7, stopping the others",
    ]
    pids = pids_in(tmp_path)
    assert len(pids) == 4
    eventually(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_signal_gives_128_plus_its_number(script, name):
    path = script(
        f"if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        f"    os.kill(os.getpid(), signal.{name})\ntime.sleep(300)\n"
    )
    result = run("-n", 2, path)
    assert result.returncode == 128 + getattr(signal, name)
    assert f"worker 0 ended with {name}" in result.stderr


def test_workers_and_children_that_ignore_sigterm_are_killed_after_the_grace(script, tmp_path):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # inherited by the child
    path = script(
        "folder = sys.argv[1]\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        "    while len(os.listdir(folder)) < 3: time.sleep(0.01)\n"  # script, worker, child
        "    sys.exit(5)\n" + ignore + SLEEP_WITH_CHILD
    )
    started = time.monotonic()
    assert launch([sys.executable, path, str(tmp_path)], 2, grace=0.5) == 5
    assert 0.5 <= time.monotonic() - started < 10
    pids = pids_in(tmp_path)
    assert len(pids) == 2
    eventually(lambda: not any(map(is_running, pids)))


def test_sigterm_gives_workers_time_to_end(script, tmp_path):
    path = script(
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        "    while not os.path.exists(sys.argv[1] + '/ready'): time.sleep(0.01)\n"
        "    sys.exit(5)\n"
        "def end(*_):\n"
        "    time.sleep(0.2); open(sys.argv[1] + '/saved', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(sys.argv[1] + '/ready', 'w').close()\n"
        "time.sleep(300)\n"
    )
    assert launch([sys.executable, path, str(tmp_path)], 2) == 5
    assert (tmp_path / "saved").exists()


def test_children_left_by_a_worker_that_succeeds_are_ended(script, tmp_path):
    path = script(SLEEP_WITH_CHILD.replace("time.sleep(300)\n", ""))
    assert launch([sys.executable, path, str(tmp_path)], 2) == 0
    pids = pids_in(tmp_path)
    assert len(pids) == 4
    eventually(lambda: not any(map(is_running, pids)))


def test_a_daemon_that_keeps_the_pipe_open_does_not_hold_the_launcher(script, tmp_path):
    path = script(
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print('started')\nopen(os.path.join(sys.argv[1], str(child.pid)), 'w').close()\n"
    )
    try:
        result = run("-n", 2, path, tmp_path)
        assert result.stdout.count("started") == 2
    finally:
        for pid in pids_in(tmp_path):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_the_launcher_leaves_nothing_behind(script, tmp_path, number, workers):
    path = script(SLEEP_WITH_CHILD)
    with running("-n", workers, path, tmp_path, stderr=subprocess.PIPE) as process:
        eventually(lambda: len(pids_in(tmp_path)) == 2 * workers)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number
    assert number.name.encode() in errors and b"Traceback" not in errors
    pids = pids_in(tmp_path)
    eventually(lambda: not any(map(is_running, pids)))


def test_a_second_ctrl_c_kills_at_once(script, tmp_path):
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP_WITH_CHILD)
    with running("-n", 2, path, tmp_path, stderr=subprocess.PIPE) as process:
        eventually(lambda: len(pids_in(tmp_path)) == 4)
        process.send_signal(signal.SIGINT)
        assert b"SIGINT" in process.stderr.readline()  # the grace of 5 s has begun
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert time.monotonic() - started < launcher.GRACE_SECONDS / 2
    pids = pids_in(tmp_path)
    eventually(lambda: not any(map(is_running, pids)))


def test_an_ignored_hangup_stays_ignored(script, tmp_path):
    path = script(LEAVE_PID + "time.sleep(0.5)\n")
    command = [sys.executable, "-m", "tf_adasum.launch", "-n", "2", path, str(tmp_path)]
    with subprocess.Popen(["nohup", *command], stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: len(pids_in(tmp_path)) == 2)
            process.send_signal(signal.SIGHUP)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_die_with_a_killed_launcher(script, tmp_path, workers):
    with running("-n", workers, script(LEAVE_PID + "time.sleep(300)\n"), tmp_path) as process:
        eventually(lambda: len(pids_in(tmp_path)) == workers)
        pids = pids_in(tmp_path)
        assert all(map(is_running, pids))
        process.kill()
        process.wait(LIMIT)
        eventually(lambda: not any(map(is_running, pids)))


def test_timeout_stops_all_with_124(script, tmp_path):
    path = script(SLEEP_WITH_CHILD)
    result = run("-n", 2, "--timeout", 1, path, tmp_path)
    assert result.returncode == 124
    assert "--timeout" in result.stderr
    pids = pids_in(tmp_path)
    eventually(lambda: not any(map(is_running, pids)))


def test_a_worker_that_cannot_start_is_an_error():
    with pytest.raises(FileNotFoundError):
        launch(["/nonexistent/program"], 2)


def test_started_workers_are_stopped_when_a_later_one_cannot_start(monkeypatch):
    started = []
    original = subprocess.Popen

    def second_fails(*arguments, **options):
        if started:
            raise BlockingIOError("no more processes")
        started.append(original(*arguments, **options))
        return started[0]

    monkeypatch.setattr(processes.subprocess, "Popen", second_fails)
    with pytest.raises(BlockingIOError):
        launch([sys.executable, "-c", "import time; time.sleep(300)"], 2)
    assert started[0].returncode == -signal.SIGTERM


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in processes._STOP_SIGNALS]
    assert launch(["true"], 2) == 0
    assert [signal.getsignal(number) for number in processes._STOP_SIGNALS] == before


def test_launch_works_outside_the_main_thread():
    codes = []
    thread = threading.Thread(
        target=lambda: codes.append(launch(["sh", "-c", "exit 3"], 2, timeout=LIMIT))
    )
    thread.start()
    thread.join(LIMIT)
    assert codes == [3]


# Arguments


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-n", "0", "SCRIPT"], "-n"),
        (["-n", "-2", "SCRIPT"], "-n"),
        (["-n", "two", "SCRIPT"], "-n"),
        (["SCRIPT"], "-n"),
        (["-n", "2", "--devices-per-worker", "0", "SCRIPT"], "--devices-per-worker"),
        (["-n", "2", "--timeout", "0", "SCRIPT"], "--timeout"),
        (["-n", "2", "--timeout", "nan", "SCRIPT"], "--timeout"),
        (["-n", "2", "--timeout", "inf", "SCRIPT"], "--timeout"),
        (["-n", "2", "--time", "3", "SCRIPT"], "--time"),
        (["-n", "2", "missing.py"], "missing.py"),
        (["-n", "2"], "nothing to run"),
        (["-n", "2", "--"], "nothing to run"),
        (["-n", "2", "-m"], "nothing to run"),
    ],
)
def test_unusable_arguments_are_named_and_give_2(script, capfd, arguments, named):
    path = script("print('started')")
    with pytest.raises(SystemExit) as end:
        main([path if argument == "SCRIPT" else argument for argument in arguments])
    output = capfd.readouterr()
    assert end.value.code == 2
    assert output.out == ""
    assert named in output.err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [([], 1), (["true"], 0), (["true"], 1, 0), (["true"], 1, 1, -1)]
)
def test_launch_rejects_what_it_cannot_use(arguments):
    with pytest.raises(ValueError, match="Received"):
        launch(*arguments)


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "tf-adasum-launch -n 4 train.py --lr 0.1" in capsys.readouterr().out


def test_the_launcher_the_doctor_and_the_watch_need_no_packages():
    # -S: without site-packages there is no TensorFlow, Keras or NumPy to import.
    modules = "launch doctor arguments atomic_files errors cluster.rendezvous cluster.start_timeout"
    modules += " cluster.tf_config watch.watch seams"
    code = f"import sys; sys.path.insert(0, {ROOT!r})\n"
    code += "\n".join(f"import tf_adasum.{module}" for module in modules.split())
    subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=LIMIT, check=True)


# Restarts


# Each start leaves a line with its ports; the worker that SIGKILLs itself is the last one.
FAIL_UNTIL = (
    "restart = int(os.environ['TF_ADASUM_RESTART_COUNT'])\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "index = config['task']['index']\n"
    "if index == 0:\n"
    "    with open(os.path.join(sys.argv[1], 'starts'), 'a') as file:\n"
    "        print(restart, *config['cluster']['worker'], file=file)\n"
    "    open(os.path.join(sys.argv[1], f'ready{restart}'), 'w').close()\n"
)
WAIT_FOR_WORKER_0 = (
    "while not os.path.exists(os.path.join(sys.argv[1], f'ready{restart}')): time.sleep(0.01)\n"
)


def starts_in(directory):
    """Return the ports of each start, by its number."""
    lines = [line.split() for line in (directory / "starts").read_text().splitlines()]
    assert [int(line[0]) for line in lines] == list(range(len(lines)))
    return [frozenset(line[1:]) for line in lines]


def test_a_failed_worker_starts_all_again_on_new_ports(script, tmp_path):
    path = script(
        FAIL_UNTIL
        + "if restart < 2 and index == 1:\n    "
        + WAIT_FOR_WORKER_0
        + "    os.kill(os.getpid(), signal.SIGKILL)\n"
        + "if restart < 2: time.sleep(300)\n"
        + "print('done', restart)\n"
    )
    result = run("-n", 2, "--max-restarts", 3, path, tmp_path)
    assert result.returncode == 0, result.stderr
    failed = "tf-adasum-launch: worker 1 ended with SIGKILL, stopping the others"
    lines = [failed, "tf-adasum-launch: restart 1 of 3", failed, "tf-adasum-launch: restart 2 of 3"]
    assert result.stderr.splitlines() == lines
    assert sorted(result.stdout.splitlines()) == ["[worker 0] done 2", "[worker 1] done 2"]
    assert len(set(starts_in(tmp_path))) == 3


# What asks for a worker's port as any program does, and as TensorFlow's server does.
ASK_FOR_THE_PORT = (
    "import socket\n"
    "port = int(config['cluster']['worker'][index].rpartition(':')[2])\n"
    "for reuse in (0, 1):\n"
    "    with socket.socket() as asking:\n"
    "        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)\n"
    "        try:\n"
    "            asking.bind(('', port)); asking.listen(); print(restart, reuse, 'given')\n"
    "        except OSError:\n"
    "            print(restart, reuse, 'refused')\n"
)


def test_ports_are_held_while_workers_run_after_a_restart_too(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + ASK_FOR_THE_PORT + "sys.exit(1 - restart)")
    result = run("-n", 2, "--max-restarts", 1, path, tmp_path)
    assert result.returncode == 0, result.stderr
    for worker in ("[worker 0]", "[worker 1]"):
        lines = [line for line in result.stdout.splitlines() if line.startswith(worker)]
        # The first start may be stopped by the failure of the other worker.
        assert lines[-2:] == [f"{worker} 1 0 refused", f"{worker} 1 1 given"]
    assert "0 0 refused" in result.stdout and "0 1 given" in result.stdout


def test_ports_are_none_that_the_system_gives_to_others(script, tmp_path):
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    if last - first > 55_000:
        pytest.skip("the system gives nearly all ports to others")
    assert run("-n", 3, script(FAIL_UNTIL), tmp_path).returncode == 0
    (addresses,) = starts_in(tmp_path)
    for address in addresses:
        assert not first <= int(address.rpartition(":")[2]) <= last


def test_restarts_are_counted_together_and_end_with_the_last_code(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "if index == restart % 2: sys.exit(5 + restart)")
    result = run("-n", 2, "--max-restarts", 2, path, tmp_path)
    assert result.returncode == 7
    assert len(starts_in(tmp_path)) == 3
    assert result.stderr.splitlines()[-1].endswith("exit code 7, stopping the others")


def test_without_the_option_there_is_one_start(script, tmp_path):
    result = run("-n", 2, script(FAIL_UNTIL + "sys.exit(5)"), tmp_path)
    assert result.returncode == 5 and "restart" not in result.stderr


def test_wrong_usage_is_not_tried_again(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(2)")
    result = run("-n", 2, "--max-restarts", 3, path, tmp_path)
    assert result.returncode == 2 and len(starts_in(tmp_path)) == 1


@pytest.mark.parametrize("fails", [False, True], ids=["while it runs", "before a restart"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_is_final(script, tmp_path, number, fails):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + ("sys.exit(5)" if fails else "time.sleep(300)"))
    arguments = ["-n", 2, "--max-restarts", 9, path, tmp_path]
    with running(*arguments, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: (tmp_path / "ready0").exists())
        if fails:
            assert "exit code 5" in process.stderr.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
    # One that comes while the others are being stopped does not hide why they were.
    assert process.returncode in ({128 + number, 5} if fails else {128 + number})
    assert "restart" not in errors and len(starts_in(tmp_path)) == 1


def test_the_timeout_is_for_all_starts_together(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(5)")
    result = run("-n", 2, "--max-restarts", 1000, "--timeout", 2.5, path, tmp_path)
    assert result.returncode == 124
    assert 1 <= len(starts_in(tmp_path)) <= 3


def test_a_negative_number_of_restarts_is_wrong_usage(script):
    result = run("-n", 1, "--max-restarts", -1, script("print('started')"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "max_restarts=-1" in result.stderr
