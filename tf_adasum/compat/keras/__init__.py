"""Compatibility with Keras: the only package of tf_adasum that uses its private names.

All other packages of tf_adasum use Keras's internals only through this package. The files of this
folder contain code for both Keras 2 and Keras 3. The folders `keras3` and `keras2` (tf.keras of
TensorFlow 2.15) contain the code that differs, under the same names. Only this file and
`generation.py` choose between the two folders.

Each hook is decorated with `hooks.replaces` or `hooks.overrides`, and its docstring gives the
reason. `tf_adasum/compat/README.md` lists all hooks.
"""

# ruff: noqa: F401  (other packages import these names; some files are imported for their hooks)

import keras

from tf_adasum.compat.keras import files, losses
from tf_adasum.compat.keras.batch_logs import ignores_batch_logs, reads_batch_logs, reads_logs_of
from tf_adasum.compat.keras.calls import (
    are_calls_under_way,
    current_call_settings,
    current_calls,
    hide_progress_bars,
    skip_log_reduction,
    when_fit_ends,
)
from tf_adasum.compat.keras.generation import IS_KERAS_2, hooks, index_of
from tf_adasum.compat.keras.optimizer_steps import is_wrapped
from tf_adasum.compat.keras.optimizers import (
    accumulation_steps,
    aggregation_states_of,
    apply_unless_nonfinite,
    assign,
    average,
    check_same_settings,
    combine,
    cond,
    floating,
    is_one_of_several,
    is_ours,
    learning_rate_of,
    of_known_shape,
    optimizers_of,
    optimizers_within,
    path_of,
    replicas_of,
    tensorflow_variable,
)
from tf_adasum.compat.keras.progress_bar import Hidden, without_hidden_values
from tf_adasum.compat.keras.statistics import average_statistics, variables_so_far
from tf_adasum.compat.keras.tf_keras import refuse_tf_keras
from tf_adasum.errors import see

if IS_KERAS_2:
    from tf_adasum.compat.keras.keras2 import files as files_of_keras2
    from tf_adasum.compat.keras.keras2 import phases as phases_of_keras2
    from tf_adasum.compat.keras.keras2.fit import (
        CALLBACKS_OF_WORKER_0,
        forget_assigned,
        reduction_of,
    )
    from tf_adasum.compat.keras.keras2.layers import WITHOUT_AUTOCAST, share_global_seeds
    from tf_adasum.compat.keras.keras2.updates import (
        LOSS_SCALE_OPTIMIZERS,
        OPTIMIZERS,
        VARIABLE_TYPES,
        all_variables,
        apply,
        build,
    )
    from tf_adasum.compat.keras.keras2.wrapper import (
        LAMB_MODULE,
        OF_SWAP_EMA_WEIGHTS,
        Step,
        WrapperBase,
        swap_learning_rate,
    )
else:
    from tf_adasum.compat.keras.keras3 import loss_scaling, metrics
    from tf_adasum.compat.keras.keras3 import phases as phases_of_keras3
    from tf_adasum.compat.keras.keras3.build import is_model_built
    from tf_adasum.compat.keras.keras3.epochs import iterator_of_training, set_data_order
    from tf_adasum.compat.keras.keras3.fit import (
        CALLBACKS_OF_WORKER_0,
        disable_async_callbacks,
        flush_async_callbacks,
        set_initial_epoch,
    )
    from tf_adasum.compat.keras.keras3.layers import WITHOUT_AUTOCAST, share_global_seeds
    from tf_adasum.compat.keras.keras3.updates import (
        LOSS_SCALE_OPTIMIZERS,
        OPTIMIZERS,
        VARIABLE_TYPES,
        Step,
        all_variables,
        apply,
        build,
    )
    from tf_adasum.compat.keras.keras3.variables import forget_assigned, reduction_of
    from tf_adasum.compat.keras.keras3.wrapper import (
        LAMB_MODULE,
        OF_SWAP_EMA_WEIGHTS,
        WrapperBase,
        swap_learning_rate,
    )


def install():
    """Install the hooks. A second call does nothing.

    Raises:
        RuntimeError: if the backend of Keras is not TensorFlow.
    """
    if not IS_KERAS_2 and keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tf_adasum needs Keras on TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: backend {keras.backend.backend()!r} {see('TFA-104')}"
        )
    hooks.install()
