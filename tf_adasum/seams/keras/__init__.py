"""The seam to Keras: every private Keras name this package touches is in this folder.

One file for each generation, with the same functions: `keras3` and `keras2`, which is tf.keras of
TensorFlow 2.15. `shared` is what they have in common. Nothing else asks which Keras it is.
"""

import keras
import tensorflow as tf

from tf_adasum.seams.keras.shared import (
    accumulation_steps,
    assign,
    check_same_settings,
    cond,
    exchangeable,
    expect,
    is_wrapped,
    of_known_shape,
    path_of,
    reductions_of,
    take_over,
    tensorflow_variable,
)

IS_KERAS_2 = keras.__version__.startswith("2.")
if IS_KERAS_2 != tf.__version__.startswith("2.15."):
    raise ImportError(
        "tf_adasum works with Keras 2.15 on TensorFlow 2.15, and with Keras 3.15 on TensorFlow "
        f"2.21: install one of the pairs (README, 'Two lanes'). Found: Keras {keras.__version__}, "
        f"TensorFlow {tf.__version__}"
    )
if IS_KERAS_2:
    from tf_adasum.seams.keras import keras2 as generation
else:
    from tf_adasum.seams.keras import keras3 as generation

BACKS_UP_ONE_WORKER = generation.BACKS_UP_ONE_WORKER
CALLBACKS_OF_WORKER_0 = generation.CALLBACKS_OF_WORKER_0
LAMB_MODULE = generation.LAMB_MODULE
LOSS_SCALE_OPTIMIZERS = generation.LOSS_SCALE_OPTIMIZERS
OF_SWAP_EMA_WEIGHTS = generation.OF_SWAP_EMA_WEIGHTS
OPTIMIZERS = generation.OPTIMIZERS
VARIABLE_TYPES = generation.VARIABLE_TYPES
WITHOUT_AUTOCAST = generation.WITHOUT_AUTOCAST
StepOfWrapper = generation.StepOfWrapper
WrapperBase = generation.WrapperBase
add_accumulator = generation.add_accumulator
all_variables = generation.all_variables
apply = generation.apply
average_weights = generation.average_weights
begin_together = generation.begin_together
build = generation.build
call_in_order = generation.call_in_order
combine = generation.combine
exchange_learning_rate = generation.exchange_learning_rate
floating = generation.floating
index_of = generation.index_of
initial_epoch = generation.initial_epoch
install = generation.install
is_built = generation.is_built
own_variables = generation.own_variables
position_in_data = generation.position_in_data
set_data_order = generation.set_data_order
set_initial_epoch = generation.set_initial_epoch
variables_to_save = generation.variables_to_save

__all__ = [
    "BACKS_UP_ONE_WORKER",
    "CALLBACKS_OF_WORKER_0",
    "LAMB_MODULE",
    "LOSS_SCALE_OPTIMIZERS",
    "OF_SWAP_EMA_WEIGHTS",
    "OPTIMIZERS",
    "VARIABLE_TYPES",
    "WITHOUT_AUTOCAST",
    "StepOfWrapper",
    "WrapperBase",
    "accumulation_steps",
    "add_accumulator",
    "all_variables",
    "apply",
    "assign",
    "average_weights",
    "begin_together",
    "build",
    "call_in_order",
    "check_same_settings",
    "combine",
    "cond",
    "exchange_learning_rate",
    "exchangeable",
    "expect",
    "floating",
    "index_of",
    "initial_epoch",
    "install",
    "is_built",
    "is_wrapped",
    "of_known_shape",
    "own_variables",
    "path_of",
    "position_in_data",
    "reductions_of",
    "set_data_order",
    "set_initial_epoch",
    "take_over",
    "tensorflow_variable",
    "variables_to_save",
]
