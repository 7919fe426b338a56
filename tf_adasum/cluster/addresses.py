"""Addresses of tasks: "host:port", of an IPv6 host "[host]:port". Standard library only."""

from __future__ import annotations


def split(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address.

    Raises:
        ValueError: for anything else than a host and a port from 1 to 65535.

    Example:
        >>> split("10.0.0.1:2222"), split("[::1]:2222")
        (('10.0.0.1', 2222), ('::1', 2222))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"an address must look like 'host:port'. Received: {address!r}")
    return host.strip("[]"), int(port)


def listening_host(host: str) -> str:
    """Return the interface to listen on: all of them, unless `host` is this machine alone.

    Example:
        >>> listening_host("localhost"), listening_host("10.0.0.1")
        ('127.0.0.1', '')
    """
    return "127.0.0.1" if host == "localhost" or host.startswith("127.") else ""
