"""Warns of `compile(jit_compile=True)`, with which steps run without XLA (Keras 2 and 3)."""

import warnings

from tf_adasum.errors import see


def warn_of_no_xla(model):
    """Warn that a model is trained without XLA, if `compile` has requested XLA.

    Keras lets XLA compile a whole step, with the reduction of the gradients. By default,
    `jit_compile="auto"`, it uses no XLA under a strategy of several devices.
    """
    if model.jit_compile and not model.run_eagerly:
        warnings.warn(
            f"AdasumMirroredStrategy trains {model.name!r} without XLA, because TensorFlow's "
            "collectives have no XLA kernels. Compile the model with jit_compile=False to silence "
            f"this warning. {see('TFA-304')}",
            stacklevel=4,
        )
