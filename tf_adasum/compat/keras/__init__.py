"""Compatibility with Keras: the only package of tf_adasum that uses its private names.

All other packages of tf_adasum use Keras's internals only through this package. The files of this
folder contain code for both Keras 2 and Keras 3. The folders `keras3` and `keras2` (tf.keras of
TensorFlow 2.15) contain the code that differs, under the same names. Only this file and
`generation.py` choose between the two folders: `keras_compat.build` is `build` of the file
`optimizers.py` in the folder of the installed Keras.

Each hook is decorated with `hooks.replaces` or `hooks.overrides`, and its docstring gives the
reason. `tf_adasum/compat/README.md` lists all hooks.
"""

import importlib

import keras

from tf_adasum.compat.keras.generation import IS_KERAS_2, hooks
from tf_adasum.errors import see

# The files with the names, in the order in which their hooks are installed.
OF_BOTH = "files layers batch_logs calls fit optimizer_steps optimizers progress_bar tf_keras"
OF_KERAS_2 = "files phases fit layers optimizers wrapper"
OF_KERAS_3 = (
    "loss_scaling losses metrics phases build epochs fit layers optimizers variables wrapper"
)
_modules = [
    importlib.import_module(f"{package}.{name}")
    for package, names in (
        (__name__, OF_BOTH),
        (f"{__name__}.keras2", OF_KERAS_2) if IS_KERAS_2 else (f"{__name__}.keras3", OF_KERAS_3),
    )
    for name in names.split()
]


def __getattr__(name):
    """Return what one of the files defines under a name, which other packages use."""
    for module in _modules:
        if name in vars(module):
            return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def install():
    """Install the hooks. A second call does nothing.

    Raises:
        RuntimeError: if the backend of Keras is not TensorFlow.
    """
    if not IS_KERAS_2 and keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tf_adasum needs Keras on TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: backend {keras.backend.backend()!r} {see('TFA-104')}"
        )
    hooks.install()
