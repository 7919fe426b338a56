"""Splits and joins the addresses of tasks, and binds sockets to their ports.

An address is "host:port", or "[host]:port" if the host is an IPv6 address. Standard library only.
"""

import contextlib
import errno
import re
import socket

_HOST = r"(?:\[(?P<bracketed>[^][]+)\]|(?P<host>[^][/:]+))"
_ADDRESS = re.compile(_HOST + r":(?P<port>\d{1,18})", re.ASCII)
# The errors if this machine does not have an address, or does not support its address family.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)


def split(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address.

    Raises:
        ValueError: if the address is not a host and a port from 1 to 65535.

    Example:
        >>> split("10.0.0.1:2222"), split("[::1]:2222")
        (('10.0.0.1', 2222), ('::1', 2222))
    """
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise ValueError(
            "an address must look like 'host:port', or '[host]:port' if the host is an IPv6 "
            f"address. Received: {address!r}"
        )
    if not 0 < int(found["port"]) < 65536:
        raise ValueError(f"a port must be from 1 to 65535. Received: {address!r}")
    return found["bracketed"] or found["host"], int(found["port"])


def joined(host: str, port: int) -> str:
    """Return the address of a host, with or without brackets, and a port.

    Example:
        >>> joined("10.0.0.1", 2222), joined("::1", 2222)
        ('10.0.0.1:2222', '[::1]:2222')
    """
    is_bare = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare else f"{host}:{port}"


def bound(host: str, port: int, *, reuse: bool, backlog: int = 0) -> socket.socket:
    """Return a socket that is bound to the interfaces at which a task can be reached.

    If the host is a loopback address, the socket is bound only to the loopback interface.
    Otherwise, it is bound to all interfaces, with IPv6 and IPv4 as in TensorFlow's server. All
    interfaces are necessary if the task's address does not belong to this machine, as in a
    container or behind network address translation.

    Args:
        host: the host in the task's address; "" for all interfaces.
        port: the port; 0 lets the system choose a port.
        reuse: whether to set SO_REUSEADDR.
        backlog: how many callers wait in the kernel. Defaults to 0: the socket does not listen.

    Raises:
        OSError: if the port is in use, or this machine has no such interface.
    """
    *others, last = _interfaces(host)
    for family, interface in others:
        try:
            return _bound(family, interface, port, reuse, backlog)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    return _bound(*last, port, reuse, backlog)


def _interfaces(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Return pairs of address family and interface; `bound` uses the first that exists."""
    ipv4, ipv6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
    if host == "localhost":
        with contextlib.suppress(OSError):
            if {each[0] for each in socket.getaddrinfo(host, None)} == {socket.AF_INET6}:
                return [ipv6]
        return [ipv4, ipv6]
    if host.startswith("127."):
        return [(socket.AF_INET, host)]
    if host == ipv6[1]:
        return [ipv6]
    both = [(socket.AF_INET6, "")] if socket.has_dualstack_ipv6() else []
    return [*both, (socket.AF_INET, "")]


def _bound(family: int, interface: str, port: int, reuse: bool, backlog: int) -> socket.socket:
    made = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(interface != ""))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        made.bind((interface, port))
        if backlog:
            made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made
