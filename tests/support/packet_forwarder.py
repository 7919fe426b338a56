"""Forward IP packets between tun devices, with delay, loss and cuts on request; see `network`.

    python packet_forwarder.py '[["device", "10.77.0.1", "fd77::1"], ...]'

Each line of its standard input is JSON: from which host to which (numbers), and the `Conditions`
there from now on. It is answered with an empty line. The program, and with it the devices, ends
with its standard input. Standard library only: there is no netem in every kernel.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import random
import socket
import struct
import sys
import time

# <linux/if_tun.h>: devices of IP packets, without four bytes before each.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TCP = 6
_PACKETS_AT_ONCE = 64
_LARGEST_PACKET = 65536
_SECONDS_BETWEEN = 1e-9  # two packets at least: in their order
_SECONDS_OF_BUFFER = 0.4  # what a slow link keeps of packets; it drops those that are more


@dataclasses.dataclass(frozen=True)
class Conditions:
    """How packets travel from one host to another.

    Attributes:
        delay: seconds that a packet takes.
        loss: part of the packets that is lost, from 0 to 1.
        rate: bits per second; 0 for any.
        cut: whether all packets are lost.
        without_port: no TCP from or to this port; 0 for none.
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False
    without_port: int = 0

    def refuse(self, packet):
        """Whether no packet like this one gets through."""
        return self.cut or bool(self.without_port and self.without_port in tcp_ports(packet))


class Direction:
    """The way from one host to another, and when its next packet can arrive."""

    def __init__(self, rng):
        self.conditions = Conditions()
        self._chance = rng
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
        self._last = max(at + conditions.delay, self._last + _SECONDS_BETWEEN)
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
    """The devices, and the ways between them.

    Args:
        hosts: for each one the name of its device, and its addresses.
    """

    def __init__(self, hosts):
        rng = random.Random(0)
        self._devices = [open_device(name) for name, *_ in hosts]
        self._host_of = {
            packed(address): host
            for host, (_, *addresses) in enumerate(hosts)
            for address in addresses
        }
        pairs = itertools.product(range(len(hosts)), repeat=2)
        self._ways = {pair: Direction(rng) for pair in pairs}
        self._commands = b""
        self._loop = asyncio.new_event_loop()  # whose clock is time.monotonic

    def run(self):
        """Forward packets until the standard input ends."""
        for host, device in enumerate(self._devices):
            self._loop.add_reader(device, self._take_from, host)
        self._loop.add_reader(sys.stdin, self._obey)
        print(flush=True)
        self._loop.run_forever()

    def _take_from(self, host):
        """Take the packets that a host sends; end with the host."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self._devices[host], _LARGEST_PACKET)
            except BlockingIOError:
                return
            except OSError:
                self._loop.stop()
                return
            target = self._host_of.get(destination(packet))
            if target is not None:
                self._send(host, target, packet)

    def _send(self, host, target, packet):
        at = self._ways[host, target].arrival(packet, time.monotonic())
        if at is not None:
            self._loop.call_at(at, deliver, self._devices[target], packet)

    def _obey(self):
        """Follow the commands that have arrived; end where there will be no more."""
        data = os.read(sys.stdin.fileno(), _LARGEST_PACKET)
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            source, target, conditions = json.loads(line)
            self._ways[source, target].conditions = Conditions(**conditions)
            print(flush=True)
        if not data:
            self._loop.stop()


def deliver(device, packet):
    with contextlib.suppress(OSError):  # the host is not up yet
        os.write(device, packet)


if __name__ == "__main__":
    Forwarder(json.loads(sys.argv[1])).run()
