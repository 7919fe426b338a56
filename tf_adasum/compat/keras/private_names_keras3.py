"""The private modules, classes and functions of Keras 3 that tf_adasum touches."""

import keras

from tf_adasum._version import INSTALL_KERAS
from tf_adasum.compat.library import Library

library = Library("Keras", keras.__version__, INSTALL_KERAS)
name = library.name

# ---- required names ----------------------------------------------------------------------------

OF_ADAPTERS = "keras.src.trainers.data_adapters"

global_state = name("keras.src.backend.common", "global_state")
nn = name("keras.src.backend.tensorflow", "nn", also_in=["keras.src.backend.tensorflow.ops"])
trainer = name("keras.src.backend.tensorflow", "trainer")
TFOptimizer = name("keras.src.backend.tensorflow.optimizer", "TFOptimizer")
TensorFlowTrainer = name(
    "keras.src.backend.tensorflow.trainer",
    "TensorFlowTrainer",
    also_in=["keras.src.backend.tensorflow.trainer:Trainer"],  # since Keras 3.16
)
TFEpochIterator = name("keras.src.backend.tensorflow.trainer", "TFEpochIterator")
losses = name("keras.src.losses", "loss")
BaseOptimizer = name("keras.src.optimizers.base_optimizer", "BaseOptimizer")
saving_lib = name("keras.src.saving", "saving_lib")
TFDatasetAdapter = name(f"{OF_ADAPTERS}.tf_dataset_adapter", "TFDatasetAdapter")
BaseTrainer = name(
    "keras.src.trainers.trainer",
    "Trainer",
    also_in=["keras.src.trainers.trainer:BaseTrainer"],  # since Keras 3.16
)
pythonify_logs = name("keras.src.utils.python_utils", "pythonify_logs")

# ---- names that only a feature needs -----------------------------------------------------------

MULTI_OPTIMIZER = "keras.optimizers.MultiOptimizer"
MultiOptimizer = name(
    "keras.src.optimizers.multi_optimizer", "MultiOptimizer", feature=MULTI_OPTIMIZER, since="3.15"
)

XLA = "compile(jit_compile=True): steps run without XLA"
MASKS = "keras.src.backend.common.masking"
get_keras_mask = name(MASKS, "get_keras_mask", feature=XLA)
set_keras_mask = name(MASKS, "set_keras_mask", feature=XLA)

CLASS_WEIGHTS = "the argument class_weight of train_on_batch, which raises an error"
class_weight_to_sample_weights = name(
    f"{OF_ADAPTERS}.data_adapter_utils", "class_weight_to_sample_weights", feature=CLASS_WEIGHTS
)

PY_DATASETS = (
    "the same order on all workers for a keras.utils.PyDataset that shuffles (if it is off, pass "
    "shuffle=False; otherwise some rows are used twice and others never)"
)
OF_PY_DATASETS = f"{OF_ADAPTERS}.py_dataset_adapter"
OrderedEnqueuer = name(OF_PY_DATASETS, "OrderedEnqueuer", feature=PY_DATASETS)
PyDatasetAdapter = name(OF_PY_DATASETS, "PyDatasetAdapter", feature=PY_DATASETS)

ARRAYS = "the check that all workers pass arrays of the same number of rows"
ArrayDataAdapter = name(f"{OF_ADAPTERS}.array_data_adapter", "ArrayDataAdapter", feature=ARRAYS)

GENERATORS = "the comparison of the first batches of Python generators"
GeneratorDataAdapter = name(
    f"{OF_ADAPTERS}.generator_data_adapter", "GeneratorDataAdapter", feature=GENERATORS
)


library.check()

# ------------------------------------------------------------------------------------------------

# The name of the generator of seeds in Keras's global state.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

# The class with `fit`.
Trainer = TensorFlowTrainer

# The functions that scale losses by the number of replicas, and that undo the scaling.
SCALING_OF_LOSSES = ("scale_loss_for_distribution", "unscale_loss_for_distribution")

# The attribute with the moving averages of the weights, if an optimizer has `use_ema`.
MOVING_AVERAGES = "_model_variables_moving_average"

# Method that waits for a CallbackList's calls in other threads: its name since Keras 3.12, and its
# name in older versions.
ENDING_CALLS = ("_flush_futures", "_clear_futures")
