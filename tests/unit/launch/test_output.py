"""What workers of a launcher write, on the console and in files."""

import contextlib
import os
import pty
import queue
import re
import select
import signal
import subprocess
import threading
import time

import pytest
from support.launching import LIMIT, run, running
from support.pace import PACE

from tf_adasum.launch import output, worker_process


def test_lines_are_prefixed_and_never_mixed(script):
    path = script(
        "for number in range(1000):\n"
        "    print('ab'[index] * 3000, number)\n"
        "    print('AB'[index] * 100, number, file=sys.stderr)\n"
    )
    result = run("-n", 2, path)
    assert result.returncode == 0
    for text, length, letters in ((result.stdout, 3000, "ab"), (result.stderr, 100, "AB")):
        lines = sorted(text.splitlines(), key=lambda line: line[:10])  # each worker's in order
        assert lines == [
            f"[worker {index}] {letter * length} {number}"
            for index, letter in enumerate(letters)
            for number in range(1000)
        ]


def test_only_worker_0_redraws_its_line(script):
    path = script(
        "time.sleep(index * 0.5)\n"
        "for text in ('\\r1/2 bar', '\\b\\b\\r2/2 bar', '\\n', 'dos\\r\\n', 'no newline'):\n"
        "    sys.stdout.write(text); sys.stdout.flush(); time.sleep(0.02)\n"
    )
    with running("-n", 2, path, stdout=subprocess.PIPE) as process:
        pieces, _ = process.communicate(timeout=LIMIT)
    # In any order of the two workers: every piece is intact and in its worker's order.
    of_worker = {b"[worker 0] ": [], b"[worker 1] ": []}
    for piece in pieces.splitlines(keepends=True):
        of_worker[piece[:11]].append(piece[11:])
    last = [b"2/2 bar\n", b"dos\r\n", b"no newline\n"]
    assert [*of_worker.values()] == [[b"\r", b"1/2 bar\b\b\r", *last], last]


def test_a_line_of_another_worker_starts_below_the_bar(capfdbinary):
    console = output.Console(queue.SimpleQueue())
    console.write(1, b"[worker 0] ", b"1/2\r")
    console.write(1, b"[worker 0] ", b"2/2\r")
    console.write(1, b"[worker 1] ", b"hello\n")
    console.write(1, b"[worker 1] ", b"again\n")
    expected = b"[worker 0] 1/2\r[worker 0] 2/2\r\n[worker 1] hello\n[worker 1] again\n"
    assert capfdbinary.readouterr().out == expected
    console.write(2, b"", b"1/2\r")  # of a single worker
    console.say("SIGTERM")
    assert capfdbinary.readouterr().err == b"1/2\r\ntf-adasum-launch: SIGTERM\n"


def test_one_worker_keeps_the_terminal(script):
    terminal, end = pty.openpty()
    path = script("sys.exit(40 + sum(map(os.isatty, range(3))))")
    with running("-n", 1, path, stdin=end, stdout=end, stderr=end) as process:
        assert process.wait(LIMIT) == 43
    os.close(end)
    os.close(terminal)


def test_a_slow_reader_still_gets_everything(script):
    # Fits into the pipe of each worker, but not both into the pipe of the launcher.
    path = script("for number in range(20): print('x' * 3000)")
    with running("-n", 2, path, stdout=subprocess.PIPE) as process:
        time.sleep(2.5)  # the workers have ended, the launcher waits for its reader
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert output.count(b"x" * 3000 + b"\n") == 40


@pytest.mark.parametrize("stops_by", [signal.SIGTERM, signal.SIGINT, "--timeout"])
def test_where_nobody_reads_it_can_be_stopped(script, stops_by):
    options = ["--timeout", 2] if stops_by == "--timeout" else []
    path = script("while True: print('x' * 1000)")
    one = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with running(*options, "-n", 2, path, **one) as process:
        if not options:
            assert select.select([process.stdout], [], [], LIMIT)[0]
            time.sleep(1)  # the pipe is full
            process.send_signal(stops_by)
        assert process.wait(LIMIT / 2) == (124 if options else 128 + stops_by)
        process.stdout.close()


@contextlib.contextmanager
def stderr_to_a_pipe():
    """Put a pipe in the place of stderr; yield the end to read from."""
    reader, writer = os.pipe()
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        yield reader
    finally:
        os.dup2(before, 2)


def test_what_the_launcher_says_waits_for_its_reader():
    """Its main thread does not: the message follows the piece that is being written."""
    console, told = output.Console(queue.SimpleQueue()), b""
    piece = b"x" * (1 << 20) + b"\n"
    relay = threading.Thread(target=console.write, args=(2, b"", piece), daemon=True)
    with stderr_to_a_pipe() as reader:
        relay.start()
        assert select.select([reader], [], [], LIMIT)[0]
        started = time.monotonic()
        console.say("worker 0 failed first")
        assert time.monotonic() - started < 5 * PACE and relay.is_alive()
        while not told.endswith(b"first\n"):
            told += os.read(reader, 1 << 16)
        relay.join(LIMIT)
    assert told == piece + b"tf-adasum-launch: worker 0 failed first\n"


def test_a_line_without_end_is_passed_on_in_parts():
    console, parts = output.Console(queue.SimpleQueue()), []
    console.write = lambda descriptor, prefix, piece: parts.append(piece)
    relay = output.Relay(1, console, b"", worker_process.Worker(0, None))
    size = 48 << 20
    with open(os.memfd_create("stream"), "w+b", buffering=0) as stream:
        for _ in range(size >> 20):
            stream.write(b"x" * (1 << 20))
        stream.seek(0)
        started = time.process_time()
        relay.copy(stream, threading.Event())
        assert time.process_time() - started < 5 * PACE, "it is not quadratic"
    assert all(1 << 20 < len(part) < 2 << 20 for part in parts[:-1])
    assert len(parts[-1]) < 2 << 20 and all(part.endswith(b"\n") for part in parts)
    assert sum(part.count(b"x") for part in parts) == size


# Files of their own


def test_each_worker_has_a_file_and_restarts_are_appended(script, tmp_path):
    path = script(
        "restart = int(os.environ['TF_ADASUM_RESTART_COUNT'])\n"
        "print('\\r1/2\\r2/2', restart); print('error of', index, file=sys.stderr)\n"
        "sys.exit(0 if restart else 5)\n"
    )
    folder = tmp_path / "a" / "logs"
    result = run("-n", 2, "--max-restarts", 1, "--log-dir", folder, path)
    assert result.returncode == 0, result.stderr
    assert "[worker 1] 2/2 1\n" in result.stdout, "the console shows all"
    assert re.search(rf"the output of worker ([01]) is in {folder}/worker-\1.log", result.stderr)
    assert sorted(each.name for each in folder.iterdir()) == ["worker-0.log", "worker-1.log"]
    for index in (0, 1):
        text = (folder / f"worker-{index}.log").read_text()
        first, second = re.findall(r"^tf-adasum-launch: (.*)", text, re.MULTILINE)
        assert first.startswith(f"worker {index} of 2, started 20")
        assert second.startswith(f"worker {index} of 2, restart 1 20")
        lines = text.partition(second)[2].split("\n")
        assert sorted(lines) == ["", "", "2/2 1", f"error of {index}"]
    run("-n", 1, "--log-dir", folder, script("print('later')"))
    assert (folder / "worker-0.log").read_text().endswith("later\n")


def test_a_full_disk_of_files_is_told_and_stops_nothing(script, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "worker-1.log").symlink_to("/dev/full")
    result = run("-n", 2, "--log-dir", folder, script("print('line')"))
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == ["[worker 0] line", "[worker 1] line"]
    (complaint,) = result.stderr.splitlines()
    assert f"{folder}/worker-1.log is not complete: [Errno 28]" in complaint


@pytest.mark.parametrize(
    ("make", "message"), [(os.mkdir, "Is a directory"), (os.mkfifo, "No such device")]
)
def test_files_that_cannot_be_written_start_nothing(script, tmp_path, make, message):
    make(tmp_path / "worker-1.log")
    result = run("-n", 2, "--log-dir", tmp_path, script("print('started')"))
    assert (result.returncode, result.stdout) == (2, "")
    assert f"--log-dir {tmp_path}" in result.stderr and message in result.stderr


def test_workers_of_several_machines_are_named_by_their_ranks(script, tmp_path):
    options = ["--nnodes", 3, "--node-rank", 2, "--coordinator", "a:1", "--log-dir", tmp_path]
    path = script("print(os.environ['TF_ADASUM_RANK'], repr(sys.stdin.read()))")
    result = run("-n", 2, *options, path, input="typed")
    assert sorted(result.stdout.splitlines()) == ["[worker 4] 4 ''", "[worker 5] 5 ''"]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["worker-4.log", "worker-5.log"]
