"""Workers on several hosts that know only worker 0's address: bare processes, no TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pace import PACE

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
SECONDS = 60 * PACE

WORKER = """
import json, sys
from tf_adasum.cluster import rendezvous
from tf_adasum.cluster.tasks import cluster_to_join

coordinator, rank, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cluster = rendezvous.join(cluster_to_join(coordinator, rank, count, "a test"), 30)
rendezvous.meet(cluster, {"rule": "Adasum()"}, 30)
print(json.dumps(cluster.addresses))
"""
# A file of hosts of its own, as each machine has.
WITH_HOSTS = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def joined(network, tmp_path, coordinators, places, names, environments=None):
    """The list that workers at these places, numbers of hosts, agree upon.

    Args:
        network: the `Network`.
        tmp_path: for the files of hosts.
        coordinators: what each host is told.
        places: of each rank.
        names: for each host its file of hosts.
        environments: of each rank.
    """
    processes = []
    for rank, place in enumerate(places):
        hosts = tmp_path / f"hosts{place}"
        hosts.write_text("".join(f"{line}\n" for line in names[place]))
        command = [sys.executable, "-S", "-c", WORKER, coordinators[place], rank, len(places)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = network.hosts[place].popen(
            ["unshare", "--mount", "sh", "-c", WITH_HOSTS, "sh", hosts, *command],
            env=environment | (environments[rank] if environments else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    said = [process.communicate(timeout=SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(places), said
    (found,) = {tuple(json.loads(output)) for output, _ in said}
    return [address.rpartition(":")[0] for address in found]


OWN = "127.0.0.1 localhost"


def test_workers_on_two_hosts(make_network, tmp_path):
    network = make_network(2)
    first, second = (host.address for host in network.hosts)
    # As Debian does: a host's own name is a loopback address, on that host.
    names = [[OWN, "127.0.1.1 first"], [OWN, f"{first} first"]]
    places = [0, 0, 1, 1]

    def told(*coordinators, environments=None):
        arguments = list(coordinators), places, names, environments
        return joined(network, tmp_path, *arguments)

    assert told("first:12345", "first:12345") == ["first", "first", second, second]
    assert told(f"{first}:12345", f"{first}:12345") == [first, first, second, second]
    assert told("0.0.0.0:12345", "first:12345") == ["first", "first", second, second]
    interface = [{}, {}, {"TF_ADASUM_INTERFACE": "net0"}, {}]
    assert told("first:1", "first:1", environments=interface)[2] == second
    if all(host.address6 for host in network.hosts):
        at, other = (f"[{host.address6}]" for host in network.hosts)
        assert told(f"{at}:12345", f"{at}:12345") == [at, at, other, other]
        interface[2] = {"TF_ADASUM_INTERFACE": network.hosts[1].address6}
        assert told("first:1", "first:1", environments=interface)[2] == other
