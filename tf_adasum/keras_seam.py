"""The seam to Keras: every private Keras name this package touches is in this file.

`install()` wraps, once per process, functions of Keras 3. Each wrapper does nothing unless the
current strategy is one of ours (it has `gradient_reduction`, see `AdasumMirroredStrategy`), or an
optimizer, a dataset or a model has been handed to `take_over`, `exchangeable` or `expect`.

Optimizers:

* `TFOptimizer._all_reduce_sum_gradients`: the one place where every Keras optimizer, `train_step`,
  custom loop and gradient accumulation reduces gradients. The wrapper marks the reduction, and
  gives every gradient its variable's static shape.
  Fails loudly in `test_every_optimizer_reduction_is_marked`.
* `TFOptimizer._backend_apply_gradients`: `gradient_accumulation_steps` and
  `ema_overwrite_frequency` decide with a `cond` in each replica, inside of which no reduction can
  be made. The wrapper decides once for all replicas.
* `LossScaleOptimizer.check_finite`: looks at one replica's gradients, before any reduction: where
  another one alone overflows, the replicas part ways and wait for each other without end. The
  wrapper asks all replicas.
* `BaseOptimizer.apply`, `MultiOptimizer.apply`: where a step begins. The wrapper takes zeros for
  the gradients of a replica without rows, and leaves a step out whose gradients are not finite,
  where the strategy's `on_nonfinite` says so.
* `TFOptimizer._distributed_tf_update_step`: updates the variables on all local devices. The wrapper
  lets those of a replica rest that takes no step of its own.

Losses and layers:

* `keras.src.losses.loss.scale_loss_for_distribution` and its inverse: Keras divides mean-type
  losses by the number of replicas, because it will sum the gradients. A non-linear rule wants each
  replica's own gradient, so there both are the identity; nothing has to be multiplied back, and
  clipping sees the right magnitude.
  Fails loudly in `test_identical_data_equals_one_replica`.
* `keras.src.losses.loss.reduce_values`: leaves the losses of no rows, where it knows that there are
  none, as a vector. The wrapper lets it reduce them to 0, as where it does not know.
* `BatchNormalization._moments`: those of no rows are NaN, and would stay in the moving ones. The
  wrapper takes the moving ones for them.
* `SeedGenerator.next`: gives every replica the same seed, so that all drop the same units. The
  wrapper mixes in the replica's id.

Training:

* `TensorFlowTrainer._maybe_symbolic_build`: averages the first *data batch* over the workers, with
  a collective that breaks under multi-worker strategies, only to learn its shapes. The wrapper
  hands it the first local batch. `fit` hands it the iterator of its epochs, which is kept in mind.
  Fails loudly in `test_unbuilt_model_trains`.
* `TensorFlowTrainer._make_function`: compiles the step with XLA where the user asks for it, which
  has no kernels for TensorFlow's collectives. The wrapper says so and trains without, and lets the
  function raise a FloatingPointError where `on_nonfinite="raise"` has stopped a step.
* `TFEpochIterator._get_iterator`: every worker shuffles arrays by itself, so that some rows are
  seen twice and some never. The wrapper lets all of them shuffle with worker 0's seed, another one
  in each epoch; or with that of a `DataOrder`, where there is one.
* `TFEpochIterator.__iter__`: has one dataset for all epochs, and begins every epoch with its first
  batch. The wrapper lets a dataset that is `exchangeable` be followed by another one, and leaves
  out the batches that are done by the `DataOrder`.
* `TensorFlowTrainer.evaluate`, `.predict`, `CallbackList.on_epoch_end`: the statistics of a
  BatchNormalization differ between replicas. The wrappers average them first.
* `ProgbarLogger.on_train_begin`, `.on_epoch_begin`, `.on_epoch_end`: expect what `fit` was asked
  for. The wrapper lets callbacks say better.
* `TensorFlowTrainer.train_on_batch`, `.test_on_batch`, `.predict_on_batch`: hand the whole batch to
  every replica. The wrappers split it.
* These three, `fit`, `evaluate` and `predict`: leave the other workers waiting where one raises.
  The wrappers tell them.

Files:

* `saving_lib.save_model`, `.save_weights_only`: write to the file's own name, so that a process
  that is killed leaves part of a file, where there may have been a whole one before. The wrappers
  write to another name and rename. What `Model.save`, `.save_weights` and ModelCheckpoint call.
* `saving_lib.load_model`, `.load_weights_only`: do not always say which file is damaged. The
  wrappers do.

`tests/unit/test_seam_names.py` fails with the name of what a new Keras has moved.
"""

import functools
import os
import typing
import warnings
import weakref
import zipfile

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import atomic_files, nonfinite, tensorflow_seam

try:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer, filter_empty_gradients
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
    from keras.src.losses import loss as loss_module
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.multi_optimizer import MultiOptimizer
    from keras.src.saving import saving_lib
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.src.utils.python_utils import pythonify_logs
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with Keras 3.15 on TensorFlow; Keras {keras.__version__} has moved "
        f"something it builds on: {error}. Install a supported one: pip install 'keras>=3.15,<3.16'"
    ) from error


# What all workers call.
TOGETHER = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

# Odd, so that no two replicas get the same key; large, so that their keys look unrelated.
SEED_STRIDE = 0x9E3779B1

# The attribute with the moving averages of the weights, where an optimizer has `use_ema`.
MOVING_AVERAGES = "_model_variables_moving_average"

# What `keras.callbacks.SwapEMAWeights` looks for in an optimizer.
OF_SWAP_EMA_WEIGHTS = (MOVING_AVERAGES, "_trainable_variables")


def install():
    """Wraps the functions above; again is harmless.

    Raises:
        RuntimeError: if Keras runs on another backend than TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tf_adasum needs Keras on TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    _wrap(TFOptimizer, "_all_reduce_sum_gradients", _marking_gradients)
    _wrap(BaseOptimizer, "build", _with_reductions)
    _wrap(BaseOptimizer, "apply", _beginning_together)
    _wrap(MultiOptimizer, "apply", _beginning_together)
    _wrap(TFOptimizer, "_distributed_tf_update_step", _resting_without_rows)
    _wrap(TFOptimizer, "_backend_apply_gradients", _deciding_for_all_replicas)
    _wrap(keras.optimizers.LossScaleOptimizer, "check_finite", _finite_on_all_replicas)
    _wrap(loss_module, "scale_loss_for_distribution", _identity_where_marked)
    _wrap(loss_module, "unscale_loss_for_distribution", _identity_where_marked)
    _wrap(loss_module, "reduce_values", _scalar_of_no_rows)
    _wrap(keras.layers.BatchNormalization, "_moments", _moments_of_rows)
    _wrap(keras.random.SeedGenerator, "next", _seed_of_replica)
    _wrap(TensorFlowTrainer, "_maybe_symbolic_build", _building_from_local_batch)
    _wrap(TensorFlowTrainer, "_make_function", _making_function)
    _wrap(TFEpochIterator, "_get_iterator", _shuffled_alike)
    _wrap(TFEpochIterator, "__iter__", _beginning_epochs)
    _wrap(keras.callbacks.ProgbarLogger, "on_train_begin", _expecting_what_fit_was_asked_for)
    for name in ("on_epoch_begin", "on_epoch_end"):
        _wrap(keras.callbacks.ProgbarLogger, name, _expecting_steps)
    for name in ("evaluate", "predict"):
        _wrap(TensorFlowTrainer, name, _with_averaged_statistics)
    _wrap(keras.callbacks.CallbackList, "on_epoch_end", _averaging_statistics_first)
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        _wrap(TensorFlowTrainer, name, _splitting_the_batch)
    for name in TOGETHER:
        _wrap(TensorFlowTrainer, name, _working_together, mark="works_together")
    for name in ("save_model", "save_weights_only"):
        _wrap(saving_lib, name, _saving_at_once)
    for name in ("load_model", "load_weights_only"):
        _wrap(saving_lib, name, _naming_the_file)


def _wrap(owner, name, wrapper, mark="wrapped_by_tf_adasum"):
    original = getattr(owner, name)
    if getattr(original, mark, False):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, mark, True)
    setattr(owner, name, wrapped)


def _is_ours(strategy):
    return hasattr(strategy, "gradient_reduction")


def _our_replica_context():
    """The current replica context, if it belongs to one of our strategies."""
    context = tf.distribute.get_replica_context()
    return context if context and _is_ours(context.strategy) else None


def _marker(strategy):
    """The strategy's `gradient_reduction`; None where Keras and TensorFlow go their own way."""
    return getattr(strategy, "gradient_reduction", None)


# ---- optimizers --------------------------------------------------------------------------------


def _beginning_together(original):
    def apply(self, grads, trainable_variables=None):
        def step(gradients):
            original(self, gradients, trainable_variables)

        begin_together(self, grads, trainable_variables, step)

    return apply


def begin_together(optimizer, gradients, variables, step):
    """Takes a step with what a replica has of gradients, if all replicas have finite ones.

    Args:
        optimizer: the optimizer.
        gradients: this replica's, or None for one that there is not.
        variables: as many variables; None for those of the optimizer.
        step: function of the list of gradients; called now, or as a branch in each replica.
    """
    context = _our_replica_context()
    if not context or is_wrapped(optimizer):
        return step(gradients)
    gradients = context.strategy.rows.zero_where_empty(gradients)
    guard = context.strategy.nonfinite
    present = [gradient for gradient in gradients if gradient is not None]
    if guard.leaves_be or not present:
        return step(gradients)

    if not optimizer.built and variables is not None:  # no variable can be made in a branch
        with keras.name_scope(optimizer.name):
            optimizer.build(list(variables))
        optimizer.built = True
    every = list(optimizer._trainable_variables if variables is None else variables)
    pairs = zip(gradients, every, strict=True)
    paths = [variable.path for gradient, variable in pairs if gradient is not None]
    are_present = [gradient is not None for gradient in gradients]

    def take(found, *present):
        del found
        own = iter(present)
        with guard.passed():
            step([next(own) if is_present else None for is_present in are_present])

    found = guard.find(present)
    is_finite = tf.reduce_all(tf.equal(found, 0))
    leave_out = lambda found, *present: guard.leave_out(found, paths)  # noqa: E731
    return cond(context, is_finite, take, leave_out, (found, *present))


def _resting_without_rows(original):
    """`TFOptimizer._distributed_tf_update_step`, for a learning rate that is a `RestingRate`."""

    def update_step(self, distribution, grads_and_vars, learning_rate):
        if not isinstance(learning_rate, RestingRate):
            return original(self, distribution, grads_and_vars, learning_rate)

        def update(variable, gradient, rate, rests):
            def step():
                if self.weight_decay is not None and self._use_weight_decay(variable):
                    decay = tf.cast(self.weight_decay, variable.dtype)
                    variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
                self.update_step(gradient, variable, rate)
                return tf.constant(0)

            tf.cond(rests, lambda: tf.constant(0), step)

        for gradient, variable in grads_and_vars:
            distribution.extended.update(
                variable, update, args=(gradient, *learning_rate), group=False
            )

    return update_step


class RestingRate(typing.NamedTuple):
    """A learning rate, and who takes no step with it.

    Attributes:
        rate: the learning rate.
        rests: boolean scalar tensor: whether this replica does not.
    """

    rate: object
    rests: object


def _marking_gradients(original):
    def all_reduce_sum_gradients(self, grads_and_vars):
        if _step_of_wrapper(self):  # has reduced them
            return list(grads_and_vars)
        replica_context = tf.distribute.get_replica_context()
        if not replica_context or not _marker(replica_context.strategy):
            return original(self, grads_and_vars)
        grads_and_vars = list(grads_and_vars)
        present = filter_empty_gradients(grads_and_vars)
        combined = iter(combine(self, *zip(*present, strict=True)) if present else ())
        return [(None if g is None else next(combined), v) for g, v in grads_and_vars]

    return all_reduce_sum_gradients


def combine(optimizer, gradients, variables):
    """Combines what the replicas have for some variables by the strategy's rule.

    Args:
        optimizer: the one that was built for these variables.
        gradients: this replica's; none is None. Called in a replica of a strategy with a marker.
        variables: as many Keras or TensorFlow variables.
    """
    context = tf.distribute.get_replica_context()
    gradients = [of_known_shape(*pair) for pair in zip(gradients, variables, strict=True)]
    indices = [index_of(optimizer, variable) for variable in variables]
    reductions = _reductions_of(optimizer, context)
    _check_same_gradients(context, gradients, variables, reductions.groups_of(indices))
    marker = _marker(context.strategy).of(reductions, indices)
    return context.all_reduce("SUM", gradients, options=marker)


def of_known_shape(gradient, variable):
    """Returns a gradient with its variable's shape.

    Inside a cond, as of accumulation, it is lost; the rows of a sparse one also in an all-reduce.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.ensure_shape(gradient, variable.shape)
    values = tf.ensure_shape(gradient.values, [None, *variable.shape[1:]])
    return tf.IndexedSlices(
        values, gradient.indices, tf.constant(variable.shape.as_list(), tf.int64)
    )


def _check_same_gradients(replica_context, gradients, variables, groups):
    # Names are for the message only: workers may have numbered their layers differently.
    names = ", ".join(
        f"{variable.name} in group {group}" if len(set(groups)) < len(groups) else variable.name
        for variable, group in zip(variables, groups, strict=True)
    )
    shapes = ", ".join(
        f"{'sparse ' if isinstance(gradient, tf.IndexedSlices) else ''}"
        f"{tf.as_dtype(variable.dtype).name}{tuple(variable.shape)} in {group}"
        for gradient, variable, group in zip(gradients, variables, groups, strict=True)
    )

    def across_replicas(strategy, names, shapes):
        local = strategy.experimental_local_results
        strategy.check_same_gradients(local(names), local(shapes))

    replica_context.merge_call(across_replicas, args=(names, shapes))


def _with_reductions(original):
    """`BaseOptimizer.build`: the rule's state has to be there when weights are loaded."""

    def build(self, variables):
        original(self, variables)
        strategy = self._distribution_strategy
        if hasattr(self, "inner_optimizer"):  # a wrapper: the inner one reduces
            return
        if _marker(strategy) and not _our_replica_context():
            _set_reductions(self, strategy)

    return build


def _reductions_of(optimizer, replica_context):
    """The optimizer's `Reductions`, made now if it was built in a replica."""

    def across_replicas(strategy):
        if reductions_of(optimizer) is None:
            with tf.init_scope():
                _set_reductions(optimizer, strategy)

    replica_context.merge_call(across_replicas)
    return reductions_of(optimizer)


def _set_reductions(optimizer, strategy):
    paths = [variable.path for variable in optimizer._trainable_variables]
    optimizer.gradient_reductions = strategy.reductions(paths)
    rule_state = optimizer.gradient_reductions.rule_state
    if rule_state:
        optimizer.rule_state = rule_state  # what Keras finds here it saves with the optimizer


def reductions_of(optimizer):
    """Returns the `Reductions` of an optimizer; None where it is not built under our strategy."""
    return getattr(innermost(optimizer), "gradient_reductions", None)


def innermost(optimizer):
    """Returns the optimizer within all wrappers, as `LossScaleOptimizer` is one."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _deciding_for_all_replicas(original):
    """`BaseOptimizer._backend_apply_gradients`, with its conditions around the replicas."""

    def apply_gradients(self, grads, trainable_variables):
        steps = self.gradient_accumulation_steps
        decides = _our_replica_context() and (
            steps or (self.use_ema and self.ema_overwrite_frequency)
        )
        step = _step_of_wrapper(self) or (Step(self) if decides else None)
        if not step:
            return original(self, grads, trainable_variables)
        step.start()
        values = [*grads, *step.measure(grads)]
        if not steps:
            step.update(values, trainable_variables)
        else:
            _accumulate(self, values, trainable_variables, step)
        if self.use_ema:
            step.average()

    return apply_gradients


def _accumulate(optimizer, values, variables, step):
    """Updates with the mean of the values of every so many calls."""
    steps = optimizer.gradient_accumulation_steps
    accumulated = optimizer._accumulated_gradients
    accumulators = [accumulated[index_of(optimizer, variable)] for variable in variables]
    accumulators += accumulated[len(optimizer._trainable_variables) :]  # of what is measured

    def update(*values):
        pairs = zip(values, accumulators, strict=True)
        step.update([(value + sum_so_far) / steps for value, sum_so_far in pairs], variables)
        optimizer._backend_reset_gradient_accumulators()

    def accumulate(*values):
        optimizer._backend_increment_gradient_accumulators(values, accumulators)

    # `iterations` counts updates here, `_iterations` every call.
    is_update = (optimizer._iterations + 1) % steps == 0
    cond(tf.distribute.get_replica_context(), is_update, update, accumulate, values)


class Step:
    """What an optimizer does with the gradients of one update; this one does what Keras does.

    Every method is called in each replica.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def start(self):
        """Called first, with every gradient."""

    def measure(self, gradients):
        """Returns scalars that are accumulated with the gradients, and come to `update` at the end.

        Args:
            gradients: of this call, neither clipped nor reduced.
        """
        del gradients
        return []

    def update(self, values, variables):
        """Clips, decays, reduces and updates.

        Args:
            values: the gradients, or their means over `gradient_accumulation_steps` calls, and the
                scalars of `measure`.
            variables: as many variables as gradients.
        """
        values, rate = self.optimizer._clip_gradients(values), self.optimizer.learning_rate
        rests = self.rests()
        if rests is None:
            self.optimizer._apply_weight_decay(variables)
        else:
            rate = RestingRate(tf.convert_to_tensor(rate), rests)
        self.optimizer._backend_update_step(values, variables, rate)

    def rests(self):
        """Whether this replica takes no step, nor decays weights: boolean scalar; None for never.

        Only for what reduces nothing in its updates.
        """
        return None

    def average(self):
        """Moves the moving averages of the weights, and from time to time takes them over."""
        optimizer = self.optimizer
        variables = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(variables)
        if optimizer.ema_overwrite_frequency:
            cond(
                tf.distribute.get_replica_context(),
                (optimizer.iterations + 1) % optimizer.ema_overwrite_frequency == 0,
                lambda: _assign_averages(variables, getattr(optimizer, MOVING_AVERAGES)),
                lambda: None,
            )


def check_same_settings(strategy, settings):
    """Lets the workers of a strategy, where it is one of ours, compare an optimizer's settings."""
    if _our_replica_context():
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: strategy.check_same_settings(settings)
        )
    elif _is_ours(strategy):
        strategy.check_same_settings(settings)


class StepOfWrapper(Step):
    """A step that a wrapper does; the optimizer in it is not to be used by itself.

    Attributes:
        is_expected: whether the wrapper is about to let the optimizer step.
    """

    is_expected = False

    def start(self):
        """Raises a ValueError if it was not the wrapper that called the optimizer."""
        if not self.is_expected:
            raise ValueError(
                f"This {type(self.optimizer).__name__} is inside of another optimizer, which does "
                "its steps: compile the model with that one, or make a new optimizer."
            )
        self.is_expected = False


def take_over(optimizer, step):
    """Lets a `Step` of a wrapper do the updates of an optimizer, reductions included."""
    optimizer.step_of_wrapper = step


def _step_of_wrapper(optimizer):
    return getattr(optimizer, "step_of_wrapper", None)


def is_wrapped(optimizer):
    """Whether a wrapper does the updates of this optimizer."""
    return _step_of_wrapper(optimizer) is not None


def add_accumulator(optimizer):
    """Makes room for one of the scalars that `Step.measure` returns, where there is accumulation.

    Args:
        optimizer: the one that accumulates, built.
    """
    if optimizer.gradient_accumulation_steps:
        accumulator = optimizer.add_variable((), name="accumulator", dtype="float32")
        optimizer._accumulated_gradients.append(accumulator)


def exchange_learning_rate(optimizer, learning_rate):
    """Gives an optimizer another learning rate; returns what it had.

    The property `learning_rate` takes a variable that it replaces out of a list that
    tf.train.Checkpoint tracks, which then refuses to save.

    Args:
        optimizer: the optimizer.
        learning_rate: a Keras variable, a schedule or another callable.
    """
    had, optimizer._learning_rate = optimizer._learning_rate, learning_rate
    return had


def floating(learning_rate):
    """Returns a learning rate as a tensor that has fractions: a schedule may return an int."""
    learning_rate = tf.convert_to_tensor(keras.ops.convert_to_tensor(learning_rate))
    if learning_rate.dtype.is_floating:
        return learning_rate
    return tf.cast(learning_rate, keras.config.floatx())


def own_variables(optimizer):
    """Returns the variables that the optimizer itself has made, not those of an inner one."""
    return optimizer._variables[:]


def cond(context, predicate, then, otherwise, arguments=()):
    """Calls one of two functions in each replica; unlike in a `tf.cond`, they may reduce.

    Args:
        context: the replica context.
        predicate: boolean tensor, the same on all replicas.
        then: function of this replica's `arguments`.
        otherwise: the same.
        arguments: tensors of this replica.
    """

    def across_replicas(strategy, predicate, *arguments):
        def in_each_replica(function):
            strategy.extended.call_for_each_replica(
                lambda *own: (function(*own), tf.constant(0))[1], args=arguments
            )
            return tf.constant(0)

        tf.cond(
            strategy.experimental_local_results(predicate)[0],
            lambda: in_each_replica(then),
            lambda: in_each_replica(otherwise),
        )

    context.merge_call(across_replicas, args=(predicate, *arguments))


def average_weights(optimizer, count):
    """Moves the moving averages of the weights as Keras does, for the `count`-th time from 0.

    Keras counts iterations, and starts the averages in the first.

    Args:
        optimizer: a built optimizer with `use_ema`; called in each replica.
        count: int64 scalar variable.
    """
    variables, averages = optimizer._trainable_variables, getattr(optimizer, MOVING_AVERAGES)
    for variable, average in zip(variables, averages, strict=True):
        momentum = tf.cast(tf.where(count == 0, 0.0, optimizer.ema_momentum), average.dtype)
        average.assign(momentum * average + (1 - momentum) * variable)
    if optimizer.ema_overwrite_frequency:
        cond(
            tf.distribute.get_replica_context(),
            (count + 1) % optimizer.ema_overwrite_frequency == 0,
            lambda: _assign_averages(variables, averages),
            lambda: None,
        )


def assign(variables, values):
    """Assigns each replica's own values to variables; called in each replica.

    Args:
        variables: Keras or TensorFlow variables.
        values: a tensor for each.
    """

    def across_replicas(strategy, values):
        for variable, value in zip(variables, values, strict=True):
            variable = variable.value if isinstance(variable, keras.Variable) else variable
            strategy.extended.update(
                variable, lambda own, value: own.assign(value), args=(value,), group=False
            )

    tf.distribute.get_replica_context().merge_call(across_replicas, args=(values,))


def _assign_averages(variables, averages):
    for variable, average in zip(variables, averages, strict=True):
        if average is not None:
            variable.assign(average)


def _finite_on_all_replicas(original):
    def check_finite(self, grads):
        context = _our_replica_context()
        if not context:
            return original(self, grads)
        finite = original(self, context.strategy.rows.zero_where_empty(grads))
        overflowed = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(context.all_reduce("SUM", overflowed), 0)

    return check_finite


def index_of(optimizer, variable):
    """Returns the number of a variable, Keras's or TensorFlow's, among those of an optimizer."""
    return optimizer._get_variable_index(variable)


class SelfDecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that decays weights in its own `update_step`, and not before it, as Keras does.

    `weight_decay` is there to be read.
    """

    def _use_weight_decay(self, variable):
        return False


# ---- losses and layers -------------------------------------------------------------------------


def _identity_where_marked(original):
    def scale_loss(value):
        return value if _marker(tf.distribute.get_strategy()) else original(value)

    return scale_loss


def _scalar_of_no_rows(original):
    def reduce_values(values, sample_weight=None, reduction="sum_over_batch_size"):
        if tuple(values.shape) == (0,) and _our_replica_context():
            if sample_weight is not None:
                sample_weight = tf.reshape(sample_weight, [0, 1])
            if reduction not in (None, "none"):
                values = tf.reshape(values, [0, 1])
        return original(values, sample_weight=sample_weight, reduction=reduction)

    return reduce_values


def _moments_of_rows(original):
    def moments(self, inputs, mask):
        own = original(self, inputs, mask)
        context = _our_replica_context()
        is_empty = context.strategy.rows.is_empty if context else None
        if is_empty is None or self.synchronized:  # then they are those of all replicas' rows
            return own
        moving = (self.moving_mean, self.moving_variance)
        return tuple(
            tf.where(is_empty, tf.cast(before, value.dtype), value)
            for before, value in zip(moving, own, strict=True)
        )

    return moments


def _seed_of_replica(original):
    def next_seed(self, ordered=True):
        seed = original(self, ordered)
        context = _our_replica_context()
        if not context or context.num_replicas_in_sync == 1:
            return seed
        # A seed is a key and a counter: other keys, other numbers. Replica 0 keeps its own.
        key_of_replica = tf.cast(context.replica_id_in_sync_group, tf.int64) * SEED_STRIDE
        offset = tf.stack([tf.cast(key_of_replica % 2**31, seed.dtype), tf.zeros([], seed.dtype)])
        return tf.bitwise.bitwise_xor(seed, offset)

    return next_seed


# ---- training ----------------------------------------------------------------------------------


def _building_from_local_batch(original):
    def maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            _last_iterator[self] = weakref.ref(iterator)
        strategy = self._distribute_strategy
        if not _is_ours(strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        if _is_all_built(self):  # and no iterator is begun, to be thrown away at once
            return None
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        first_local_batch = tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], data_batch
        )
        return original(self, data_batch=first_local_batch)

    return maybe_symbolic_build


def _is_all_built(model):
    """Whether there is nothing that Keras builds from the first batch."""
    compiled = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(part is None or part.built for part in [*model._flatten_layers(), *compiled])


def _making_function(original):
    def make_function(self, step_function):
        strategy = self._distribute_strategy
        if not _is_ours(strategy):
            return original(self, step_function)
        if self.jit_compile and not self.run_eagerly:
            warnings.warn(
                "AdasumMirroredStrategy trains this model without XLA: TensorFlow's collectives "
                "have no XLA kernels. Compile it with jit_compile=False (or 'auto').",
                stacklevel=2,
            )
            self.jit_compile = False
        function = original(self, step_function)
        is_raised = strategy.nonfinite.action == "raise"
        return nonfinite.raising_plainly(function) if is_raised else function

    return make_function


def _shuffled_alike(original):
    def get_iterator(self):
        strategy = self._distribute_strategy
        order = getattr(self, "data_order", None)
        if (order or _is_ours(strategy)) and getattr(self.data_adapter, "_shuffle", False):
            seed = order.seed_of_pass(self._steps_seen > 0) if order else strategy.common_seed()
            if seed is not None:
                with tensorflow_seam.seeded(seed):
                    dataset = self.data_adapter.get_tf_dataset()
                self._distributed_dataset = strategy.experimental_distribute_dataset(dataset)
        return original(self)

    return get_iterator


def _with_averaged_statistics(original):
    def evaluate_or_predict(self, *args, **kwargs):
        _average_statistics(self)
        return original(self, *args, **kwargs)

    return evaluate_or_predict


def _averaging_statistics_first(original):
    def on_epoch_end(self, epoch, logs=None):
        if getattr(self, "_model", None) is not None:
            _average_statistics(self._model)
            if _is_ours(self._model.distribute_strategy):
                self._model.distribute_strategy.nonfinite.warn_once()
        return original(self, epoch, logs)

    return on_epoch_end


def _average_statistics(model):
    strategy = model.distribute_strategy
    if _is_ours(strategy) and model.built:
        _synchronize(getattr(model, "optimizer", None))
        strategy.average_statistics(model)


def _synchronize(optimizer):
    """Ends local steps ahead of time: the replicas' weights have to be the same."""
    while optimizer is not None:
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _splitting_the_batch(original):
    def on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        strategy = self._distribute_strategy
        given = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
        kwargs |= {name: value for name, value in given.items() if value is not None}
        refused = class_weight is not None and sample_weight is not None  # by Keras
        if not _is_ours(strategy) or strategy.num_replicas_in_sync == 1 or refused:
            return original(self, x, **kwargs)
        if sample_weight is not None and tf.nest.is_nested(sample_weight):
            if all(np.isscalar(weight) for weight in tf.nest.flatten(sample_weight)):
                kwargs["sample_weight"] = np.asarray(sample_weight)
        if class_weight is not None:
            weights = class_weight_to_sample_weights(y, kwargs.pop("class_weight"))
            kwargs["sample_weight"] = weights
        names = [name for name in ("y", "sample_weight") if name in kwargs]
        if original.__name__ != "train_on_batch":
            _synchronize(getattr(self, "optimizer", None))
        x, *others = strategy.split_batch([x, *(kwargs[name] for name in names)])
        kwargs |= dict(zip(names, others, strict=True))
        if original.__name__ == "predict_on_batch":
            return original(self, x, **kwargs)
        # What the step returns is the mean of the replicas' own metrics; here those of all rows.
        wants_dict = kwargs.pop("return_dict", False)
        logs = original(self, x, **kwargs, return_dict=True)
        logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
        return logs if wants_dict else self._flatten_metrics_in_order(logs)

    return on_batch


def _working_together(original):
    def call(self, *args, **kwargs):
        strategy = self._distribute_strategy
        if not _is_ours(strategy):
            return original(self, *args, **kwargs)
        is_a_step = original.__name__.endswith("on_batch")
        with strategy.watching() if is_a_step else strategy.working_together():
            return original(self, *args, **kwargs)

    return call


def exchangeable(dataset, following):
    """Returns a `tf.data.Dataset` that another one may follow when an epoch begins.

    Args:
        dataset: the first one.
        following: function that returns the dataset from this epoch on, or None for the same.
    """
    dataset = dataset.with_options(tf.data.Options())  # another object: the user may have others
    dataset.following = following
    return dataset


def _beginning_epochs(original):
    def iterate(self):
        following = getattr(self.data_adapter.get_tf_dataset(), "following", lambda: None)()
        if following is not None:
            strategy = self._distribute_strategy
            self._distributed_dataset = strategy.experimental_distribute_dataset(following)
            cardinality = int(following.cardinality())
            self._num_batches = cardinality if cardinality >= 0 else None
            self._current_iterator = None
        order = getattr(self, "data_order", None)
        batch, position = order.take_start() if order else (0, 0)
        if position > batch:
            self._current_iterator = iter(self._get_iterator())
            _leave_out(self._current_iterator, position - batch)
            self._steps_seen = position - batch
        begun = original(self)
        _leave_out_steps(self, batch)
        return begun

    return iterate


def _leave_out_steps(epoch_iterator, batches):
    """Leaves out the first batches of an epoch that has begun, and the steps made of them."""
    together, done = epoch_iterator.steps_per_execution, 0
    while done < batches:
        _, _, iterator = next(epoch_iterator._epoch_iterator)
        _leave_out(iterator, min(together, batches - done))
        done += together


def _leave_out(iterator, batches):
    for _ in range(batches):
        next(iterator)


# For each model the `TFEpochIterator` that it was given last, and the one of the training with
# backups; an iterator does not know its model.
_last_iterator, _iterator_of_training = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()


def set_data_order(model, order):
    """Lets the `fit` that is about to begin take its data in an order.

    Args:
        model: the model; in a custom loop nothing happens.
        order: a `DataOrder`; None when the training has ended.
    """
    if order is not None and model in _last_iterator:
        _iterator_of_training[model] = _last_iterator[model]
    iterator = _iterator_of_training.get(model, lambda: None)()
    if iterator is not None:
        iterator.data_order = order
    if order is None:
        _iterator_of_training.pop(model, None)


def position_in_data(model, batch):
    """Returns how many batches of the current pass through the data are done.

    Args:
        model: the model.
        batch: how many batches of the epoch are done. It is also returned for data without a known
            end, where `steps_per_epoch` makes the epochs, and in a custom loop.
    """
    iterator = _iterator_of_training.get(model, lambda: None)()
    if iterator is None or not iterator.steps_per_epoch or not iterator._num_batches:
        return batch
    return max(batch, iterator._steps_seen)


# ---- files -------------------------------------------------------------------------------------


def _saving_at_once(original):
    def save(model, filepath, *args, **kwargs):
        is_path = isinstance(filepath, str | os.PathLike)
        in_parts = any(args) or kwargs.get("max_shard_size") is not None
        if (
            not _is_ours(getattr(model, "distribute_strategy", None))
            or not is_path
            or in_parts
            or not atomic_files.is_local(filepath)
            or not os.fspath(filepath).endswith((".keras", ".weights.h5"))
        ):
            return original(model, filepath, *args, **kwargs)
        with atomic_files.replacing(filepath) as unfinished:
            return original(model, unfinished, *args, **kwargs)

    return save


def _naming_the_file(original):
    of_model = original.__name__ == "load_weights_only"

    def load(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except (OSError, zipfile.BadZipFile) as error:
            strategy = args[0].distribute_strategy if of_model else tf.distribute.get_strategy()
            path = str(args[1 if of_model else 0])
            is_missing = getattr(error, "errno", None)
            if not _is_ours(strategy) or is_missing or path in str(error):
                raise
            raise OSError(f"{path} cannot be read, it is cut off or damaged: {error}") from error

    return load


# ---- callbacks ---------------------------------------------------------------------------------


# For each model what its progress bar expects: "epochs", and "steps" per epoch.
_expected = weakref.WeakKeyDictionary()


def expect(model, **numbers):
    """Tells a model's progress bar what to expect from the next epoch on.

    Args:
        model: the model.
        numbers: `epochs` and `steps` (per epoch); none for what `fit` was asked for.
    """
    if numbers:
        _expected.setdefault(model, {}).update(numbers)
    else:
        _expected.pop(model, None)


def _expecting_what_fit_was_asked_for(original):
    def on_train_begin(self, logs=None):
        expect(self.model)  # forgets what a training has left that failed
        return original(self, logs)

    return on_train_begin


def _expecting_steps(original):
    def on_epoch_begin_or_end(self, epoch, logs=None):
        if self.model in _expected:
            self.epochs = _expected[self.model].get("epochs", self.epochs)
            self.target = _expected[self.model].get("steps", self.target)
            if original.__name__ == "on_epoch_end":  # as many as there were
                self.target = self.progbar.target = self.seen
        return original(self, epoch, logs)

    return on_epoch_begin_or_end


def call_in_order(callback_list):
    """Lets a `CallbackList` call its callbacks after each batch before the next one begins.

    Without a callback that was given and wants to be called after batches, it does so from another
    thread, while the training goes on: no place for collectives.
    """
    callback_list._async_train = False


def initial_epoch(model):
    """Returns the epoch in which `fit` starts: `Model._initial_epoch`, set by BackupAndRestore."""
    return model._initial_epoch or 0


def set_initial_epoch(model, epoch):
    """Sets the epoch in which `fit` starts; 0 leaves it to the argument of `fit`."""
    model._initial_epoch = epoch
