"""How the workers of a launcher end, and how it ends them."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import launching
from support.launching import LEAVE_PID, LIMIT, SLEEP_WITH_CHILD, eventually, pids_in, running
from support.pace import PACE

from tf_adasum.launch import GRACE_SECONDS, launch, processes


def have_ended(count, folder):
    """Wait until all processes have ended that left their pids; return whether so many did."""
    eventually(lambda: not any(map(launching.is_running, pids_in(folder))))
    return len(pids_in(folder)) == count


def after_a_signal(number, count, *arguments):
    """Send a signal to a launcher when so many pids are left; return its exit status and stderr."""
    with running(*arguments, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: len(pids_in(arguments[-1])) == count)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
    return process.returncode, errors


def test_the_first_failure_stops_the_others_and_gives_the_code(script, tmp_path):
    path = script(
        "if index == 1:\n"
        "    while len(os.listdir(sys.argv[1])) < 5: time.sleep(0.01)\n"  # script and 4 pids
        "    print('no such file', file=sys.stderr); sys.exit(7)\n" + SLEEP_WITH_CHILD
    )
    result = launching.run("-n", 3, path, tmp_path)
    assert result.returncode == 7
    assert result.stderr.splitlines() == [
        "[worker 1] no such file",
        "tf-adasum-launch: worker 1 ended with exit status 7, stopping the others",
        "tf-adasum-launch: worker 1 failed first, with exit status 7: no such file",
        "tf-adasum-launch: ended because of it: workers 0, 2",
    ]
    assert have_ended(4, tmp_path)


@pytest.mark.parametrize("call", ["input()", "breakpoint()"])
def test_a_script_that_reads_the_terminal_gets_a_hint(script, call):
    result = launching.run("-n", 2, script(f"if index == 0: {call}\ntime.sleep(index)"))
    assert result.returncode == 1
    assert "need a terminal: start a single worker with -n 1" in result.stderr


def test_workers_and_children_that_ignore_sigterm_are_killed_after_the_grace(script, tmp_path):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # inherited by the child
    path = script(
        "folder = sys.argv[1]\n"
        "if index == 0:\n"
        "    while len(os.listdir(folder)) < 3: time.sleep(0.01)\n"  # script, worker, child
        "    sys.exit(5)\n" + ignore + SLEEP_WITH_CHILD
    )
    started = time.monotonic()
    assert launch([sys.executable, path, str(tmp_path)], 2, grace=0.5) == 5
    assert 0.5 <= time.monotonic() - started < 10 * PACE
    assert have_ended(2, tmp_path)


def test_children_left_by_a_worker_that_succeeds_are_ended(script, tmp_path):
    path = script(SLEEP_WITH_CHILD.replace("time.sleep(300)\n", ""))
    assert launch([sys.executable, path, str(tmp_path)], 2) == 0
    assert have_ended(4, tmp_path)


WAIT_FOR_A_SIGNAL = (
    "def end(number, _):\n"
    "    time.sleep(index * 0.7)\n"  # worker 1 still writes its backup
    "    open(sys.argv[1] + f'/saved{index}', 'w').close(); sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, end); signal.signal(signal.SIGUSR1, end)\n"
    + LEAVE_PID
    + "time.sleep(300)\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_that_are_asked_to_end_may_write_a_backup(script, tmp_path, number):
    arguments = ["-n", 2, "--max-restarts", 3, script(WAIT_FOR_A_SIGNAL), tmp_path]
    code, errors = after_a_signal(number, 2, *arguments)
    assert code == 75
    assert (tmp_path / "saved0").exists() and (tmp_path / "saved1").exists()
    assert not any(word in errors for word in ("failed", "restart", "stopping the others"))


def test_no_restart_after_a_signal_that_was_passed_on(script, tmp_path):
    """It ends workers that do not handle it yet, as while they import TensorFlow."""
    arguments = ["-n", 2, "--max-restarts", 3, script(LEAVE_PID + "time.sleep(300)\n"), tmp_path]
    code, errors = after_a_signal(signal.SIGUSR1, 2, *arguments)
    assert code == 128 + signal.SIGUSR1
    assert len(pids_in(tmp_path)) == 2 and "restart" not in errors


@pytest.mark.parametrize("closes_first", [False, True])
def test_the_end_of_the_reader_leaves_time_for_a_backup(script, tmp_path, closes_first):
    """A signal to a whole group ends a `tee` that reads, too."""
    slow = WAIT_FOR_A_SIGNAL.replace("index * 0.7", "6").replace(
        "time.sleep(300)", "while True: time.sleep(0.1); index or closes or print('x')"
    )
    path = script(f"closes = {not closes_first}\n" + slow)
    one = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with running("-n", 2, path, tmp_path, **one) as process:
        eventually(lambda: len(pids_in(tmp_path)) == 2)
        process.stdout.close()
        if not closes_first:
            process.send_signal(signal.SIGUSR1)
        assert process.wait(LIMIT) == 75
    assert (tmp_path / "saved0").exists() and (tmp_path / "saved1").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_the_launcher_leaves_nothing_behind(script, tmp_path, number, workers):
    arguments = ["-n", workers, "--max-restarts", 9, script(SLEEP_WITH_CHILD), tmp_path]
    ended = after_a_signal(number, 2 * workers, *arguments)
    assert ended == (128 + number, f"tf-adasum-launch: {number.name}, stopping all workers\n")
    assert have_ended(2 * workers, tmp_path)


def test_a_second_ctrl_c_kills_at_once(script, tmp_path):
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP_WITH_CHILD)
    with running("-n", 2, path, tmp_path, stderr=subprocess.PIPE) as process:
        eventually(lambda: len(pids_in(tmp_path)) == 4)
        process.send_signal(signal.SIGINT)
        assert b"SIGINT" in process.stderr.readline()  # the grace of 5 s has begun
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert time.monotonic() - started < GRACE_SECONDS / 2
    assert have_ended(4, tmp_path)


def test_an_ignored_hangup_stays_ignored(script, tmp_path):
    path = script(LEAVE_PID + "time.sleep(0.5)\n")
    command = ["nohup", sys.executable, "-m", "tf_adasum.launch"]
    with running("-n", 2, path, tmp_path, command=command, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: len(pids_in(tmp_path)) == 2)
        process.send_signal(signal.SIGHUP)
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_die_with_a_killed_launcher(script, tmp_path, workers):
    with running("-n", workers, script(LEAVE_PID + "time.sleep(300)\n"), tmp_path) as process:
        eventually(lambda: len(pids_in(tmp_path)) == workers)
        assert all(map(launching.is_running, pids_in(tmp_path)))
        process.kill()
        assert have_ended(workers, tmp_path)


def test_started_workers_are_stopped_when_a_later_one_cannot_start(monkeypatch):
    started = []
    original = processes.start_process

    def second_fails(*arguments):
        if started:
            raise BlockingIOError("no more processes")
        started.append(original(*arguments))
        return started[0]

    monkeypatch.setattr(processes, "start_process", second_fails)
    with pytest.raises(BlockingIOError):
        launch([sys.executable, "-c", "import time; time.sleep(300)"], 2)
    assert started[0].returncode == -signal.SIGTERM


def test_an_end_that_no_thread_reports_is_found(monkeypatch):
    """For example, because no thread could be started."""
    monkeypatch.setattr(processes, "report_end", lambda worker, events: None)
    assert launch([sys.executable, "-c", "exit(3)"], 2) == 3


def test_a_worker_that_does_not_die_is_left(monkeypatch, capfd):
    """A process that waits for a file system, for example."""
    monkeypatch.setattr(processes, "_SECONDS_TO_DIE", 0.2)
    left, signalled = [], processes.Worker.signal_group
    monkeypatch.setattr(processes.Worker, "signal_group", lambda worker, _: left.append(worker))
    assert launch(["sleep", "300"], 2, timeout=0.1, grace=0.1) == 124
    assert "SIGKILL does not end worker 0 (pid" in capfd.readouterr().err
    control = processes.Control()
    control.events.put(processes.StopRequest("a host was lost", 0.1))
    assert launch(["sleep", "300"], 1, control=control) == 128 + signal.SIGTERM
    for worker in left:
        signalled(worker, signal.SIGKILL)
        worker.process.wait()


def test_status_0_after_a_request_to_stop_counts_as_finished(script, tmp_path, capfd):
    """As of a script that handles SIGTERM itself, when a host joins."""
    ends = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    command = [sys.executable, script(ends + LEAVE_PID + "time.sleep(300)\n"), str(tmp_path)]
    control = processes.Control()
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(launch, command, 1, control=control)
        eventually(lambda: pids_in(tmp_path))
        control.events.put(processes.StopRequest("a host can join", LIMIT))
        assert launched.result(LIMIT) == 0
    assert "so they count as finished" in capfd.readouterr().err


def test_the_output_of_a_daemon_does_not_delay_the_end(script, tmp_path):
    daemon = "while sleep 0.05; do echo 1; done"
    path = script(
        f"daemon = subprocess.Popen(['sh', '-c', {daemon!r}], start_new_session=True)\n"
        "open(os.path.join(sys.argv[1], str(daemon.pid)), 'w').close()\n"
    )
    begin = time.monotonic()
    try:
        assert launch([sys.executable, path, str(tmp_path)], 2) == 0
        assert time.monotonic() - begin < LIMIT / 2
    finally:
        for pid in pids_in(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_the_exit_status_is_known_although_sigchld_was_ignored():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert launch([sys.executable, "-c", "exit(3)"], 2) == 3
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
