"""The ports of a launcher's workers."""

import pytest
from support.launching import FAIL_UNTIL, WAIT_FOR_WORKER_0, run, starts_in

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
