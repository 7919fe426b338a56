"""The two lanes of the tests: Keras 3 with TensorFlow 2.21, Keras 2 with TensorFlow 2.15.

Tests take from here what has another name in each. What Keras 2 has no notion of is listed here by
name, with the reason why its tests are skipped there.
"""

import contextlib
import functools
import re

import keras
import tensorflow as tf

from tf_adasum.seams import keras as keras_seam

IS_KERAS_2 = keras.__version__.startswith("2.")

# How many gradients a step may have in `gradients_per_step`.
MOST_GRADIENTS = 4

if IS_KERAS_2:

    def Variable(value, dtype=None, **options):
        """A variable as Keras 3 makes it: of floatx, if nothing else is said."""
        return tf.Variable(tf.cast(value, dtype or keras.backend.floatx()), **options)

    PyDataset = keras.utils.Sequence
    LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer
    LEARNING_RATE_IN_LOGS = "lr"  # what callbacks that set it call it
    set_dtype_policy = keras.mixed_precision.set_global_policy
else:
    Variable = keras.Variable
    PyDataset = keras.utils.PyDataset
    LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
    LEARNING_RATE_IN_LOGS = "learning_rate"
    set_dtype_policy = keras.config.set_dtype_policy


# ---- steps with several gradients, in one process ----------------------------------------------
#
# Keras 3 accumulates them, call by call. Keras 2 does not: there each of some local replicas has
# one, and what would be several calls is one.


def make_devices():
    """Makes the devices of the replicas; only before TensorFlow runs anything."""
    if IS_KERAS_2:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * MOST_GRADIENTS,
        )


@functools.cache
def _strategy_of(replicas):
    return tf.distribute.MirroredStrategy(
        devices_of(replicas),
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def gradients_per_step(count):
    """The context in which a test makes models and optimizers, and takes steps, with so many."""
    return _strategy_of(count).scope() if IS_KERAS_2 and count > 1 else contextlib.nullcontext()


def devices_of(count):
    """Returns the devices that a step with so many gradients takes."""
    return [f"CPU:{index}" for index in range(count if IS_KERAS_2 else 1)]


def calls_per_update(count):
    """Returns how many calls an update takes if it has so many gradients."""
    return 1 if IS_KERAS_2 else count


def accumulating(cls, learning_rate, steps, **options):
    """Returns an optimizer that updates with the mean of so many gradients."""
    if not IS_KERAS_2:
        return cls(learning_rate, gradient_accumulation_steps=steps, **options)
    assert calls_at_once() == steps, f"this needs gradients_per_step({steps})"
    return cls(learning_rate, **options)


def calls_at_once():
    """Returns how many calls of Keras 3 are one here."""
    return tf.distribute.get_strategy().num_replicas_in_sync if IS_KERAS_2 else 1


def build(optimizer, variables):
    """Builds an optimizer; a legacy one, too, which Keras builds in its first step."""
    keras_seam.build(optimizer, variables)


def apply(optimizer, calls, variables):
    """Takes a step with the gradients of `calls_at_once` calls, a list of lists."""
    if not IS_KERAS_2:
        (gradients,) = calls
        optimizer.apply(gradients, variables)
        return
    strategy = tf.distribute.get_strategy()
    assert len(calls) == strategy.num_replicas_in_sync

    def in_replica():
        context = tf.distribute.get_replica_context()
        index = int(tf.get_static_value(context.replica_id_in_sync_group))
        # As of a loss that is divided by the number of replicas.
        gradients = [_divided(gradient, len(calls)) for gradient in calls[index]]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    strategy.run(in_replica)


def apply_in(strategy, optimizer, gradients, variables):
    """Takes a step of the replicas of a strategy with the same gradients on each."""

    def in_replica():
        if IS_KERAS_2:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            optimizer.apply(gradients, variables)

    strategy.run(in_replica)


def legacy_optimizer(name, *args, **options):
    """Returns an optimizer of Keras 2's older kind; of the only one elsewhere."""
    module = keras.optimizers.legacy if IS_KERAS_2 else keras.optimizers
    return getattr(module, name)(*args, **options)


def _divided(gradient, count):
    if gradient is None or count == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / count


# A caller of a LossScaleOptimizer scales the loss; with Keras 2 it unscales the gradients, too.
CALLER_UNSCALES = IS_KERAS_2

# Keras 2 halves the scale of the loss to 1, and no further.
LEAST_LOSS_SCALE = 1 if IS_KERAS_2 else 0

# The averages of `use_ema` start with the weights before the first step, or after it.
AVERAGES_START_BEFORE = IS_KERAS_2

# `learning_rate` of an optimizer with a schedule is that of the last step, and not of the next.
RATE_IS_OF_LAST_STEP = IS_KERAS_2

# That a variable has no gradient is logged, and no warning.
MISSING_GRADIENTS_ARE_LOGGED = IS_KERAS_2

# A step that a LossScaleOptimizer leaves out is counted in `iterations`.
COUNTS_STEPS_LEFT_OUT = IS_KERAS_2

# Few steps: on local replicas each takes half a second eagerly, and else tracing takes as long.
RUNS_EAGERLY = not IS_KERAS_2


def first_of(optimizer):
    """Returns the variables that an optimizer was built for."""
    return optimizer.first_variables if IS_KERAS_2 else optimizer._trainable_variables


# ---- what is in one lane only ------------------------------------------------------------------

# Files under tests/ that are not even read in the other lane.
FILES_OF_KERAS_2 = {
    "unit/optimizers/test_addons.py": "TensorFlow Addons",
    "unit/seams/test_seam_names_keras2.py": "private names of Keras 2",
}
FILES_OF_KERAS_3 = {
    "multi_worker/test_backup.py": "our BackupAndRestore; Keras 2 backs up all workers by itself",
    "multi_worker/test_elastic.py": "our BackupAndRestore; Keras 2 backs up all workers by itself",
    "unit/seams/test_seam_names_keras3.py": "private names of Keras 3; see ..._keras2.py",
    "unit/seams/test_seam_names.py": "private names of TensorFlow 2.21",
    "unit/seams/test_seam_behaviour.py": "what Keras 3 does that the seam mends",
    "unit/optimizers/test_lamb.py": "LAMB of our own; there it is Addons', see test_addons.py",
}

# Tests by the beginning of their id after the folder: "file.py::test" or "file.py::test[a-b".
_ON_DEVICES = "test_adascale_on_replicas.py::TestOnDevices"
_OPTIONS = "test_optimizers.py::test_every_option_on_several_workers"
_ACCUMULATION = "it has no gradient_accumulation_steps"
_STEPS = "`fit` demands steps_per_epoch with a distributed dataset"
_BACKUPS = "it backs up all workers by itself"
# What stands in a test's parameters.
OPTIMIZERS_OF_KERAS_3 = {
    "accumul": _ACCUMULATION,
    "nadam": "its Nadam counts steps in Python, and takes other ones in a function than eagerly",
}
ABSENT_IN_KERAS_2 = {
    "test_optimizers.py::TestOnLocalReplicas::test_every_option[loss_scale_factor": (
        "it has no loss_scale_factor"
    ),
    "test_benchmarks.py::test_workers_killed_at_random_moments_end_as_if_they_were_not": _BACKUPS,
    "test_examples.py::test_adascale_against_linear_scaling": _ACCUMULATION,
    "test_fuzz_arguments.py::test_numbers_too_large_for_a_float_are_refused[LAMB": (
        "LAMB is TensorFlow Addons'"
    ),
    "test_adascale_on_replicas.py::test_accumulated_without_a_strategy": _ACCUMULATION,
    "test_adascale_on_replicas.py::test_options": _ACCUMULATION,
    f"{_ON_DEVICES}::test_replicas_and_accumulation[own-8": _ACCUMULATION,
    f"{_ON_DEVICES}::test_replicas_and_accumulation[mirrored-8": _ACCUMULATION,
    "test_adascale_on_replicas.py::test_two_workers[8": _ACCUMULATION,
    f"{_OPTIONS}[loss_scale_factor": "it has no loss_scale_factor",
    "test_models.py::TestWhatKerasTests::test_variables_are_mirrored": "variables of Keras 3",
    "test_models.py::TestWhatKerasTests::test_an_epoch_gives_every_row_to_one_replica": (
        "this is the iterator of Keras 3 by itself"
    ),
    "test_callbacks.py::TestRestoring": _BACKUPS,
    "test_callbacks.py::TestFiles::test_the_other_worker_writes_nothing_to_a_folder_of_its_own": (
        "all workers write, the others to temporary files"
    ),
    "test_gain_callbacks.py::test_all_measure_the_same_and_stop_together": _ACCUMULATION,
    "test_aggregation.py::test_a_file_without_the_state_starts_it_anew": (
        "it cannot load the state of metrics under any strategy"
    ),
    "test_aggregation.py::test_a_backup_of_the_state_reaches_all_workers": _BACKUPS,
    "test_restart.py::TestBackup": _BACKUPS,
    "test_callbacks.py::TestFiles::test_one_process_writes_as_ever": (
        "its BackupAndRestore has other files"
    ),
    "test_predict.py::TestOnBatch::test_what_is_no_batch_is_refused_on_all_workers": (
        "it splits the batch of train_on_batch by itself, and has messages of its own"
    ),
    "test_uneven.py::TestFromFunction::test_the_epoch_ends_with_the_longest": _STEPS,
    "test_models.py::TestInputs::test_equals_arrays_of_full_batches[dataset per worker": _STEPS,
    "test_uneven.py::test_generators_that_end_earlier_on_one_worker": (
        "it ends in an error, on all workers"
    ),
    "test_uneven.py::test_steps_per_epoch_beyond_the_data": "it logs that data ran out",
    "test_restart.py::TestOtherProcesses::test_each_restores_its_own[lamb": (
        "it writes no state of a legacy optimizer into a .keras file"
    ),
    "test_adascale.py::test_loss_scale_factor_is_taken_out_of_the_gradients": (
        "its optimizers have no loss_scale_factor"
    ),
    "test_adascale.py::test_swap_ema_weights": "it has no SwapEMAWeights",
    "test_adascale.py::test_ways_to_run_a_step[{'jit_compile': True}]": (
        "XLA compiles for a single device, and several gradients take several"
    ),
    "test_adascale.py::test_compiled_from_its_configuration": (
        "`compile` takes no optimizer's configuration"
    ),
    "test_delta_adasum.py::test_swap_ema_weights": "it has no SwapEMAWeights",
    "test_delta_adasum.py::test_one_replica_is_the_inner_optimizer[1-muon]": "it has no Muon",
    "test_delta_adasum.py::test_one_replica_is_the_inner_optimizer[4-muon]": "it has no Muon",
    "test_saved_files.py::test_safe_mode_loads_what_we_save[LAMB]": (
        "it writes no state of a legacy optimizer into a .keras file"
    ),
}


FILES_OF_THE_OTHER = FILES_OF_KERAS_3 if IS_KERAS_2 else FILES_OF_KERAS_2


def reason_to_skip(node_id):
    """Returns why a test is skipped in this lane; None if it is not."""
    if not IS_KERAS_2:
        return None
    for word, reason in OPTIMIZERS_OF_KERAS_3.items():
        if word in node_id.partition("[")[2].lower():
            return f"Keras 2: {reason}"
    for name, reason in ABSENT_IN_KERAS_2.items():
        _, found, rest = node_id.partition(name)
        if found and rest[:1] in ("", "[", "]", "-", ":"):
            return f"Keras 2: {reason}"
    return None


def loss_scale_of(optimizer):
    """Returns the current scale of a `LossScaleOptimizer`, as a tensor."""
    return tf.convert_to_tensor(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale)


def scaled(optimizer, gradients):
    """Returns gradients as `apply` of a `LossScaleOptimizer` wants them.

    That of Keras 2 has taken the scale out of them in `get_unscaled_gradients`.
    """
    if IS_KERAS_2:
        return gradients
    return [gradient * loss_scale_of(optimizer) for gradient in gradients]


def is_slot(name):
    """Whether the path of an optimizer's variable is that of a momentum or a velocity."""
    return bool(re.search(r"\b[mv]/" if IS_KERAS_2 else "momentum|velocity", name))


def scale_loss(optimizer, loss):
    """Returns a loss as an optimizer wants it."""
    if not IS_KERAS_2:
        return optimizer.scale_loss(loss)
    is_scaling = isinstance(optimizer, LossScaleOptimizer)
    return optimizer.get_scaled_loss(loss) if is_scaling else loss


def state_of(optimizer):
    """Returns the variables of an optimizer; without `iterations`, where skipped steps count."""
    variables = keras_seam.all_variables(optimizer)
    if not IS_KERAS_2:
        return variables
    return [variable for variable in variables if variable is not optimizer.iterations]


def in_model(path):
    """Returns the path of a variable of a Sequential model; names of Keras 2 lack the model's."""
    return path if IS_KERAS_2 else f"sequential/{path}"


def copies_of(strategy, variable):
    """Returns the variables on the local replicas that a Keras variable stands for."""
    return strategy.experimental_local_results(keras_seam.tensorflow_variable(variable))
