"""Agreement: what all workers need to have in common. Where they differ, all of them raise."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_adasum import ops
from tf_adasum._version import __version__, series
from tf_adasum.aggregation import Scheme
from tf_adasum.errors import see
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.workers.workers import Workers

SPECIAL_CARDINALITIES = {
    tf.data.INFINITE_CARDINALITY: "infinite",
    tf.data.UNKNOWN_CARDINALITY: "unknown",
}


# What a worker whose arguments are refused has in place of "accepted".
ARGUMENTS = "arguments of AdasumMirroredStrategy"

# Environment variables that must be the same on all workers: they choose how bytes are sent.
# Others may differ, such as those that name a host's devices or set what is logged.
ENVIRONMENT = (
    "UCX_TLS",
    "UCX_RNDV_SCHEME",
    "UCX_RNDV_THRESH",
    "UCX_ZCOPY_THRESH",
    "UCX_PROTO_ENABLE",
)


def terms(
    scheme: Scheme,
    devices: int,
    options: tensorflow_seam.CommunicationOptions,
    on_nonfinite: str,
    transport: str,
) -> dict:
    """Return what workers compare when they meet, before TensorFlow starts.

    Args:
        scheme: how gradients are aggregated.
        devices: the number of this worker's devices.
        options: of the strategy's collectives.
        on_nonfinite: the strategy's argument.
        transport: "tensorflow", "ucx" or "auto".
    """
    return {
        ARGUMENTS: "accepted",
        "tf_adasum": __version__,
        "TensorFlow": series(tf.__version__),
        "Keras": series(keras.__version__),
        **scheme.terms(),
        "devices per worker": devices,
        "communication_options.bytes_per_pack": options.bytes_per_pack,
        "communication_options.implementation": options.implementation.value,
        "backend of the op (TF_ADASUM_OPS)": ops.backend(),
        "on_nonfinite": on_nonfinite,
        "transport": transport,
        **{f"environment variable {name}": os.environ.get(name, "not set") for name in ENVIRONMENT},
    }


def check_same_cardinality(workers: Workers, cardinality: int) -> None:
    """Check that all workers' datasets have the same number of batches.

    Args:
        workers: the strategy's.
        cardinality: that of this worker's dataset.

    Raises:
        ValueError: on all workers, if they differ: one would wait for the others without end.
    """
    workers.check_same(
        "All workers need a dataset of the same number of batches. Give all of them the same "
        "dataset, or one of unknown cardinality, or repeat() it and pass steps_per_epoch.",
        SPECIAL_CARDINALITIES.get(cardinality, cardinality),
        code="TFA-405",
    )


def is_same_length(workers: Workers, cardinality: int) -> bool:
    """Whether all workers' datasets have the same number of batches, where they need not.

    Args:
        workers: the strategy's.
        cardinality: that of this worker's dataset.

    Raises:
        ValueError: on all workers, if some datasets are infinite and others end.
    """
    if (workers.gather([cardinality]) == cardinality).all():
        return True
    workers.check_same(
        "The workers' datasets must all be infinite, or all end: give all of them repeat() and "
        "pass steps_per_epoch, or none.",
        cardinality == tf.data.INFINITE_CARDINALITY,
        shown=str(SPECIAL_CARDINALITIES.get(cardinality, cardinality)),
        code="TFA-405",
    )
    return False


class SameGradients:
    """A check that all replicas reduce gradients of the same shapes.

    Args:
        workers: the strategy's.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._known: set[int] = set()  # what all workers have agreed on

    def check(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Compare with the other workers, if it is not known that all have the same.

        Args:
            names: for each local replica the names of the variables whose gradients it reduces.
            shapes: for each local replica their dtypes, shapes and groups.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another one has.
        """
        differ_here = len(set(shapes)) > 1
        if not differ_here and hash(shapes[0]) in self._known:
            return
        what = (
            "All replicas have to reduce the gradients of the same variables, all dense or all "
            "sparse, in the same groups of the rule's granularity; where a replica does not use a "
            "variable, give zeros instead of None."
        )
        by_replica = "; ".join(f"its replica {i}: {each}" for i, each in enumerate(names))
        # Where the local replicas differ, too: the other workers have to know.
        self._workers.check_same(
            what,
            f"worker {self._workers.rank}'s replicas differ" if differ_here else shapes[0],
            shown=by_replica if differ_here else names[0],
            code="TFA-305",
        )
        if differ_here:  # this worker is the only one
            raise ValueError(f"{what} Received: {by_replica} {see('TFA-305')}")
        self._known.add(hash(shapes[0]))
