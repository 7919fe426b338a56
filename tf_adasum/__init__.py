"""tf_adasum: data-parallel training with Keras that keeps its accuracy when workers are added.

    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = ...
        model.compile(...)
    model.fit(dataset)

The names below are imported when they are first used, so that the launcher and the doctor start
without TensorFlow.
"""

import importlib

from tf_adasum._version import __version__

_HOME = {
    "AdasumCrossDeviceOps": "tf_adasum.cross_device_ops",
    "AdasumMirroredStrategy": "tf_adasum.strategy",
    "adasum": "tf_adasum.aggregation",
    "ops": None,
    "rules": "tf_adasum.aggregation",
}

__all__ = [
    "AdasumCrossDeviceOps",
    "AdasumMirroredStrategy",
    "__version__",
    "adasum",
    "ops",
    "rules",
]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = _HOME[name]
        value = (
            getattr(importlib.import_module(home), name)
            if home
            else importlib.import_module(f"{__name__}.{name}")
        )
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            "tf_adasum needs TensorFlow 2.21, of which there are two packages: install one with "
            "pip install 'tf-adasum[cpu]' or pip install 'tf-adasum[cuda]'."
        ) from error
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
