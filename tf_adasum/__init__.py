"""tf_adasum: Keras's `model.fit` on several workers, at the learning rate of one device.

    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = ...
        model.compile(...)
    model.fit(dataset)

The public names are imported when they are first used, so that the launcher and the doctor start
without TensorFlow. If Keras is already imported, the modules with Keras classes (callbacks,
optimizers, schedules) are imported at once, so that Keras can load saved models.
"""

import importlib
import sys
import typing

from tf_adasum import errors
from tf_adasum._version import (
    INSTALL_TENSORFLOW,
    INSTALL_WITH_GPUS,
    SUPPORTED_VERSIONS,
    __version__,
)
from tf_adasum.errors import see

if typing.TYPE_CHECKING:
    from tf_adasum import callbacks, ops, optimizers, schedules
    from tf_adasum.aggregation import adasum, rules
    from tf_adasum.cross_device_ops import AdasumCrossDeviceOps
    from tf_adasum.errors import ReplicasDifferError, WorkerLostError
    from tf_adasum.launch.run import run
    from tf_adasum.strategy import AdasumMirroredStrategy

_MODULE_OF = {
    "AdasumCrossDeviceOps": "tf_adasum.cross_device_ops",
    "AdasumMirroredStrategy": "tf_adasum.strategy",
    "WorkerLostError": "tf_adasum.errors",
    "ReplicasDifferError": "tf_adasum.errors",
    "adasum": "tf_adasum.aggregation",
    "rules": "tf_adasum.aggregation",
    "run": "tf_adasum.launch.run",
}

__all__ = [
    "AdasumCrossDeviceOps",
    "AdasumMirroredStrategy",
    "ReplicasDifferError",
    "WorkerLostError",
    "__version__",
    "adasum",
    "callbacks",
    "ops",
    "optimizers",
    "rules",
    "run",
    "schedules",
]


def __getattr__(name: str) -> typing.Any:
    if name == "ReplicasDiffer":
        errors.deprecated("tf_adasum.ReplicasDiffer", "tf_adasum.ReplicasDifferError")
        return errors.ReplicasDifferError
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in ("callbacks", "ops", "optimizers", "schedules"):
            return importlib.import_module(f"tf_adasum.{name}")
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("jax", "torch", "openvino"):
            raise ImportError(
                f"Keras is set to the backend {error.name}, which is not installed. tf_adasum "
                "needs Keras on TensorFlow: set the environment variable KERAS_BACKEND=tensorflow, "
                f"or the backend in ~/.keras/keras.json. {see('TFA-104')}"
            ) from error
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"tf_adasum needs TensorFlow, which is not installed. For CPUs: {INSTALL_TENSORFLOW}. "
            f"For GPUs: {INSTALL_WITH_GPUS}. tf_adasum works with {SUPPORTED_VERSIONS}. "
            f"{see('TFA-101')}"
        ) from error


def _register() -> None:
    """If Keras is already imported, register the classes that it needs to load saved models."""
    keras: typing.Any = sys.modules.get("keras")
    if getattr(keras, "backend", None) and keras.backend.backend() == "tensorflow":
        for name in ("callbacks", "optimizers", "schedules"):
            importlib.import_module(f"tf_adasum.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)


_register()
