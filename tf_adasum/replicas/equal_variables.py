"""Checks that all replicas hold the same bits in the variables that they share.

Every replica has a copy of each variable, and the copies stay equal only because all replicas take
the same steps. Without a check, a worker that starts from other weights, or assigns its own values,
continues without an error.

The host computes a digest of each copy, the CRC-32 of its bytes. So the copies are compared bit by
bit, for every dtype, and also for -0 and NaN. If all differing bits lie within 32 consecutive bits,
the difference is always detected. Any other difference is detected with probability 1 - 2^-32.
Variables are read one at a time. One collective compares the number of variables, and another one
gathers the digests, 8 bytes for each variable and replica.

Shape legend: N is the number of replicas, V is the number of variables.
"""

import zlib

import numpy as np
import tensorflow as tf

from tf_adasum import arguments
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import ReplicasDifferError, see

NOT_HERE = 0  # the digest of a variable that does not exist on a worker (any more)


def is_shared(variable):
    """Return whether a variable has to be the same on all replicas.

    All weights, including frozen weights, and the variables of an optimizer have to be the same.
    Variables that each replica computes from its own rows may differ: moving statistics, metrics,
    slots of `DeltaAdasum`. If `layer.trainable` changes, the `trainable` of its `tf.Variable`s does
    not change, so frozen weights are included. If assignments to a variable are summed or averaged
    over the replicas, the variable has to be the same on all replicas.

    Args:
        variable: a Keras or TensorFlow variable, created under a strategy or not.
    """
    variable = keras_compat.tensorflow_variable(variable)
    is_reduced = variable.aggregation != tf.VariableAggregation.NONE
    is_own = variable.synchronization == tf.VariableSynchronization.ON_READ
    return (variable.trainable or is_reduced) and not is_own


def shared_variables(model):
    """Return the variables of a model and its optimizers that have to be the same on all replicas.

    The state of the aggregation rule is included. While a `DeltaAdasum` has taken local steps that
    are not combined yet, the weights differ between replicas, so they are not included.
    """
    optimizers = keras_compat.optimizers_of(model)
    # Variables that do not exist yet are created in the first step, from the values of worker 0.
    candidates = keras_compat.variables_so_far(model)
    if not all(map(_is_synchronized, optimizers)):
        candidates = []
    for optimizer in optimizers:
        candidates += keras_compat.all_variables(optimizer)
    shared = [variable for variable in candidates if is_shared(variable)]
    for optimizer in optimizers:
        for state in keras_compat.aggregation_states_of(optimizer):
            if state.rule_state:
                shared += state.rule_state.of_name.values()
    return shared


def _is_synchronized(optimizer):
    """Return False if the optimizer, or one inside it, has local steps not yet combined."""
    each_within = keras_compat.optimizers_within(optimizer)
    return all(getattr(each, "is_synchronized", True) for each in each_within)


def check(strategy, variables=None):
    """Compare the replicas' copies of variables.

    Args:
        strategy: an `AdasumMirroredStrategy`; all its workers have to call this function.
        variables: list of Keras or TensorFlow variables, in the same order on all workers. Defaults
            to all shared variables that were created under the strategy and still exist.

    Raises:
        ReplicasDifferError: on all workers; the message names the first variable that differs.
        ValueError: on all workers, if they pass different numbers of variables; if this function is
            called in a `tf.function`; if an element of `variables` is not a variable.
    """
    context = tf.distribute.get_replica_context()
    if tf.inside_function() or (context and context.strategy is strategy):
        raise ValueError(
            "check_replicas reads the variables of all replicas: call it outside of tf.function "
            "and strategy.run."
        )
    variables = _all_shared(strategy) if variables is None else _checked(variables)
    if strategy.num_replicas_in_sync == 1:
        return

    local_replicas = range(len(strategy.extended.worker_devices))
    digests = np.zeros([len(local_replicas), len(variables)], np.int64)
    for number, variable in enumerate(variables):
        if variable is not None:
            digests[:, number] = _digests(strategy, variable, len(local_replicas))

    strategy._workers.check_same(
        "All workers have to check the same variables.",
        f"{len(variables)} variable{'s' * (len(variables) != 1)}",
        code="TFA-508",
    )
    shape = strategy.num_replicas_in_sync, len(variables)
    digests_NV = strategy._workers.gather(digests.ravel()).reshape(shape)
    everywhere_V = (digests_NV != NOT_HERE).all(axis=0)
    different_V = everywhere_V & (digests_NV != digests_NV[0]).any(axis=0)
    if different_V.any():
        first = int(np.argmax(different_V))
        others = np.flatnonzero(digests_NV[:, first] != digests_NV[0, first])
        raise ReplicasDifferError(
            _message(variables[first], others, int(different_V.sum()), len(local_replicas))
        )


def _all_shared(strategy):
    """Return a strategy's variables; None for each that is not shared or no longer exists."""
    return [
        variable if variable is not None and is_shared(variable) else None
        for variable in strategy.extended.created_variables()
    ]


def _checked(variables):
    is_valid = isinstance(variables, (list, tuple)) and all(
        isinstance(each, keras_compat.VARIABLE_TYPES) for each in variables
    )
    expected = "must be a list of Keras or TensorFlow variables, or None"
    arguments.check("variables", variables, is_valid, expected)
    return list(variables)


def _digests(strategy, variable, local_replicas):
    """Return the digest of each local replica's copy of a variable.

    A variable that was created without a strategy has only one copy, so its digest is repeated.
    """
    copies = strategy.experimental_local_results(keras_compat.tensorflow_variable(variable))
    digests = [_digest(copy.numpy()) for copy in copies]
    return digests if len(digests) == local_replicas else digests[:1] * local_replicas


def _digest(value):
    """Return a number from 1 to 2^32 for the bytes of an array, its dtype and shape."""
    value = np.asarray(value)
    if value.dtype == object:  # strings
        value_bytes = np.frombuffer(repr(value.tolist()).encode(), np.uint8)
    else:
        value_bytes = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return 1 + zlib.crc32(value_bytes, zlib.crc32(f"{value.dtype.name}{value.shape}".encode()))


def _message(variable, replicas, differing, devices):
    more = f" (the first of {differing} variables)" if differing > 1 else ""
    where = [
        f"replica {replica}" + (f" (worker {replica // devices})" if replica >= devices else "")
        for replica in replicas
    ]
    path = keras_compat.path_of(variable)
    return (
        f"The replicas hold different values of {path!r}{more}. Restore the same file on all "
        "workers, make the same assignments on all workers, and let only the optimizer change "
        "weights in a step. "
        f"Received: values that differ from replica 0 on {', '.join(where)} {see('TFA-508')}"
    )
