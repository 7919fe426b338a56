"""Starts many workers without TensorFlow; prints how many fail, and the seconds of all.

python -S many_processes.py COUNT joined    # they know worker 0's address
python -S many_processes.py COUNT listed    # they know all addresses, as from TF_CONFIG
"""

import os
import sys
import time

from tf_adasum.cluster import rendezvous
from tf_adasum.cluster.ports import free_ports
from tf_adasum.cluster.tasks import Cluster, cluster_to_join

SECONDS = 120


def start(rank, count, way, addresses):
    """Start one worker; return whether it has found the others."""
    cluster = Cluster(addresses, tuple(f"worker {each}" for each in range(count)), rank)
    if way == "joined":
        known = cluster_to_join(addresses[0], rank, count, "a test")
        cluster = rendezvous.join(known, SECONDS, {})
    rendezvous.meet(cluster, {"rule": "Adasum()"}, SECONDS, environment={})
    return cluster.rank == rank and len(set(cluster.addresses)) == count


def main():
    """Start all workers, and wait for them."""
    count, way = int(sys.argv[1]), sys.argv[2]
    with free_ports(count) as ports:
        addresses, since = tuple(f"127.0.0.1:{port}" for port in ports), time.monotonic()
        for rank in range(count):
            if os.fork() == 0:
                os._exit(0 if start(rank, count, way, addresses) else 1)
        failed = [code for _, code in (os.wait() for _ in range(count)) if code]
        print(len(failed), time.monotonic() - since)


if __name__ == "__main__":
    main()
