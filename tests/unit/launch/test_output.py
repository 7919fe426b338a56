"""What workers of a launcher write, on the console and in files."""

import os
import pty
import queue
import signal
import subprocess
import sys
import time

from support.launching import LIMIT, run, running

from tf_adasum.launch import output


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
    console = output.Console(queue.SimpleQueue())
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
