"""The package tf_keras, a Keras 2 of its own that the hooks do not reach: its `fit` is refused."""

from tf_adasum.errors import see

MESSAGE = (
    "The model is one of the package tf_keras, and tf_adasum cannot combine its gradients. Build "
    f"it with `import keras`. If you use tf.keras, unset TF_USE_LEGACY_KERAS. {see('TFA-105')}"
)


def refuse_tf_keras(function):
    """Refuse a function of each replica if it is the step of a model of tf_keras.

    Args:
        function: the function that was passed to `strategy.run`.

    Raises:
        NotImplementedError: if it is such a step: its gradients would be summed, not combined.
    """
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "tf_keras":
        raise NotImplementedError(MESSAGE)
