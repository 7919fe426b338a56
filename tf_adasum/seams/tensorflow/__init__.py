"""The seam to TensorFlow: every private TensorFlow name that the package touches is in this folder.

What is changed in TensorFlow, and why, stands at the functions that change it; `hooks` lists them,
and docs/hooks.md is made of that list. What the rest of the package asks of TensorFlow's inside is
imported here.
"""

from tf_adasum.seams.tensorflow.cross_device_ops import (
    GradientCrossDeviceOps,
    GradientReduction,
    cross_device_ops,
    reading_alone,
)
from tf_adasum.seams.tensorflow.datasets import (
    cardinality,
    forget_cardinality,
    without_autotuning,
)
from tf_adasum.seams.tensorflow.extended import (
    GradientAggregatingExtended,
    first_replica,
    making_own_variables,
)
from tf_adasum.seams.tensorflow.private_names import CommunicationOptions
from tf_adasum.seams.tensorflow.registry import hooks
from tf_adasum.seams.tensorflow.runtime import (
    abort_collectives,
    compiles_with_xla,
    global_seed,
    is_tf_function,
    may_come_from_another_worker,
    of_function,
    seeded,
    seeding,
)

__all__ = [
    "CommunicationOptions",
    "GradientAggregatingExtended",
    "GradientCrossDeviceOps",
    "GradientReduction",
    "abort_collectives",
    "cardinality",
    "compiles_with_xla",
    "cross_device_ops",
    "first_replica",
    "forget_cardinality",
    "global_seed",
    "hooks",
    "is_tf_function",
    "making_own_variables",
    "may_come_from_another_worker",
    "of_function",
    "reading_alone",
    "seeded",
    "seeding",
    "without_autotuning",
]
