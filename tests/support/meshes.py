"""The ends of a mesh in one process: collectives of workers without a TensorFlow cluster."""

import pytest

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.transport import library
from tf_adasum.transport.collectives import UcxCollectives
from tf_adasum.transport.library import Mesh
from tf_adasum.transport.selection import SHARED_MEMORY


def opened():
    """Return the process's `library.Library`; where UCX cannot be used the test is skipped."""
    try:
        return library.opened()
    except library.UcxUnavailableError as error:
        pytest.skip(str(error))


def connected(workers, transports=SHARED_MEMORY):
    """Return the numbers of so many meshes, each connected to all."""
    functions = opened()
    numbers = [functions.create(transports, "lo") for _ in range(workers)]
    addresses = [functions.address(number) for number in numbers]
    for number in numbers:
        functions.connect(number, addresses)
    return numbers


def pair(transports=SHARED_MEMORY):
    """Return the `UcxCollectives` of two workers."""
    return replicas(2, 1, transports)


def replicas(workers, devices, transports=SHARED_MEMORY):
    """Return the `UcxCollectives` of all replicas on some workers, of so many devices each."""
    numbers = connected(workers, transports)
    members = list(range(workers * devices))
    return [
        UcxCollectives(
            Mesh(numbers[replica // devices]),
            members,
            replica,
            devices,
            tensorflow_compat.CallKeys().next,
        )
        for replica in members
    ]
