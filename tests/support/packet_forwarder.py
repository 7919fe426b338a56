"""Forward IP packets between tun devices, with delay, loss and cuts on request; see `network`.

    python packet_forwarder.py '[["device", "10.77.0.1", "fd77::1"], ...]'

Each line of its standard input is JSON: from which host to which (numbers), and the `Conditions`
there from now on. It is answered with an empty line. The program, and with it the devices, ends
with its standard input. Standard library only: there is no netem in every kernel.
"""

import contextlib
import dataclasses
import errno
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time

# <linux/if_tun.h>: devices of IP packets, without four bytes before each.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TCP = 6
_PACKETS_AT_ONCE = 64
_LARGEST_PACKET = 65536
_SECONDS_OF_BUFFER = 0.4  # what a slow link keeps of packets; it drops those that are more


@dataclasses.dataclass(frozen=True)
class Conditions:
    """How packets travel from one host to another.

    Attributes:
        delay: seconds that a packet takes.
        jitter: seconds by which that is longer or shorter at random; packets keep their order.
        loss: part of the packets that is lost, from 0 to 1.
        rate: bits per second; 0 for any.
        cut: whether all packets are lost.
        without_port: no TCP from or to this port; 0 for none.
        only_port: no TCP but from or to this port; 0 for any.
        longest: bytes; longer packets are lost; 0 for any.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False
    without_port: int = 0
    only_port: int = 0
    longest: int = 0

    def refuse(self, packet):
        """Whether no packet like this one gets through."""
        if self.cut or (self.longest and len(packet) > self.longest):
            return True
        if not (self.without_port or self.only_port):
            return False
        ports = tcp_ports(packet)
        if not ports:
            return False
        return self.without_port in ports or bool(self.only_port and self.only_port not in ports)


class Direction:
    """The way from one host to another, and when its next packet can arrive."""

    def __init__(self, chance):
        self.conditions = Conditions()
        self._chance = chance
        self._free_at, self._last = 0.0, 0.0

    def arrival(self, packet, now):
        """Return when a packet arrives that is sent now; None if it is lost."""
        conditions = self.conditions
        if conditions.refuse(packet) or self._chance.random() < conditions.loss:
            return None
        at = now
        if conditions.rate:
            at = max(now, self._free_at) + 8 * len(packet) / conditions.rate
            if at > now + _SECONDS_OF_BUFFER:
                return None
            self._free_at = at
        at += conditions.delay + conditions.jitter * self._chance.uniform(-1, 1)
        self._last = max(at, self._last)
        return self._last


def tcp_ports(packet):
    """Return the source's and the destination's port of a TCP packet; () for any other."""
    if packet[0] >> 4 == 4:
        protocol, start = packet[9], 4 * (packet[0] & 15)
    else:
        protocol, start = packet[6], 40
    return struct.unpack_from("!HH", packet, start) if protocol == _TCP else ()


def destination(packet):
    """Return the bytes of the address that a packet is for."""
    return packet[16:20] if packet[0] >> 4 == 4 else packet[24:40]


def open_device(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def packed(address):
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


class Forwarder:
    """The devices, the ways between them, and the packets under way.

    Args:
        hosts: for each one the name of its device, and its addresses.
        seed: of what is left to chance.
    """

    def __init__(self, hosts, seed=0):
        chance = random.Random(seed)
        self._devices = [open_device(name) for name, *_ in hosts]
        self._host_of = {
            packed(address): host
            for host, (_, *addresses) in enumerate(hosts)
            for address in addresses
        }
        pairs = itertools.product(range(len(hosts)), repeat=2)
        self._ways = {pair: Direction(chance) for pair in pairs}
        self._under_way, self._count = [], itertools.count()
        self._commands = b""

    def run(self):
        poll = select.poll()
        for descriptor in [*self._devices, sys.stdin.fileno()]:
            poll.register(descriptor, select.POLLIN)
        host_of = {device: host for host, device in enumerate(self._devices)}
        while True:
            for descriptor, _ in poll.poll(self._milliseconds_to_wait()):
                is_device = descriptor in host_of
                if not (self._take_from(host_of[descriptor]) if is_device else self._obey()):
                    return
            self._deliver()

    def _milliseconds_to_wait(self):
        if not self._under_way:
            return None
        return max(0.0, 1000 * (self._under_way[0][0] - time.monotonic()))

    def _take_from(self, host):
        """Take the packets that a host sends; return False where it is gone."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self._devices[host], _LARGEST_PACKET)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EBADFD:
                    return False
                raise
            target = self._host_of.get(destination(packet))
            if target is None:
                continue
            at = self._ways[host, target].arrival(packet, time.monotonic())
            if at is not None:
                entry = (at, next(self._count), self._devices[target], packet)
                heapq.heappush(self._under_way, entry)
        return True

    def _deliver(self):
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._under_way)
            with contextlib.suppress(OSError):  # the host is not up yet
                os.write(device, packet)

    def _obey(self):
        """Follow the commands that have arrived; return False where there will be no more."""
        data = os.read(sys.stdin.fileno(), _LARGEST_PACKET)
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            source, target, conditions = json.loads(line)
            self._ways[source, target].conditions = Conditions(**conditions)
            print(flush=True)
        return bool(data)


if __name__ == "__main__":
    forwarder = Forwarder(json.loads(sys.argv[1]))
    print(flush=True)
    forwarder.run()
