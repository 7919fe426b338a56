"""UCX in this process: the path of its library, whether it can be used, and its functions.

The library in the wheel ``libucx-cu12`` (or ``libucx-cu13``) is used if it is installed, otherwise
the system's library. The library is opened when a strategy needs it.
"""

import ctypes
import dataclasses
import functools
import importlib.util
import types
from pathlib import Path
from typing import Any

from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library as op_library

INSTALL = "pip install libucx-cu12"
_SONAME = "libucp.so.0"
_WHEEL = "libucx"
_LONGEST_TEXT = 1024
_OP = "tf_adasum_ucx_all_to_all"  # one of the ops


class UcxUnavailableError(RuntimeError):
    """UCX cannot be used in this process; the message explains why."""


class Library:
    """The functions of the compiled op that handle meshes, see custom_ops/ucx/adasum_ucx.h.

    Attributes:
        ops: module of the ops.
        version: the version of UCX.
    """

    def __init__(self, path: str, ops: types.ModuleType):
        self.ops = ops
        self._functions = ctypes.CDLL(path)  # TensorFlow has already opened it in this process
        self.version = self._call("adasum_ucx_open", _path().encode())

    def probe_in_subprocess(self, transports: str, device: str) -> None:
        """Create a mesh in a child process first, because UCX may crash, e.g. if /dev/shm is full.

        Args:
            transports, device: as for `create`.

        Raises:
            UcxUnavailableError: if the child has crashed, or UCX cannot create a mesh.
        """
        self._call("adasum_ucx_probe", transports.encode(), device.encode())

    def create(self, transports: str, device: str) -> int:
        """Create a mesh, and return its number in this process.

        Args:
            transports: the value for UCX_TLS.
            device: the value for UCX_NET_DEVICES.

        Raises:
            UcxUnavailableError: if UCX cannot create a mesh.
        """
        return self._call("adasum_ucx_create", transports.encode(), device.encode(), numbered=True)

    def address(self, mesh: int) -> bytes:
        """Return the address that other workers need to connect to a mesh."""
        size = self._functions.adasum_ucx_address(mesh, None, 0)
        buffer = ctypes.create_string_buffer(size)
        self._functions.adasum_ucx_address(mesh, buffer, size)
        return buffer.raw

    def connect(self, mesh: int, addresses: list[bytes]) -> None:
        """Connect a mesh to the meshes of all workers.

        Args:
            mesh: the number of the mesh.
            addresses: the addresses of the meshes of all workers, in rank order.

        Raises:
            UcxUnavailableError: if a worker cannot be reached.
        """
        lengths = (ctypes.c_int * len(addresses))(*map(len, addresses))
        self._call("adasum_ucx_connect", mesh, len(addresses), b"".join(addresses), lengths)

    def attempt(
        self, mesh: int, rank: int, workers: int, number: int, size: int, seconds: float
    ) -> None:
        """Send bytes to each of the other workers, and check the bytes that they send.

        All workers have to call this with the same `number`, before the first op uses the mesh. The
        number has to increase with each attempt.

        Args:
            mesh: the number of the mesh.
            rank: the rank of this worker.
            workers: the number of workers.
            number: the number of the attempt.
            size: the number of bytes to each worker.
            seconds: the longest time to wait.

        Raises:
            UcxUnavailableError: if the attempt has failed, or has not ended in time.
        """
        arguments = (mesh, rank, workers, number, ctypes.c_int64(size), ctypes.c_double(seconds))
        self._call("adasum_ucx_test_exchange", *arguments, ctypes.byref(ctypes.c_double()))

    def close(self, mesh: int) -> None:
        """Close a mesh that is not used, or whose exchanges have all ended.

        Args:
            mesh: the number of the mesh.
        """
        self._functions.adasum_ucx_close(mesh)

    def abort(self, message: str) -> None:
        """End all exchanges of this process, now and later, with `tf.errors.AbortedError`."""
        self._functions.adasum_ucx_abort(message.encode())

    def _call(self, name: str, *arguments: Any, numbered: bool = False) -> Any:
        text = ctypes.create_string_buffer(_LONGEST_TEXT)
        number = getattr(self._functions, name)(*arguments, text, _LONGEST_TEXT)
        message = text.value.decode(errors="replace")
        if number < 0:
            raise UcxUnavailableError(message)
        return number if numbered else message


@functools.cache
def opened() -> Library:
    """Return the process's `Library`.

    Raises:
        UcxUnavailableError: if something is missing; the message explains how to install it.
    """
    ops = op_library.load()
    status = op_library.status()
    if ops is None:
        why = status.reason or f"{OPS} leaves it out"
        raise UcxUnavailableError(f"the compiled op is not used ({why})")
    if not hasattr(ops, _OP):
        raise UcxUnavailableError(
            f"the compiled op was built without UCX's headers: {INSTALL}, then build the op again"
        )
    try:
        return Library(status.path, ops)
    except UcxUnavailableError as error:
        raise UcxUnavailableError(f"UCX cannot be opened ({error}): {INSTALL}") from None


def abort(message: str) -> None:
    """End all exchanges of this process over UCX, now and later, with an error.

    Args:
        message: the reason.
    """
    if opened.cache_info().currsize:
        opened().abort(message)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The connections of this process to all workers, which all its strategies share.

    Attributes:
        number: the number of the mesh in this process.
        channel: the number of the strategy that uses the mesh; the same on all workers.
    """

    number: int
    channel: int = 0


def _path() -> str:
    found = importlib.util.find_spec(_WHEEL)
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "lib" / _SONAME
        if path.exists():
            return str(path)
    return _SONAME
