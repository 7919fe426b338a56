"""Finds the address at which other tasks reach this machine. Standard library only."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping

from tf_adasum.environment_variables import INTERFACE

LOOPBACK = "lo"

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>: the IPv4 address of an interface
_IPV6_ADDRESSES = "/proc/net/if_inet6"


def given(environment: Mapping[str, str] = os.environ, *, ipv6_first: bool = False) -> str:
    """Return the address that ``TF_ADASUM_INTERFACE`` sets; "" if the variable is not set.

    Args:
        environment: the environment variables. Defaults to ``os.environ``.
        ipv6_first: whether to prefer IPv6 if the interface has addresses of both families. Defaults
            to `False`.

    Raises:
        ValueError: if the variable is neither the name nor the address of an interface of this
            machine.
    """
    text = environment.get(INTERFACE, "")
    if not text:
        return ""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text)
        if not address.is_unspecified and is_here(text):
            return text
    found = [*_ipv4_of(text), *_ipv6_of(text)]
    if found:
        return found[-1 if ipv6_first else 0]
    names = ", ".join(name for _, name in socket.if_nameindex())
    raise ValueError(
        f"The environment variable {INTERFACE} must be an interface of this machine that has an "
        f"address ({names}), or the address of an interface. Received: {INTERFACE}={text!r}"
    )


def interface_with(address: str) -> str:
    """Return the name of this machine's interface with the given IP address; "" if none has it."""
    if is_loopback(address):
        return LOOPBACK
    for _, name in socket.if_nameindex():
        if address in (*_ipv4_of(name), *_ipv6_of(name)):
            return name
    return ""


def of_end(name: tuple) -> str:
    """Return the host in the address of one end of a connection.

    An IPv4 host is returned as an IPv4 address, even if the socket uses IPv6.

    Args:
        name: the result of `getsockname` or `getpeername`.
    """
    address = ipaddress.ip_address(name[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback(host: str) -> bool:
    """Return whether a host, given by name or address, is a loopback address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def is_here(host: str) -> bool:
    """Return whether a host, given by name or IP address, is this machine."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                return True
    return False


def _ipv4_of(interface: str) -> list[str]:
    """Return a list with the IPv4 address of an interface; [] if the interface has none."""
    name = interface.encode(errors="surrogateescape")
    if len(name) > 15:  # IFNAMSIZ, with the NUL
        return []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name))
        return [socket.inet_ntoa(answer[20:24])]
    return []


def _ipv6_of(interface: str) -> list[str]:
    """Return the IPv6 addresses of an interface that can be reached from other links."""
    found = []
    with contextlib.suppress(OSError), open(_IPV6_ADDRESSES) as lines:
        for digits, *_, name in map(str.split, lines):
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if name == interface and not address.is_link_local:
                found.append(str(address))
    return found
