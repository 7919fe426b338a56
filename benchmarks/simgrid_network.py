"""Simulate messages on the network of a cluster with SimGrid (https://simgrid.org).

Runs with the Python of Debian's package `python3-simgrid`, without this project's packages. Reads
from stdin a JSON object with "cluster", a name of `CLUSTERS`, and "phases", a list. Prints the
seconds of each phase as a JSON list. A phase has five values:

    kind      "direct": each replica sends to each other member of its group; "ring": to the next
    stride    the numbers of a group's members differ by multiples of this
    radix     the number of members
    bytes     the size of each message
    replicas  the number of replicas

The time is the time of all messages of "direct", or of one round of "ring".
"""

import json
import sys

import simgrid
from simgrid import Actor, Comm, Engine, Link, LinkInRoute, NetZone

# If a phase has more messages, each replica sends the bytes of all its messages to one member, and
# the time is the mean for some members.
MOST_MESSAGES = 16_384
ROUNDS = 8


def hosts_of_machines(machines, per_machine, device_link, machine_link):
    """Make a star of machines, each a star of devices. A link is (bytes per second, seconds)."""
    root = NetZone.create_star_zone("root")
    hosts = []
    for machine in range(machines):
        zone = NetZone.create_star_zone(f"machine{machine}")
        zone.set_parent(root)
        for device in range(per_machine):
            name = f"{machine}.{device}"
            hosts.append(zone.create_host(name, 1e9).seal())
            up = LinkInRoute(link(zone, name, *device_link), LinkInRoute.UP)
            zone.add_route(hosts[-1].netpoint, None, None, None, [up], True)
        router = zone.create_router(f"router{machine}")
        zone.seal()
        up = LinkInRoute(link(root, f"link{machine}", *machine_link), LinkInRoute.UP)
        root.add_route(zone.netpoint, None, router, None, [up], True)
    root.seal()
    return hosts


def link(zone, name, rate, latency):
    return zone.create_split_duplex_link(name, rate).set_latency(latency).seal()


def hosts_of_cluster(create, parameters, rate, latency):
    """Make one of SimGrid's own clusters, with one device on each machine."""
    root = NetZone.create_star_zone("root")
    hosts = []

    def make_host(zone, _, number):
        hosts.append((number, zone.create_host(f"host{number}", 1e9).seal()))
        return hosts[-1][1].netpoint, None

    callbacks = simgrid.ClusterCallbacks(make_host, None, None)
    policy = Link.SharingPolicy.SPLITDUPLEX
    zone = create("cluster", root, parameters, callbacks, rate, latency, policy)
    zone.seal()
    root.seal()
    return [host for _, host in sorted(hosts, key=lambda each: each[0])]


GBIT = 1e9 / 8  # bytes per second
CLUSTERS = {
    # 8 GPUs behind NVLink, and 4 network cards of 200 Gbit/s.
    "NVLink, 4 x 200 Gbit/s": lambda: hosts_of_machines(128, 8, (300e9, 1e-6), (800 * GBIT, 3e-6)),
    "cloud, 25 Gbit/s": lambda: hosts_of_machines(128, 8, (12e9, 3e-6), (25 * GBIT, 15e-6)),
    # 32 switches with 32 hosts each, and 16 links up from each switch.
    "fat tree, 100 Gbit/s": lambda: hosts_of_cluster(
        NetZone.create_fatTree_zone,
        simgrid.FatTreeParams(2, [32, 32], [1, 16], [1, 1]),
        100 * GBIT,
        1e-6,
    ),
    # 8 groups of 4 chassis of 8 routers with 4 hosts each.
    "dragonfly, 100 Gbit/s": lambda: hosts_of_cluster(
        NetZone.create_dragonfly_zone,
        simgrid.DragonflyParams((8, 4), (4, 4), (8, 4), 4),
        100 * GBIT,
        1e-6,
    ),
}


def seconds_of(messages):
    """Return the seconds of messages (sender, receiver, bytes) that start together."""
    begun = Engine.clock
    Comm.wait_all([Comm.sendto_async(*message) for message in messages])
    return Engine.clock - begun


def seconds_of_phase(hosts, kind, stride, radix, size, replicas):
    """Return the simulated seconds of one phase."""

    def to_member(shift, size):
        """Yield a message of each replica to the member `shift` places further."""
        for replica in range(replicas):
            place = replica // stride % radix
            target = replica + ((place + shift) % radix - place) * stride
            yield hosts[replica], hosts[target], int(size)

    if radix == 1:
        return 0.0
    if kind == "ring":
        return seconds_of(to_member(1, size))
    if replicas * (radix - 1) <= MOST_MESSAGES:
        rounds = range(1, radix)
        return seconds_of(message for shift in rounds for message in to_member(shift, size))
    shifts = [1 + (2 * index + 1) * (radix - 1) // (2 * ROUNDS) for index in range(ROUNDS)]
    return sum(seconds_of(to_member(each, size * (radix - 1))) for each in shifts) / ROUNDS


def main():
    asked = json.load(sys.stdin)
    engine = Engine([sys.argv[0], "--cfg=network/model:CM02", "--log=root.threshold:warning"])
    hosts = CLUSTERS[asked["cluster"]]()
    found = []

    def drive():
        found.extend(seconds_of_phase(hosts, *phase) for phase in asked["phases"])

    Actor.create("driver", hosts[0], drive)
    engine.run()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
