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

`tests/unit/seams/test_seam_names.py` fails with the name of what a new Keras has moved.
"""

import typing
import weakref

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.shared import (
    TOGETHER,
    AnyStep,
    CalledByWrapper,
    Optimizers,
    averaging_statistics_first,
    cond,
    expecting_steps,
    expecting_what_fit_was_asked_for,
    identity_where_marked,
    is_ours,
    leave_xla_out,
    marker_of,
    naming_the_file,
    our_replica_context,
    saving_at_once,
    step_of_wrapper,
    synchronize,
    with_averaged_statistics,
    working_together,
    wrap,
)

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


# Odd, so that no two replicas get the same key; large, so that their keys look unrelated.
SEED_STRIDE = 0x9E3779B1

# The attribute with the moving averages of the weights, where an optimizer has `use_ema`.
MOVING_AVERAGES = "_model_variables_moving_average"

# The module with the class `LAMB`.
LAMB_MODULE = "tf_adasum.optimizers.lamb"

# Their variables.
VARIABLE_TYPES = (keras.Variable, tf.Variable)

# For `add_weight`: the variable keeps its dtype.
WITHOUT_AUTOCAST = {"autocast": False}

OPTIMIZERS = (keras.optimizers.Optimizer,)
LOSS_SCALE_OPTIMIZERS = (keras.optimizers.LossScaleOptimizer,)

# What writes to a path: one worker is enough.
CALLBACKS_OF_WORKER_0 = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)

# Whether Keras's `BackupAndRestore` knows one worker only.
BACKS_UP_ONE_WORKER = True

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
    wrap(TFOptimizer, "_all_reduce_sum_gradients", _marking_gradients)
    wrap(BaseOptimizer, "build", _with_reductions)
    wrap(BaseOptimizer, "apply", _beginning_together)
    wrap(MultiOptimizer, "apply", _beginning_together)
    wrap(TFOptimizer, "_distributed_tf_update_step", _resting_without_rows)
    wrap(TFOptimizer, "_backend_apply_gradients", _deciding_for_all_replicas)
    wrap(keras.optimizers.LossScaleOptimizer, "check_finite", _finite_on_all_replicas)
    wrap(loss_module, "scale_loss_for_distribution", identity_where_marked)
    wrap(loss_module, "unscale_loss_for_distribution", identity_where_marked)
    wrap(loss_module, "reduce_values", _scalar_of_no_rows)
    wrap(keras.layers.BatchNormalization, "_moments", _moments_of_rows)
    wrap(keras.random.SeedGenerator, "next", _seed_of_replica)
    wrap(TensorFlowTrainer, "_maybe_symbolic_build", _building_from_local_batch)
    wrap(TensorFlowTrainer, "_make_function", _making_function)
    wrap(TFEpochIterator, "_get_iterator", _shuffled_alike)
    wrap(TFEpochIterator, "__iter__", _beginning_epochs)
    wrap(keras.callbacks.ProgbarLogger, "on_train_begin", expecting_what_fit_was_asked_for)
    for name in ("on_epoch_begin", "on_epoch_end"):
        wrap(keras.callbacks.ProgbarLogger, name, expecting_steps)
    for name in ("evaluate", "predict"):
        wrap(TensorFlowTrainer, name, with_averaged_statistics)
    wrap(keras.callbacks.CallbackList, "on_epoch_end", averaging_statistics_first)
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        wrap(TensorFlowTrainer, name, _splitting_the_batch)
    for name in TOGETHER:
        wrap(TensorFlowTrainer, name, working_together, mark="works_together")
    for name in ("save_model", "save_weights_only"):
        wrap(saving_lib, name, saving_at_once)
    for name in ("load_model", "load_weights_only"):
        wrap(saving_lib, name, naming_the_file)


# ---- optimizers --------------------------------------------------------------------------------


class OptimizersOfKeras3(Optimizers):
    """The optimizers of Keras 3, which are built for a list of variables."""

    def variables_of(self, optimizer):
        """Returns the list of variables that a built optimizer was built for."""
        return list(optimizer._trainable_variables)

    def index_of(self, optimizer, variable):
        """Returns the number of a variable, Keras's or TensorFlow's, among these."""
        return optimizer._get_variable_index(variable)

    def build(self, optimizer, variables):
        """Makes an optimizer's own variables, if it has none yet."""
        if not optimizer.built:
            with keras.name_scope(optimizer.name):
                optimizer.build(list(variables))
            optimizer.built = True


_optimizers = OptimizersOfKeras3()
begin_together, combine, index_of = (
    _optimizers.begin_together,
    _optimizers.combine,
    _optimizers.index_of,
)


def _beginning_together(original):
    def apply(self, grads, trainable_variables=None):
        def step(gradients):
            original(self, gradients, trainable_variables)

        begin_together(self, grads, trainable_variables, step)

    return apply


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
        if step_of_wrapper(self):  # has reduced them
            return list(grads_and_vars)
        replica_context = tf.distribute.get_replica_context()
        if not replica_context or not marker_of(replica_context.strategy):
            return original(self, grads_and_vars)
        grads_and_vars = list(grads_and_vars)
        present = filter_empty_gradients(grads_and_vars)
        combined = iter(combine(self, *zip(*present, strict=True)) if present else ())
        return [(None if g is None else next(combined), v) for g, v in grads_and_vars]

    return all_reduce_sum_gradients


def _with_reductions(original):
    """`BaseOptimizer.build`: the rule's state has to be there when weights are loaded."""

    def build(self, variables):
        original(self, variables)
        strategy = self._distribution_strategy
        if hasattr(self, "inner_optimizer"):  # a wrapper: the inner one reduces
            return
        if marker_of(strategy) and not our_replica_context():
            _optimizers.set_reductions(self, strategy)

    return build


def _deciding_for_all_replicas(original):
    """`BaseOptimizer._backend_apply_gradients`, with its conditions around the replicas."""

    def apply_gradients(self, grads, trainable_variables):
        steps = self.gradient_accumulation_steps
        decides = our_replica_context() and (
            steps or (self.use_ema and self.ema_overwrite_frequency)
        )
        step = step_of_wrapper(self) or (Step(self) if decides else None)
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


class Step(AnyStep):
    """What an optimizer does with the gradients of one update: what Keras 3 does."""

    def start(self):
        """Called first, with every gradient."""

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


class StepOfWrapper(CalledByWrapper, Step):
    """A step that a wrapper does."""


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


def build(optimizer, variables):
    """Makes an optimizer's own variables, if it has none yet."""
    _optimizers.build(optimizer, variables)


def apply(optimizer, gradients, variables):
    """Lets an optimizer take a step with this replica's gradients."""
    optimizer.apply(gradients, variables)


def is_built(optimizer):
    """Whether an optimizer has its variables."""
    return optimizer.built


def all_variables(optimizer):
    """Returns all variables of an optimizer, as a list."""
    return list(optimizer.variables)


def own_variables(optimizer):
    """Returns the variables that the optimizer itself has made, not those of an inner one."""
    return optimizer._variables[:]


def variables_to_save(optimizer):
    """Returns the variables of a wrapper that Keras does not save by itself."""
    return own_variables(optimizer)


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


def _assign_averages(variables, averages):
    for variable, average in zip(variables, averages, strict=True):
        if average is not None:
            variable.assign(average)


def _finite_on_all_replicas(original):
    def check_finite(self, grads):
        context = our_replica_context()
        if not context:
            return original(self, grads)
        finite = original(self, context.strategy.empty_replicas.zero_where_empty(grads))
        overflowed = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(context.all_reduce("SUM", overflowed), 0)

    return check_finite


class WrapperBase(keras.optimizers.Optimizer):
    """What Keras asks of an optimizer that has another one in it.

    Subclasses have `inner_optimizer`, `learning_rate`, `build` and
    ``apply(gradients, variables)``, which takes a step.

    Args:
        name: name of the optimizer.
    """

    def __init__(self, name):
        super().__init__(learning_rate=lambda: self.learning_rate, name=name)

    def apply_gradients(self, grads_and_vars):
        """Takes pairs of gradients and variables; returns `iterations`."""
        super().apply_gradients(grads_and_vars)
        return self.iterations

    @property
    def variables(self):
        """This optimizer's own variables and those of the inner one."""
        return own_variables(self) + self.inner_optimizer.variables


class SelfDecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that decays weights in its own `update_step`, and not before it, as Keras does.

    `weight_decay` is there to be read.
    """

    def _use_weight_decay(self, variable):
        return False


# ---- losses and layers -------------------------------------------------------------------------


def _scalar_of_no_rows(original):
    def reduce_values(values, sample_weight=None, reduction="sum_over_batch_size"):
        if tuple(values.shape) == (0,) and our_replica_context():
            if sample_weight is not None:
                sample_weight = tf.reshape(sample_weight, [0, 1])
            if reduction not in (None, "none"):
                values = tf.reshape(values, [0, 1])
        return original(values, sample_weight=sample_weight, reduction=reduction)

    return reduce_values


def _moments_of_rows(original):
    def moments(self, inputs, mask):
        own = original(self, inputs, mask)
        context = our_replica_context()
        is_empty = context.strategy.empty_replicas.is_empty if context else None
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
        context = our_replica_context()
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
        if not is_ours(strategy):
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
        if not is_ours(strategy):
            return original(self, step_function)
        leave_xla_out(self)
        return strategy.nonfinite.raising_plainly(original(self, step_function))

    return make_function


def _shuffled_alike(original):
    def get_iterator(self):
        strategy = self._distribute_strategy
        order = getattr(self, "data_order", None)
        if (order or is_ours(strategy)) and getattr(self.data_adapter, "_shuffle", False):
            seed = order.seed_of_pass(self._steps_seen > 0) if order else strategy.seeds.common()
            if seed is not None:
                with tensorflow_seam.seeded(seed):
                    dataset = self.data_adapter.get_tf_dataset()
                self._distributed_dataset = strategy.experimental_distribute_dataset(dataset)
        return original(self)

    return get_iterator


def _splitting_the_batch(original):
    def on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        strategy = self._distribute_strategy
        given = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
        kwargs |= {name: value for name, value in given.items() if value is not None}
        refused = class_weight is not None and sample_weight is not None  # by Keras
        if not is_ours(strategy) or strategy.num_replicas_in_sync == 1 or refused:
            return original(self, x, **kwargs)
        if sample_weight is not None and tf.nest.is_nested(sample_weight):
            if all(np.isscalar(weight) for weight in tf.nest.flatten(sample_weight)):
                kwargs["sample_weight"] = np.asarray(sample_weight)
        if class_weight is not None:
            weights = class_weight_to_sample_weights(y, kwargs.pop("class_weight"))
            kwargs["sample_weight"] = weights
        names = [name for name in ("y", "sample_weight") if name in kwargs]
        if original.__name__ != "train_on_batch":
            synchronize(getattr(self, "optimizer", None))
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


# ---- callbacks ---------------------------------------------------------------------------------


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
