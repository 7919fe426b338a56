"""The package tf_keras, a Keras 2 of its own that the hooks do not reach: its `fit` is refused."""

from tf_adasum.errors import see

MESSAGE = (
    "The model is one of the package tf_keras, whose gradients tf_adasum does not combine. Build "
    f"it with `import keras`, or unset TF_USE_LEGACY_KERAS if tf.keras is meant. {see('TFA-105')}"
)


def refuse_tf_keras(function):
    """Refuse what is to run on each replica if it is the step of a model of tf_keras.

    Args:
        function: what `strategy.run` was given.

    Raises:
        NotImplementedError: if it is: its gradients would be summed, not combined.
    """
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "tf_keras":
        raise NotImplementedError(MESSAGE)
