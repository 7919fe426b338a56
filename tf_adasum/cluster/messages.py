"""Sentences about workers that do not fit, cannot reach worker 0, or are lost.

Standard library only.
"""

import contextlib
import itertools
import socket
import time
from collections.abc import Mapping
from typing import Any

from tf_adasum.cluster import own_address
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS
from tf_adasum.environment_variables import SECRET, SECRET_FILE
from tf_adasum.errors import see

_LONGEST_VALUE = 1500  # characters


def printable(text: Any, longest: int) -> str:
    """Return a received text in a form that can be printed; "" if it is not a text."""
    shown = text[:longest] if isinstance(text, str) else ""
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else "?" for each in shown)


def different_settings(
    own: dict[str, Any], others: dict[str, Any], own_name: str, other_name: str
) -> str:
    """Return the error if settings of worker 0 and of another worker differ; "" if they do not.

    Args:
        own: the settings of worker 0.
        others: the settings of the other worker.
        own_name: the name of worker 0, with its address.
        other_name: the name of the other worker.
    """
    for setting in dict.fromkeys([*own, *others]):
        if own.get(setting) != others.get(setting):
            values = _shown(own.get(setting), others.get(setting))
            return (
                f"All workers must be started with the same {printable(setting, 100)}. Received: "
                f"{values[0]} on {own_name}, {values[1]} on {other_name} {see('TFA-207')}"
            )
    return ""


def _shown(*values: Any) -> list[str]:
    """Return two values that differ, as texts; of lists, only the first place that differs."""
    shown = list(values)
    if all(isinstance(each, list) for each in values):
        pairs = enumerate(itertools.zip_longest(*values))
        index = next(index for index, (one, other) in pairs if one != other)
        texts = [each[index] if index < len(each) else "nothing" for each in values]
        shown = [
            f"{text} at index {index} of {len(each)}"
            for text, each in zip(texts, values, strict=True)
        ]
    return [printable(str(each), _LONGEST_VALUE) for each in shown]


def different_secrets(own: str, others: str) -> str:
    """Return the error message for workers that were started with different secrets.

    Args:
        own: the name of this worker.
        others: the names of the other workers.
    """
    return (
        f"All workers must be started with the same secret, in the variable {SECRET} or in a file "
        f"that {SECRET_FILE} names. Received: another secret on {own} than on {others}, or none "
        f"{see('TFA-207')}"
    )


def wrong_host(cluster: Cluster) -> str:
    """Return the error if another worker's address is on this machine, and this worker's is not.

    Behind address translation, no worker's address is on its machine.
    """
    own, until = cluster.hosts[cluster.rank], time.monotonic() + HEARTBEAT_SECONDS
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(own, None)  # if names are unknown or slow, look up no others
        if own_address.is_here(own):
            return ""
        for rank, host in enumerate(cluster.hosts):
            if not own_address.is_loopback(host) and own_address.is_here(host):
                return (
                    f"This process is {cluster.named([cluster.rank])}, but this machine is the "
                    f"host of {cluster.named([rank])}. Correct {cluster.source or 'the cluster'} "
                    "on this machine: each worker needs its own index."
                )
            if time.monotonic() > until:  # each look-up may take seconds
                break
    return ""


def lost(cluster: Cluster, rank: int) -> str:
    """Return the error message for a task that has ended during the rendezvous."""
    return (
        f"{cluster.named([rank])} was lost while the workers started: its process has ended "
        f"without reporting an error. Restart all workers. {see('TFA-501')}"
    )


def unreachable(cluster: Cluster, tried: Mapping[str, str]) -> str:
    """Return a sentence if this worker cannot reach worker 0; else "".

    Args:
        cluster: the `Cluster`.
        tried: the addresses and reasons of `session.Session.tried`.
    """
    why = ", ".join(f"{where}: {each}" for where, each in tried.items())
    own = cluster.names[cluster.rank]
    return f"{own} cannot reach {cluster.named([0])}: {why}." if tried else ""
