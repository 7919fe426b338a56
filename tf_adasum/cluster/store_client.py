"""Calls of a `store.StoreServer`, and why they fail. Standard library only."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import time
from collections.abc import Callable

from tf_adasum.cluster import addresses, json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, LEASE_SECONDS, POLL_SECONDS

_SECONDS_TO_CONNECT = 2.0  # to one address

# Why a call failed, if no system call failed.
ANOTHER_PROGRAM = "another program answers there"
NO_ANSWER = "the program there does not answer; it is another program, or a suspended worker"
UNPROVEN = "the program that answers there does not have the secret"

# With these reasons, some program accepts connections at the address.
ANSWERS = {ANOTHER_PROGRAM, NO_ANSWER, UNPROVEN}


@dataclasses.dataclass
class Call:
    """The result of an attempt to connect to a server.

    Attributes:
        channel: the authenticated connection; None if there is none.
        tried: dict from the addresses of the server to why the attempt failed; empty if it has
            succeeded.
        unauthenticated: whether the program that failed to authenticate claims to have a secret;
            None if no program failed to authenticate, or if the attempt has succeeded.
    """

    channel: Channel | None = None
    tried: dict[str, str] = dataclasses.field(default_factory=dict)
    unauthenticated: bool | None = None


def call(
    address: str,
    secret: Secret,
    rank: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    found: Call | None = None,
) -> Call:
    """Connect to a server at each of its addresses, until one address answers.

    Args:
        address: "host:port" of the server.
        secret: the `Secret`.
        rank: the rank of this worker, for the server's error messages. Defaults to None.
        is_stopped: function that returns whether to stop.
        found: the `Call` that is filled and returned; another thread can read it before this
            function returns. Defaults to a new one.
    """
    found = found or Call()
    host, port = addresses.split(address)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        found.tried[host] = error.strerror or str(error)
        return found
    except UnicodeError:
        found.tried[host] = "not a valid host name"
        return found
    for family, kind, protocol, _, where in candidates:
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(_SECONDS_TO_CONNECT)
            connection.connect(where)
        except OSError as error:
            is_late = isinstance(error, TimeoutError)
            why = os.strerror(errno.ETIMEDOUT) if is_late else error.strerror or str(error)
            found.tried[str(where[0])] = why
            if connection:
                connection.close()
            continue
        channel = Channel(connection, secret, is_server=False, rank=rank)
        since = time.monotonic()
        while channel.is_open and time.monotonic() < since + LEASE_SECONDS and not is_stopped():
            json_lines.wait([channel.socket], POLL_SECONDS)
            channel.receive()
            if channel.is_authenticated:  # failures at other addresses do not matter
                found.tried.clear()
                found.unauthenticated = None
                found.channel = channel
                return found
            if time.monotonic() > since + HEARTBEAT_SECONDS:  # for other threads
                found.tried[str(where[0])] = NO_ANSWER
        why = ANOTHER_PROGRAM if channel.is_unknown else "the connection was closed at once"
        found.tried[str(where[0])] = NO_ANSWER if channel.is_open else why
        # If neither end has a secret, any program with this protocol can make a valid proof. So a
        # wrong proof comes from another program, not from a worker with another secret.
        if channel.is_refused and (secret.key or channel.claims_secret):
            found.unauthenticated = channel.claims_secret
            found.tried[str(where[0])] = UNPROVEN
        channel.close()
    return found
