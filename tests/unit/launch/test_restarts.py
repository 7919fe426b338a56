"""All workers start again when one has failed."""

import os
import signal
import subprocess

import pytest
from support.launching import (
    FAIL_UNTIL,
    LIMIT,
    WAIT_FOR_WORKER_0,
    eventually,
    run,
    running,
    starts_in,
)


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
    killed = "SIGKILL (killed: possibly out of memory)"
    failed = [
        f"tf-adasum-launch: worker 1 ended with {killed}, stopping the others",
        f"tf-adasum-launch: worker 1 failed first, with {killed}",
        "tf-adasum-launch: ended because of it: worker 0",
    ]
    lines = [*failed, "tf-adasum-launch: restart 1 of 3"]
    lines += [*failed, "tf-adasum-launch: restart 2 of 3"]
    assert result.stderr.splitlines() == lines
    assert sorted(result.stdout.splitlines()) == ["[worker 0] done 2", "[worker 1] done 2"]
    assert len(set(starts_in(tmp_path))) == 3


def test_restarts_are_counted_together_and_end_with_the_last_code(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "if index == restart % 2: sys.exit(5 + restart)")
    result = run("-n", 2, "--max-restarts", 2, path, tmp_path)
    assert result.returncode == 7
    assert len(starts_in(tmp_path)) == 3
    assert "worker 0 failed first, with exit status 7" in result.stderr


def test_without_the_option_there_is_one_start(script, tmp_path):
    result = run("-n", 2, script(FAIL_UNTIL + "sys.exit(5)"), tmp_path)
    assert result.returncode == 5 and "restart" not in result.stderr


def test_wrong_usage_is_not_tried_again(script, tmp_path):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + "sys.exit(2)")
    result = run("-n", 2, "--max-restarts", 3, path, tmp_path)
    assert result.returncode == 2 and len(starts_in(tmp_path)) == 1
    assert "no restart, because exit status 2 means wrong usage" in result.stderr


@pytest.mark.parametrize("fails", [False, True], ids=["while it runs", "before a restart"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_is_final(script, tmp_path, number, fails):
    path = script(FAIL_UNTIL + WAIT_FOR_WORKER_0 + ("sys.exit(5)" if fails else "time.sleep(300)"))
    arguments = ["-n", 2, "--max-restarts", 9, path, tmp_path]
    with running(*arguments, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: (tmp_path / "ready0").exists())
        if fails:
            assert "exit status 5" in process.stderr.readline()
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


@pytest.mark.parametrize(("given", "seconds"), [(None, [None, "180"]), ("7", ["7", "7"])])
def test_workers_wait_longer_for_those_of_other_machines_to_start_again(script, given, seconds):
    name = "TF_ADASUM_START_TIMEOUT"
    path = script(
        f"print(os.environ.get({name!r}), os.environ['TF_ADASUM_COORDINATOR'])\n"
        "sys.exit(os.environ['TF_ADASUM_RESTART_COUNT'] == '0')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment |= {name: given} if given else {}
    nodes = ["--nnodes", 2, "--node-rank", 1, "--coordinator", "a:1"]
    result = run("-n", 1, *nodes, "--max-restarts", 1, path, env=environment)
    assert result.returncode == 0
    assert result.stdout.splitlines() == [f"[worker 1] {each} a:1" for each in seconds]
