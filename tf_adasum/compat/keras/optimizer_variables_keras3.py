"""The variables that an optimizer of Keras 3 updates."""


def variables_of(optimizer):
    """Return the list of variables that a built optimizer was built for."""
    return list(optimizer._trainable_variables)


def index_of(optimizer, variable):
    """Return the index of a Keras or TensorFlow variable in `variables_of`."""
    return optimizer._get_variable_index(variable)
