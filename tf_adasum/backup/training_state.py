"""The state of a training: every variable that the next step depends on, on every replica.

If a variable has the same value on all replicas, one copy is kept. Otherwise, the copies of all
replicas are kept. To decide this, digests of the copies are compared. The copies differ for metrics
and, within an epoch, for the statistics of a BatchNormalization. Under `DeltaAdasum`, the copies
also differ for slots and, between two combinations, for weights.
"""

import hashlib
import itertools
import math
import warnings

import numpy as np
import tensorflow as tf

from tf_adasum.backup.backup_files import Array, bytes_of
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see

# The sections that are needed to resume; metrics are only used for the logs of an epoch.
SECTIONS = ("model", "optimizer", "rule")
METRICS = "metrics"

# The warnings if a section does not fit the model that resumes.
RESET_WARNINGS = {
    "rule": "The state of the aggregation rule is reset, because the backup was written with "
    f"another rule, other groups of variables or another number of replicas. {see('TFA-604')}",
    METRICS: "The logs of the resumed epoch cover its remaining batches only, because the backup "
    f"was written with other metrics or on another number of replicas. {see('TFA-604')}",
}


def gather_state(model, workers, sections):
    """Return the state as a list of `Array`; all workers have to call this.

    Where replicas differ, the other workers than worker 0 get no copies but those of weights. They
    write no backup, and the slots of all replicas may need much memory.

    Args:
        model: a built model with a built optimizer.
        workers: the `Workers`.
        sections: names of sections.
    """
    variables = [(name, one) for name in sections for one in _variables(model, name)]
    local = [_values(model, one) for _, one in variables]
    replicas = min(map(len, local), default=0)
    digests = np.array([[_digest(own) for own in copies[:replicas]] for copies in local], np.int64)
    if digests.size:
        digests = workers.gather(digests.ravel()).reshape(-1, *digests.shape).swapaxes(0, 1)
    differ = [
        bool((each != each.flat[0]).any()) or len(copies) > replicas
        for each, copies in zip(digests, local, strict=True)
    ]
    of_all = _of_all_workers(workers, [name for name, _ in variables], local, differ)
    copies_of = dict(zip(np.flatnonzero(differ), of_all, strict=True))
    return [
        Array(name, keras_compat.path_of(variable), copies_of.get(index, local[index][:1]))
        for index, (name, variable) in enumerate(variables)
    ]


def smallest_size(model):
    """Return the smallest size of the state in bytes: each variable is stored once."""
    variables = [one for section in SECTIONS for one in _variables(model, section)]
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables)


def local_values(model, section):
    """Return pairs of a variable and its value, for a section's variables on the local replicas."""
    copies = (copy for one in _variables(model, section) for copy in _local_copies(model, one))
    return [(copy, copy.numpy()) for copy in copies]


def build_optimizer(model):
    """Create the optimizer's variables if they do not exist yet, for example in a custom loop."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            keras_compat.build(optimizer, model.trainable_variables)


def _of_all_workers(workers, sections, local, differ):
    """Return, for each variable that differs between replicas, the copies of all replicas."""
    own = [copies for copies, differs in zip(local, differ, strict=True) if differs]
    if workers.count == 1 or not own:
        return own
    data = b"".join(bytes_of(copy).tobytes() for copies in own for copy in copies)
    gathered, sections = [[] for _ in own], list(itertools.compress(sections, differ))
    for rank in range(workers.count):
        received = iter(_decoded(workers.broadcast_bytes(rank, data), itertools.chain(*own)))
        for section, copies, all_copies in zip(sections, own, gathered, strict=True):
            for copy in itertools.islice(received, len(copies)):
                if workers.rank == 0:
                    all_copies.append(copy)
                elif section == "model":
                    all_copies.append(copy.copy())  # a view would keep all that was received
    return gathered


def _decoded(data, like):
    """Yield arrays from bytes, with the dtypes and shapes of the arrays in `like`."""
    position = 0
    for array in like:
        value = np.frombuffer(data, array.dtype, array.size, position)
        position += array.nbytes
        yield value.reshape(array.shape)


def check(model, arrays, name):
    """Raise a ValueError unless the state fits the model.

    Args:
        model: a built model with a built optimizer.
        arrays: list of `Array`.
        name: the name of the file, for the message.
    """
    for section in ("model", "optimizer"):
        variables = _variables(model, section)
        saved = [array for array in arrays if array.section == section]
        pairs = itertools.zip_longest(
            (f"{_kind(one)} {one.path}" for one in variables),
            (f"{_kind(each.copies[0])} {each.path}" for each in saved),
            fillvalue="none",
        )
        # Only dtypes and shapes are compared, because a layer's name may depend on models created
        # before it.
        others = [pair for pair in pairs if pair[0].split()[0] != pair[1].split()[0]]
        if others:
            raise ValueError(
                f"{name} is the backup of another {section}. Use the model and optimizer that it "
                f"was written with. Expected: {others[0][0]}. Received: {others[0][1]}."
            )


def nonfinite_weight(model, arrays):
    """Return the path of a trainable weight that has a NaN or an infinity; None if none has.

    Args:
        model: a model that the state fits, see `check`.
        arrays: list of `Array`.
    """
    saved = [array for array in arrays if array.section == "model"]
    is_trained = {id(variable) for variable in model.trainable_variables}
    for variable, array in zip(_variables(model, "model"), saved, strict=True):
        is_checked = id(variable) in is_trained and tf.as_dtype(variable.dtype).is_floating
        if is_checked and not all(np.isfinite(copy).all() for copy in array.copies):
            return keras_compat.path_of(variable)
    return None


def assign(model, workers, arrays, sections):
    """Assign the saved values to the variables of every local replica.

    If the state has the copies of n replicas, replica r gets the copy of replica r modulo n, and so
    do the virtual replicas of `DeltaAdasum`.

    Args:
        model: a model that the state fits, see `check`.
        workers: the `Workers`.
        arrays: list of `Array`.
        sections: names of sections.

    Returns:
        Whether all sections fit. A warning explains the effect of a section that does not fit.
    """
    fit = True
    for section in sections:
        variables = _variables(model, section)
        saved = [array for array in arrays if array.section == section]
        if section not in ("model", "optimizer") and not _is_compatible(
            model, section, variables, saved
        ):
            if variables:
                warnings.warn(RESET_WARNINGS[section], stacklevel=2)
            fit = False
            continue
        for variable, array in zip(variables, saved, strict=True):
            own = _own(variable)
            copies, k = _local_copies(model, own), 1 if own is variable else own.shape[0]
            for number, copy in enumerate(copies, workers.rank * len(copies)):
                numbers = range(number * k, number * k + k)
                values = [array.copies[each % len(array.copies)] for each in numbers]
                copy.assign(values[0] if own is variable else np.stack(values))
    return fit


def _is_compatible(model, section, variables, saved):
    """Return whether an optional section fits this model, rule and number of replicas."""
    counts = {1, model.distribute_strategy.num_replicas_in_sync}
    if section == METRICS and any(len(array.copies) not in counts for array in saved):
        return False
    return [_kind(one) for one in variables] == [_kind(array.copies[0]) for array in saved]


def _variables(model, section):
    """Return the list of the Keras variables of a section."""
    if section == "model":
        return list(model.variables)
    if section == METRICS:
        return list(model.metrics_variables)
    optimizers = keras_compat.optimizers_of(model)
    if section == "optimizer":
        variables = [one for each in optimizers for one in keras_compat.all_variables(each)]
        of_virtual = {id(_own(one)) for one in variables if _own(one) is not one}
        return [one for one in variables if id(one) not in of_virtual]
    states = [state for each in optimizers for state in keras_compat.aggregation_states_of(each)]
    rule_states = [state.rule_state for state in states if state.rule_state]
    return [one for state in rule_states for one in state.of_name.values()]


def _own(variable):
    """Return the variable with a slot's values on a device's virtual replicas, or the variable."""
    return getattr(variable, "of_virtual_replicas", variable)


def _values(model, variable):
    """Return a variable's value on each local replica, or on each local virtual replica."""
    own = _own(variable)
    copies = [copy.numpy() for copy in _local_copies(model, own)]
    return copies if own is variable else list(map(np.asarray, itertools.chain(*copies)))


def _local_copies(model, variable):
    """Return the `tf.Variable` of each local replica."""
    return model.distribute_strategy.experimental_local_results(
        keras_compat.tensorflow_variable(variable)
    )


def _kind(value):
    """Return dtype and shape as a str without blanks."""
    return f"{tf.as_dtype(value.dtype).name}[{','.join(map(str, value.shape))}]"


def _digest(array):
    digest = hashlib.blake2b(bytes_of(array), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
