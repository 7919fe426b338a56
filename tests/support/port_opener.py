"""A process that takes ports of the system all the time, as a busy machine does."""

import contextlib
import subprocess
import sys

# Listens on one port after the other and keeps the last 800; connects to each, too.
PROGRAM = """
import collections, socket
listeners = collections.deque()
while True:
    listeners.append(socket.create_server(("", 0), backlog=1))
    socket.create_connection(("127.0.0.1", listeners[-1].getsockname()[1])).close()
    if len(listeners) == 800:
        print("has many", flush=True)
    if len(listeners) > 800:
        listeners.popleft().close()
"""


@contextlib.contextmanager
def others_opening_ports():
    """Run it until the block ends."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"has many\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()
