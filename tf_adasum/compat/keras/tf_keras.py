"""Refuses `fit` of models of the package tf_keras, a separate Keras 2 without our hooks."""

from tf_adasum.errors import see

MESSAGE = (
    "The model is one of the package tf_keras, and tf_adasum cannot combine its gradients. Build "
    "the model with `import keras`. If you use tf.keras, unset TF_USE_LEGACY_KERAS. "
    + see("TFA-105")
)


def refuse_tf_keras(function):
    """Raise an error if a function for the replicas is the step of a model of tf_keras.

    Args:
        function: the function that was passed to `strategy.run`.

    Raises:
        NotImplementedError: if it is such a step. Its gradients would be summed, and not combined
            with the rule.
    """
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "tf_keras":
        raise NotImplementedError(MESSAGE)
