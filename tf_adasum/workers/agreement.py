"""Checks that settings match on all workers; if they differ, all workers raise an error."""

import os
import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_adasum import environment_variables, ops
from tf_adasum._version import __version__, series
from tf_adasum.aggregation import Scheme
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.workers.workers import Workers

SPECIAL_CARDINALITIES = {
    tf.data.INFINITE_CARDINALITY: "infinite",
    tf.data.UNKNOWN_CARDINALITY: "unknown",
}


# The name of a setting. Its value is "accepted", or the error if this worker's arguments are not
# valid.
ARGUMENTS = "arguments of AdasumMirroredStrategy"

# Environment variables that must be the same on all workers, because they choose how bytes are
# sent. Other variables may differ, such as variables for a host's devices or for logging.
ENVIRONMENT = (
    "UCX_TLS",
    "UCX_RNDV_SCHEME",
    "UCX_RNDV_THRESH",
    "UCX_ZCOPY_THRESH",
    "UCX_PROTO_ENABLE",
)


def settings(
    scheme: Scheme,
    devices: int,
    options: tensorflow_compat.CommunicationOptions,
    on_nonfinite: str,
    transport: str,
    virtual_replicas: int,
) -> dict:
    """Return the settings that workers compare at the rendezvous, before TensorFlow starts.

    Args:
        scheme: how gradients are aggregated.
        devices: the number of this worker's devices.
        options: the options of the strategy's collectives.
        on_nonfinite: the strategy's argument `on_nonfinite`.
        transport: "tensorflow", "ucx" or "auto".
        virtual_replicas: the number of virtual replicas.
    """
    for sentence in environment_variables.misspelt():
        warnings.warn(sentence, stacklevel=3)
    return {
        ARGUMENTS: "accepted",
        "tf_adasum": __version__,
        "TensorFlow": series(tf.__version__),
        "Keras": series(keras.__version__),
        **scheme.settings_that_must_match(),
        "devices per worker": devices,
        "communication_options.bytes_per_pack": options.bytes_per_pack,
        "communication_options.implementation": options.implementation.value,
        "backend of the op (TF_ADASUM_OPS)": ops.backend(),
        "on_nonfinite": on_nonfinite,
        "transport": transport,
        "virtual_replicas": virtual_replicas,
        **{f"environment variable {name}": os.environ.get(name, "not set") for name in ENVIRONMENT},
    }


def check_same_cardinality(workers: Workers, cardinality: int) -> None:
    """Check that all workers' datasets have the same number of batches.

    Args:
        workers: the strategy's `Workers`.
        cardinality: the cardinality of this worker's dataset.

    Raises:
        ValueError: on all workers, if the numbers differ. Without this check, workers with more
            batches would wait forever for the other workers.
    """
    workers.check_same(
        "All workers need a dataset of the same number of batches. Use the same dataset on all "
        "workers, or a dataset of unknown cardinality, or call repeat() and pass steps_per_epoch.",
        SPECIAL_CARDINALITIES.get(cardinality, cardinality),
        code="TFA-405",
    )


def is_same_length(workers: Workers, cardinality: int) -> bool:
    """Return whether all datasets have the same number of batches; different numbers are allowed.

    Args:
        workers: the strategy's `Workers`.
        cardinality: the cardinality of this worker's dataset.

    Raises:
        ValueError: on all workers, if some datasets are infinite and others end.
    """
    if (workers.gather([cardinality]) == cardinality).all():
        return True
    workers.check_same(
        "The datasets of some workers are infinite, and others end. Call repeat() on all workers "
        "and pass steps_per_epoch, or call repeat() on no worker.",
        cardinality == tf.data.INFINITE_CARDINALITY,
        shown=str(SPECIAL_CARDINALITIES.get(cardinality, cardinality)),
        code="TFA-405",
    )
    return False


class SameGradients:
    """Checks that all replicas reduce gradients of the same shapes.

    Args:
        workers: the strategy's `Workers`.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._known: set[int] = set()  # hashes of shapes that were the same on all workers

    def check(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Compare gradients with the other workers, unless the same gradients were compared before.

        Args:
            names: for each local replica, the names of the variables whose gradients it reduces.
            shapes: for each local replica, the dtypes, shapes and groups of these gradients.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another replica has.
        """
        differ_here = len(set(shapes)) > 1
        if not differ_here and hash(shapes[0]) in self._known:
            return
        what = (
            "All replicas have to reduce the gradients of the same variables, all dense or all "
            "sparse, in the same groups of the rule's granularity. If a replica does not use a "
            "variable, pass zeros instead of None."
        )
        by_replica = "; ".join(f"its replica {i}: {each}" for i, each in enumerate(names))
        # Called even if the local replicas differ, so that the other workers also raise an error.
        self._workers.check_same(
            what,
            f"worker {self._workers.rank}'s replicas differ" if differ_here else shapes[0],
            shown=by_replica if differ_here else names[0],
            code="TFA-305",
        )
        if differ_here:  # there is no other worker
            raise ValueError(f"{what} Received: {by_replica} {see('TFA-305')}")
        self._known.add(hash(shapes[0]))
