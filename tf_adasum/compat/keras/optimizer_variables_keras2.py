"""The variables that an optimizer of Keras 2 updates."""

import tensorflow as tf


def variables_of(optimizer):
    """Return the variables that an optimizer updates, usually all variables of a model.

    The optimizers of Keras 2 do not store these variables, so `updates.build` does.
    """
    return list(optimizer.first_variables)


def index_of(optimizer, variable):
    """Return the index of a variable in `variables_of`."""
    key = key_of(variable)
    for index, own in enumerate(optimizer.first_variables):
        if key_of(own) == key:
            return index
    raise ValueError(
        f"This {type(optimizer).__name__} was built for other variables. Use another optimizer "
        f"for this variable. Received: {variable.name}"
    )


def distributed(variable):
    """Return the distributed variable that a replica's variable belongs to."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    container = getattr(getattr(variable, "handle", None), "_distributed_container", None)
    return container() if container else variable


def key_of(variable):
    """Return a key that a distributed variable and its replicas' variables have in common."""
    return distributed(variable)._unique_id
