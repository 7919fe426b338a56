"""The state of a training: every variable that the next step depends on, on every replica.

Most variables have one value on all replicas, and of these one copy is kept. Some have not: the
slots and, between two combinations, the weights under `DeltaAdasum`; the statistics of a
BatchNormalization within an epoch; metrics. Of these every replica's copy is kept. Which they are
is not known beforehand but seen, by comparing digests.
"""

import hashlib
import itertools
import warnings

import numpy as np
import tensorflow as tf

from tf_adasum.backup.backup_files import Array, bytes_of
from tf_adasum.seams import keras as keras_seam

# What has to be there to go on, section by section; metrics only serve the logs of an epoch.
SECTIONS = ("model", "optimizer", "rule")
METRICS = "metrics"

# What is said where a section does not fit the model that goes on.
ANEW = {
    "rule": "The aggregation rule's state starts anew: the backup holds that of another rule, "
    "other groups of variables or another number of replicas.",
    METRICS: "The logs of the resumed epoch are those of its remaining batches: the backup was "
    "written with other metrics or on another number of replicas.",
}


def collect(model, workers, sections):
    """Returns the state as a list of `Array`; all workers have to call it.

    Args:
        model: a built model with a built optimizer.
        workers: the `Workers`; None in a single process.
        sections: names of sections.

    Returns:
        On worker 0 the state; on others it lacks the other workers' copies.
    """
    variables = [(name, one) for name in sections for one in _variables(model)[name]]
    local = [[copy.numpy() for copy in _local_copies(model, one)] for _, one in variables]
    digests = np.array([[_digest(copy) for copy in copies] for copies in local], np.int64)
    if workers and digests.size:
        digests = workers.gather(digests.ravel()).reshape(-1, *digests.shape).swapaxes(0, 1)
    differ = [bool((each != each.flat[0]).any()) for each in digests]
    copies_of = dict(
        zip(np.flatnonzero(differ), _of_all_workers(workers, local, differ), strict=True)
    )
    return [
        Array(name, keras_seam.path_of(variable), copies_of.get(index, local[index][:1]))
        for index, (name, variable) in enumerate(variables)
    ]


def _of_all_workers(workers, local, differ):
    """Returns every replica's copy of each variable that differs."""
    own = [copies for copies, differs in zip(local, differ, strict=True) if differs]
    if not workers or not own:
        return own
    data = b"".join(bytes_of(copy).tobytes() for copies in own for copy in copies)
    received, gathered = workers.gather_bytes(data), [[] for _ in own]
    for data in received:
        position = 0
        for copies, all_copies in zip(own, gathered, strict=True):
            for copy in copies:
                value = np.frombuffer(data, copy.dtype, copy.size, position)
                position += copy.nbytes
                all_copies.append(value.reshape(copy.shape))
    return gathered


def check(model, arrays, name):
    """Raises a ValueError, the same on all workers, unless the state is one of such a model.

    Args:
        model: a built model with a built optimizer.
        arrays: list of `Array`.
        name: of the file, for the message.
    """
    for section in ("model", "optimizer"):
        variables = _variables(model)[section]
        saved = [array for array in arrays if array.section == section]
        pairs = itertools.zip_longest(
            (f"{_kind(one)} {one.path}" for one in variables),
            (f"{_kind(each.copies[0])} {each.path}" for each in saved),
            fillvalue="none",
        )
        # Only kinds are compared: a layer's name may count the models made before it.
        others = [pair for pair in pairs if pair[0].split()[0] != pair[1].split()[0]]
        if others:
            raise ValueError(
                f"{name} is the backup of another {section}. Expected: {others[0][0]}. Received: "
                f"{others[0][1]}. Use the model and optimizer it was written with, or another "
                "`backup_dir`."
            )


def assign(model, workers, arrays, sections):
    """Gives the variables of every local replica their values.

    Where the state has a copy for each of other than this many replicas, replica r takes that of
    replica r modulo their number.

    Args:
        model: a model that the state fits, see `check`.
        workers: the `Workers`; None in a single process.
        arrays: list of `Array`.
        sections: names of sections.
    """
    for section in sections:
        variables = _variables(model)[section]
        saved = [array for array in arrays if array.section == section]
        if section not in ("model", "optimizer") and not _fit(model, section, variables, saved):
            if variables:
                warnings.warn(ANEW[section], stacklevel=2)
            continue
        for variable, array in zip(variables, saved, strict=True):
            copies = _local_copies(model, variable)
            first = workers.rank * len(copies) if workers else 0
            for local, copy in enumerate(copies):
                copy.assign(array.copies[(first + local) % len(array.copies)])


def _fit(model, section, variables, saved):
    """Whether what a training can do without is of this model, rule and number of replicas."""
    counts = {1, model.distribute_strategy.num_replicas_in_sync}
    if section == METRICS and any(len(array.copies) not in counts for array in saved):
        return False
    return [_kind(one) for one in variables] == [_kind(array.copies[0]) for array in saved]


def _variables(model):
    """dict from the names of the sections to the lists of their Keras variables."""
    optimizer = model.optimizer
    reductions = keras_seam.reductions_of(optimizer) if optimizer else None
    rule_state = reductions.rule_state if reductions else None
    return {
        "model": list(model.variables),
        "optimizer": list(optimizer.variables) if optimizer else [],
        "rule": list(rule_state.of_name.values()) if rule_state else [],
        METRICS: list(model.metrics_variables),
    }


def _local_copies(model, variable):
    """The `tf.Variable` of each local replica."""
    return model.distribute_strategy.experimental_local_results(
        keras_seam.tensorflow_variable(variable)
    )


def _kind(value):
    """Dtype and shape, without blanks."""
    return f"{tf.as_dtype(value.dtype).name}[{','.join(map(str, value.shape))}]"


def _digest(array):
    return int.from_bytes(hashlib.blake2b(bytes_of(array), digest_size=8).digest(), signed=True)
