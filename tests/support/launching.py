"""The launcher as tests start it, with tiny workers that do not import TensorFlow."""

import contextlib
import signal
import subprocess
import sys
import time

from support.pace import PACE

LIMIT = 30 * PACE  # seconds after which a launcher under test counts as hanging


def run(*arguments, **options):
    """Run the command line in a process of its own and return what it wrote."""
    command = [sys.executable, "-m", "tf_adasum.launch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)


def output_of(*command, timeout=200 * PACE, stderr=subprocess.STDOUT, **options):
    """Run any command; return what it prints. It has to succeed."""
    ended = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=timeout,
        **options,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    return ended.stdout


@contextlib.contextmanager
def running(*arguments, command=(sys.executable, "-m", "tf_adasum.launch"), **options):
    """Start the command line; whatever happens, it has ended after the block."""
    command = [str(each) for each in (*command, *arguments)]
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
