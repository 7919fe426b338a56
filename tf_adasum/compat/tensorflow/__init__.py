"""Compatibility with TensorFlow: the only package of tf_adasum that uses its private names.

The docstring of each hook explains what the hook changes in TensorFlow, and why. `hooks` lists all
hooks, and `README.md` of compat is generated from this list. All other packages of tf_adasum use
TensorFlow's internals only through this package.
"""

# ruff: noqa: F401  (other packages import these names; `checkpoints` is imported for its hooks)

from tf_adasum.compat.tensorflow import checkpoints
from tf_adasum.compat.tensorflow.broken_collectives import collective_error_of
from tf_adasum.compat.tensorflow.collective_keys import CallKeys
from tf_adasum.compat.tensorflow.cross_device_ops import (
    GradientCrossDeviceOps,
    cross_device_ops,
    per_replica,
    reading_alone,
)
from tf_adasum.compat.tensorflow.datasets import (
    forget_cardinality,
    replaceable_dataset,
    skip_end_check,
    with_end_check,
    without_autotuning,
)
from tf_adasum.compat.tensorflow.extended import (
    GradientAggregatingExtended,
    first_replica,
    making_own_variables,
    own_initial_value,
)
from tf_adasum.compat.tensorflow.gradient_options import GradientOptions
from tf_adasum.compat.tensorflow.pipelines import (
    begin_pass,
    pipeline_of,
    seed_datasets_by,
    unseeded_datasets,
    why_not_repeatable,
)
from tf_adasum.compat.tensorflow.private_names import CommunicationOptions, hooks
from tf_adasum.compat.tensorflow.runtime import (
    SEED_STRIDE,
    abort_collectives,
    can_reduce,
    clone_tf_function,
    compiles_with_xla,
    function_without_retrace_warning,
    global_seed,
    global_seed_token,
    in_graph_of_replica,
    is_tf_function,
    placeholders,
    python_function_of,
    replica,
    seeded,
    trace,
    without_strategy,
)
