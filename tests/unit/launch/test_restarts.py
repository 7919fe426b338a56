"""All workers start again when one has failed."""

import signal
import subprocess

import pytest
from support.launching import FAIL_UNTIL, LIMIT, WAIT_FOR_WORKER_0, run, running, starts_in


def test_a_failed_worker_starts_all_again_on_new_ports_that_are_held(script, tmp_path):
    path = script(
        FAIL_UNTIL
        + "if restart < 2 and index == 1:\n    "
        + WAIT_FOR_WORKER_0
        + "    os.kill(os.getpid(), signal.SIGKILL)\n"
        + "if restart < 2: time.sleep(300)\n"
        + "import socket\n"
        + "try: socket.socket().bind(('', int(config['cluster']['worker'][index][10:])))\n"
        + "except OSError: print('port held after restart', restart)\n"
    )
    result = run("-n", 2, "--max-restarts", 3, path, tmp_path)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "worker" not in line]
    assert lines == [f"tf-adasum-launch: restart {restart} of 3" for restart in (1, 2)]
    killed = "worker 1 failed first, with SIGKILL (killed: possibly out of memory)"
    assert result.stderr.count(killed) == 2
    held = [f"[worker {index}] port held after restart 2" for index in (0, 1)]
    assert sorted(result.stdout.splitlines()) == held
    assert len(set(starts_in(tmp_path))) == 3


def test_restarts_are_counted_together_and_end_with_the_last_code(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "if index == restart % 2: sys.exit(5 + restart)")
    result = run("-n", 2, "--max-restarts", 2, path, tmp_path)
    assert result.returncode == 7
    assert len(starts_in(tmp_path)) == 3
    assert "worker 0 failed first, with exit status 7" in result.stderr


def test_wrong_usage_is_not_tried_again(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(2)")
    result = run("-n", 2, "--max-restarts", 3, path, tmp_path)
    assert result.returncode == 2 and len(starts_in(tmp_path)) == 1
    assert "no restart, because exit status 2 means wrong usage" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_a_restart_is_final(script, tmp_path, number):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(5)")
    arguments = ["-n", 2, "--max-restarts", 9, path, tmp_path]
    with running(*arguments, stderr=subprocess.PIPE, text=True) as process:
        assert "exit status 5" in process.stderr.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
    # One that comes while the others are being stopped does not hide why they were.
    assert process.returncode in (128 + number, 5)
    assert "restart" not in errors and len(starts_in(tmp_path)) == 1


def test_the_timeout_is_for_all_starts_together(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(5)")
    result = run("-n", 2, "--max-restarts", 1000, "--timeout", 2.5, path, tmp_path)
    assert result.returncode == 124 and "the time given by --timeout is over" in result.stderr
    assert 1 <= len(starts_in(tmp_path)) <= 3


@pytest.mark.parametrize(("given", "seconds"), [("", ["", "180"]), ("7", ["7", "7"])])
def test_workers_wait_longer_for_those_of_other_machines_to_start_again(
    script, monkeypatch, given, seconds
):
    name = "TF_ADASUM_START_TIMEOUT"
    path = script(
        f"print(*map(os.environ.get, [{name!r}, 'TF_ADASUM_COORDINATOR', 'TF_ADASUM_LAUNCHER']))\n"
        "sys.exit(os.environ['TF_ADASUM_RESTART_COUNT'] == '0')\n"
    )
    monkeypatch.setenv(name, given)
    nodes = ["--nnodes", 2, "--node-rank", 1, "--coordinator", "a:1"]
    result = run("-n", 1, *nodes, "--max-restarts", 1, path)
    assert result.returncode == 0
    first, last = seconds
    expected = [f"[worker 1] {first} a:1 restarts", f"[worker 1] {last} a:1 1"]
    assert result.stdout.splitlines() == expected


# A script that catches the error, and ends as if it had finished.
LOSES = """
from tf_adasum.cluster import error_file
from tf_adasum.errors import WorkerLostError
error_file.begin()  # as the strategy does
try:
    raise WorkerLostError("worker 7 (a:1) was lost: it is silent. (TFA-501)")
except WorkerLostError:
    os._exit(0)
"""


def test_a_script_that_hides_a_lost_worker_has_not_finished(script, tmp_path):
    loses = "if restart < 1:\n    " + "\n    ".join(LOSES.splitlines())
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + loses)
    result = run("-n", 2, "--max-restarts", 1, path, tmp_path)
    assert result.returncode == 0 and len(starts_in(tmp_path)) == 2
    assert "restart 1 of 1" in result.stderr
    result = run("-n", 2, script(LOSES))
    assert result.returncode == 1
    assert "with exit status 0 although it had lost a worker: " in result.stderr
    assert "WorkerLostError: worker 7" in result.stderr
    assert "[worker" not in result.stderr, "the launcher reads it, and nobody else"
