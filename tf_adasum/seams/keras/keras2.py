"""The seam to Keras 2.15, which is tf.keras of TensorFlow 2.15.

Its `fit` works under multi-worker strategies by itself, so there is less to do than with Keras 3.
What `install()` wraps, none of which does anything unless the strategy is one of ours:

Optimizers, new-style ones (`Optimizer`) and `tf.keras.optimizers.legacy` (`OptimizerV2`), whose
subclasses TensorFlow Addons' optimizers are:

* `Optimizer.aggregate_gradients`, `OptimizerV2._aggregate_gradients`: the places where gradients
  are reduced. The wrappers mark the reduction, and give each gradient its variable's static shape.
* `.apply_gradients`: where a step begins. The wrappers take zeros for the gradients of a replica
  without rows, leave a step out whose gradients are not finite where `on_nonfinite` says so, and
  let a wrapper, as `AdaScale`, do the update.
* `Optimizer.build`: makes an optimizer's variables. The wrapper makes those of the rule, which have
  to be there when weights are loaded.
* `Optimizer._update_step`: where one variable is updated on its device. The wrapper lets a replica
  rest that takes no local step, see `Step.rests`.
* `Optimizer._distributed_apply_gradients_fn`: moves the moving averages of the weights with each
  update. The wrapper leaves that to `Step.average` where a wrapper combines the weights after it.
* `LossScaleOptimizerV3.apply_gradients`: builds its optimizer where no replica can wait for
  another. The wrapper builds ours before.

Losses and layers:

* `losses_utils.scale_loss_for_distribution`: divides mean-type losses by the number of replicas. A
  rule wants each replica's own gradient.
* `RandomGenerator.make_legacy_seed`: workers with the same seed drop the same units. The wrapper
  mixes in the replica's id.

Training:

* `TensorLikeDataAdapter.__init__`: every worker shuffles arrays by itself, so that some rows are
  seen twice and some never. The wrapper lets all of them shuffle with worker 0's seed.
* `DataHandler.enumerate_epochs`: has one dataset for all epochs. The wrapper lets one that is
  `exchangeable` be followed by another one. It makes an epoch's iterator before callbacks hear of
  the epoch, and so asks for the dataset with the epoch's number.
* `DataHandler._configure_dataset_and_inferred_steps`: maps class weights onto the dataset. The
  wrapper notes that there are some: a dataset that follows would not have them.
* `Model.make_train_function`: compiles the step with XLA where the user asks for it, which has no
  kernels for TensorFlow's collectives; and says what an error of `on_nonfinite="raise"` means.
* `Model.evaluate`, `.predict`, `CallbackList.on_epoch_end`: average the statistics that replicas
  have counted on their own rows.
* `Model.train_on_batch`, `.test_on_batch`: on several workers with several devices they add up what
  each worker returns, which is of all rows already. The wrappers take what the metrics say.
* `Model._maybe_load_initial_counters_from_ckpt`: which epoch `fit` begins with.
* `ProgbarLogger.on_train_begin`, `.on_epoch_begin`, `.on_epoch_end`: let callbacks say how long
  the training is.
* What all workers call (`TOGETHER`): leave the other workers waiting where one raises.

Files: as with Keras 3; and `load_model` of the module that reads what is no zip file, as one that
is cut off is none. What saves (`READING_ALL_REPLICAS`) reads the statistics that replicas count on
their own rows, which takes all workers. The wrappers let one worker save by itself.

`tests/unit/seams/test_seam_names_keras2.py` fails with the name of what a patch release has moved.
"""

import contextlib
import inspect
import typing
import weakref

import keras
import tensorflow as tf

from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.shared import (
    TOGETHER,
    AnyStep,
    CalledByWrapper,
    Optimizers,
    assign,
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
    path_of,
    reading_alone,
    reductions_of,
    saving_at_once,
    step_of_wrapper,
    with_averaged_statistics,
    working_together,
    wrap,
)

try:
    from keras.src.backend import RandomGenerator
    from keras.src.engine import training
    from keras.src.engine.data_adapter import DataHandler, TensorLikeDataAdapter
    from keras.src.mixed_precision.loss_scale_optimizer import (
        BaseLossScaleOptimizer,
        LossScaleOptimizerV3,
    )
    from keras.src.optimizers import utils as optimizer_utils
    from keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from keras.src.optimizers.optimizer import CallableList, Optimizer
    from keras.src.saving import saving_lib
    from keras.src.saving.legacy import save as legacy_saving
    from keras.src.utils import losses_utils
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with Keras 2.15 on TensorFlow 2.15; Keras {keras.__version__} has moved "
        f"something it builds on: {error}. Install a supported one: pip install 'tf-adasum[addons]'"
    ) from error

# Odd and large, so that the replicas' seeds look unrelated.
SEED_STRIDE = 0x9E3779B1

# What reads all variables of a model, which one worker may do by itself.
READING_ALL_REPLICAS = [
    (saving_lib, "save_model"),
    (saving_lib, "save_weights_only"),
    (legacy_saving, "save_model"),
    (legacy_saving, "save_weights"),
    (keras.Model, "get_weights"),
    (tf.train.Checkpoint, "_write"),
]

# The module with the class `LAMB`.
LAMB_MODULE = "tf_adasum.optimizers.addons_lamb"

# Their variables.
VARIABLE_TYPES = (tf.Variable,)

# For `add_weight`: the variable keeps its dtype.
WITHOUT_AUTOCAST = {"experimental_autocast": False}

OPTIMIZERS = (Optimizer, OptimizerV2)
LOSS_SCALE_OPTIMIZERS = (BaseLossScaleOptimizer,)

# Keras 2 writes with all workers, those but the first to a temporary file: reading the statistics
# of replicas takes all of them.
CALLBACKS_OF_WORKER_0 = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)

# Its `BackupAndRestore` backs up what all workers have.
BACKS_UP_ONE_WORKER = False

# There is no `SwapEMAWeights`.
OF_SWAP_EMA_WEIGHTS = ()


def install():
    """Wraps the functions above; again is harmless."""
    wrap(Optimizer, "aggregate_gradients", _marking_gradients)
    wrap(OptimizerV2, "_aggregate_gradients", _marking_gradients)
    wrap(Optimizer, "apply_gradients", _beginning_together)
    wrap(OptimizerV2, "apply_gradients", _beginning_together)
    wrap(Optimizer, "build", _with_reductions)
    wrap(Optimizer, "_update_step", _resting_without_rows)
    wrap(Optimizer, "_distributed_apply_gradients_fn", _averaging_later)
    wrap(LossScaleOptimizerV3, "apply_gradients", _building_before)
    wrap(losses_utils, "scale_loss_for_distribution", identity_where_marked)
    wrap(RandomGenerator, "make_legacy_seed", _seed_of_replica)
    wrap(TensorLikeDataAdapter, "__init__", _shuffled_alike)
    wrap(DataHandler, "_configure_dataset_and_inferred_steps", _remembering_class_weight)
    wrap(DataHandler, "enumerate_epochs", _exchanging_datasets)
    wrap(keras.Model, "make_train_function", _making_function)
    wrap(keras.Model, "_maybe_load_initial_counters_from_ckpt", _beginning_with_epoch)
    wrap(keras.callbacks.ProgbarLogger, "on_train_begin", expecting_what_fit_was_asked_for)
    for name in ("on_epoch_begin", "on_epoch_end"):
        wrap(keras.callbacks.ProgbarLogger, name, expecting_steps)
    for name in ("evaluate", "predict"):
        wrap(keras.Model, name, with_averaged_statistics)
    wrap(keras.callbacks.CallbackList, "on_epoch_end", averaging_statistics_first)
    for name in ("train_on_batch", "test_on_batch"):
        wrap(keras.Model, name, _with_metrics_of_all_rows)
    for name in TOGETHER:
        wrap(keras.Model, name, working_together, mark="works_together")
    for name in ("save_model", "save_weights_only"):
        wrap(saving_lib, name, saving_at_once)
    for name in ("load_model", "load_weights_only"):
        wrap(saving_lib, name, naming_the_file)
    wrap(legacy_saving, "load_model", naming_the_file)
    for owner, name in READING_ALL_REPLICAS:
        wrap(owner, name, reading_alone, mark="reads_alone")


# ---- optimizers --------------------------------------------------------------------------------


class OptimizersOfKeras2(Optimizers):
    """New-style optimizers, built for a list of variables, and legacy ones, which are not."""

    def variables_of(self, optimizer):
        """Returns the list of variables that an optimizer has met first, all of a model as a rule.

        Neither kind of optimizer keeps them.
        """
        return list(optimizer.first_variables)

    def index_of(self, optimizer, variable):
        """Returns the number of a variable among these."""
        key = _key_of(variable)
        for index, own in enumerate(optimizer.first_variables):
            if _key_of(own) == key:
                return index
        raise ValueError(
            f"This {type(optimizer).__name__} was built for other variables. Use another one for "
            f"these. Received: {variable.name}"
        )

    def build(self, optimizer, variables):
        """Makes an optimizer's own variables, if it has none yet; keeps which they belong to.

        Once for all replicas, outside of them: each would make its own.
        """
        variables = tuple(map(_distributed, variables))
        if is_built(optimizer) and not _met_first(optimizer, variables):
            return
        context = tf.distribute.get_replica_context()
        if context and tf.distribute.has_strategy():
            context.merge_call(lambda strategy: self._build(optimizer, variables, strategy))
        else:
            self._build(optimizer, variables)

    def _build(self, optimizer, variables, strategy=None):
        had_variables, first = is_built(optimizer), _met_first(optimizer, variables)
        met = (*getattr(optimizer, "first_variables", ()), *first)
        is_legacy = isinstance(optimizer, OptimizerV2)
        if had_variables and not is_legacy:
            optimizer.first_variables = met
            return
        # Outside of the function that is being traced, the scope is not entered.
        scope = strategy.scope if strategy else contextlib.nullcontext
        with tf.init_scope(), scope(), tf.name_scope(_name_of(optimizer)):
            reductions = reductions_of(optimizer)
            if reductions is not None:
                reductions.extend(map(path_of, first))  # first, as it may refuse
            optimizer.first_variables = met
            if is_legacy:
                optimizer._create_all_weights(first)
                self.set_reductions_of_ours(optimizer)
            else:
                optimizer.build(optimizer.first_variables)

    def set_reductions_of_ours(self, optimizer):
        """Gives an optimizer its `AggregationState` if it is built under one of our strategies."""
        strategy = tf.distribute.get_strategy()
        is_outside = tf.distribute.in_cross_replica_context()
        if marker_of(strategy) and is_outside and reductions_of(optimizer) is None:
            self.set_reductions(optimizer, strategy)


def _met_first(optimizer, variables):
    """Those of some variables that an optimizer has not met; a new-style one meets some only once.

    Legacy optimizers take further variables at any time: of layers that are no longer frozen, say.
    """
    known = getattr(optimizer, "first_variables", None)
    if known is None:
        return variables
    if not isinstance(optimizer, OptimizerV2):
        return ()
    keys = set(map(_key_of, known))
    return tuple(variable for variable in variables if _key_of(variable) not in keys)


def _distributed(variable):
    """The variable of all replicas that one of a replica belongs to."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    container = getattr(getattr(variable, "handle", None), "_distributed_container", None)
    return container() if container else variable


def _with_reductions(original):
    def build(self, var_list):
        _refuse_nadam(self)
        original(self, var_list)
        if not hasattr(self, "first_variables"):
            self.first_variables = tuple(map(_distributed, var_list))
        _optimizers.set_reductions_of_ours(self)

    return build


def _refuse_nadam(optimizer):
    strategy = tf.distribute.get_strategy()
    if not isinstance(optimizer, keras.optimizers.Nadam) or not is_ours(strategy):
        return
    if len(strategy.extended.worker_devices) > 1:
        raise ValueError(
            "tf.keras.optimizers.Nadam counts its steps in Python, once for each device: with "
            "several devices the replicas would part ways, as under all strategies. Take "
            "tf.keras.optimizers.legacy.Nadam, or one device per worker. "
            f"Received: {len(strategy.extended.worker_devices)} devices"
        )


def _name_of(optimizer):
    return optimizer._name if isinstance(optimizer, OptimizerV2) else optimizer.name


def _key_of(variable):
    return _distributed(variable)._unique_id


_optimizers = OptimizersOfKeras2()
begin_together, combine, index_of = (
    _optimizers.begin_together,
    _optimizers.combine,
    _optimizers.index_of,
)


def _marking_gradients(original):
    def aggregate_gradients(self, grads_and_vars):
        context = tf.distribute.get_replica_context()
        is_users_own = getattr(self, "gradient_aggregator", None) not in (
            None,
            optimizer_utils.all_reduce_sum_gradients,
        )
        if not context or not marker_of(context.strategy) or is_users_own:
            return original(self, grads_and_vars)
        grads_and_vars = list(grads_and_vars)
        present = optimizer_utils.filter_empty_gradients(grads_and_vars)
        if not present:
            return grads_and_vars
        gradients, variables = zip(*present, strict=True)
        _optimizers.build(self, [variable for _, variable in grads_and_vars])
        combined = iter(
            combine(self, context.strategy.empty_replicas.zero_where_empty(gradients), variables)
        )
        return [(None if g is None else next(combined), v) for g, v in grads_and_vars]

    return aggregate_gradients


def _beginning_together(original):
    def apply_gradients(self, grads_and_vars, name=None, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        step = step_of_wrapper(self)
        if step is not None and grads_and_vars:
            _optimizers.build(self, [variable for _, variable in grads_and_vars])
            gradients, variables = zip(
                *optimizer_utils.filter_empty_gradients(grads_and_vars), strict=True
            )
            step.start()
            step.update([*gradients, *step.measure(gradients)], variables)
            step.average()
            return self.iterations
        is_reduced = args or kwargs.get("skip_gradients_aggregation")
        is_reduced = is_reduced or not kwargs.get("experimental_aggregate_gradients", True)
        if not grads_and_vars or is_reduced:
            return original(self, grads_and_vars, name, *args, **kwargs)
        gradients, variables = zip(*grads_and_vars, strict=True)

        def take(gradients):
            original(self, zip(gradients, variables, strict=True), name, **kwargs)

        begin_together(self, gradients, variables, take)
        return self.iterations

    return apply_gradients


class Resting(typing.NamedTuple):
    """A gradient, and who takes no step with it.

    Attributes:
        gradient: the gradient.
        rests: boolean scalar tensor: whether this replica does not.
    """

    gradient: object
    rests: object


def _resting_without_rows(original):
    """`Optimizer._update_step`, for a gradient that is a `Resting` one: with its weight decay."""

    def update_step(self, gradient, variable):
        if not isinstance(gradient, Resting):
            return original(self, gradient, variable)

        def step():
            if self.weight_decay is not None and self._use_weight_decay(variable):
                decay = tf.cast(self.weight_decay, variable.dtype)
                variable.assign_sub(variable * decay * tf.cast(self.learning_rate, variable.dtype))
            original(self, gradient.gradient, variable)
            return tf.constant(0)

        tf.cond(gradient.rests, lambda: tf.constant(0), step)

    return update_step


def _averaging_later(original):
    def apply_gradients(self, distribution, grads_and_vars, **kwargs):
        if step_of_wrapper(self) is None:
            return original(self, distribution, grads_and_vars, **kwargs)
        use_ema, self.use_ema = self.use_ema, False
        try:
            return original(self, distribution, grads_and_vars, **kwargs)
        finally:
            self.use_ema = use_ema

    return apply_gradients


def _building_before(original):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        if isinstance(self.inner_optimizer, WrapperBase) or our_replica_context():
            build(self.inner_optimizer, [variable for _, variable in grads_and_vars])
        return original(self, grads_and_vars, *args, **kwargs)

    return apply_gradients


class Step(AnyStep):
    """What a wrapper does with the gradients of one update: what Keras 2 does."""

    def update(self, values, variables):
        """Clips, decays and updates.

        Args:
            values: the gradients.
            variables: as many variables.
        """
        is_legacy = isinstance(self.optimizer, OptimizerV2)
        update = self._update_legacy if is_legacy else self._update
        update(list(values), list(map(_distributed, variables)), self.rests())

    def _update(self, gradients, variables, rests):
        """What `Optimizer.apply_gradients` does after the reduction."""
        optimizer = self.optimizer
        with tf.name_scope(optimizer.name):
            optimizer._compute_current_learning_rate()
            gradients = optimizer._clip_gradients(gradients)
            gradients = optimizer._deduplicate_sparse_grad(gradients)
            if rests is None:
                optimizer._apply_weight_decay(variables)
            else:
                gradients = [Resting(gradient, rests) for gradient in gradients]
            optimizer._internal_apply_gradients(list(zip(gradients, variables, strict=True)))
            for variable in variables:
                if variable.constraint is not None:
                    value = variable.constraint(variable)
                    if rests is not None:
                        value = tf.where(rests, variable, value)
                    variable.assign(value)

    def _update_legacy(self, gradients, variables, rests):
        """A step; a replica that rests takes back what has moved."""
        optimizer, had = self.optimizer, []
        if rests is not None:
            moving = [v for v in optimizer.variables() if v is not optimizer.iterations]
            had = [(v, tf.identity(v)) for v in [*variables, *moving]]
        OptimizerV2.apply_gradients.__wrapped__(
            optimizer,
            list(zip(gradients, variables, strict=True)),
            experimental_aggregate_gradients=False,
        )
        if had:
            moved, values = zip(*had, strict=True)
            assign(moved, [tf.where(rests, *pair) for pair in zip(values, moved, strict=True)])

    def average(self):
        """Moves the moving averages of the weights, and from time to time takes them over."""
        average_weights(self.optimizer, self.optimizer.iterations - 1)


class StepOfWrapper(CalledByWrapper, Step):
    """A step that a wrapper does."""


class WrapperBase(Optimizer):
    """What Keras asks of an optimizer that has another one in it.

    Subclasses have `inner_optimizer`, `learning_rate`, `build` and
    ``apply(gradients, variables)``, which takes a step.

    Args:
        name: name of the optimizer.
    """

    def __init__(self, name):
        super().__init__(name=name)
        self.built = False

    def aggregate_gradients(self, grads_and_vars):
        """Leaves gradients to the step; where one replica's are not finite, all get NaN.

        `tf.keras.mixed_precision.LossScaleOptimizer` looks at them after this.
        """
        grads_and_vars = list(grads_and_vars)
        present = [g for g, _ in grads_and_vars if g is not None]
        flags = [tf.reduce_all(tf.math.is_finite(_values(gradient))) for gradient in present]
        bad = tf.cast(tf.logical_not(tf.reduce_all(flags)), tf.float32)
        bad = tf.distribute.get_replica_context().all_reduce("SUM", bad) > 0

        def spread(gradient):
            if gradient is None:
                return None
            values = _values(gradient)
            values = tf.where(bad, tf.constant(float("nan"), values.dtype), values)
            if not isinstance(gradient, tf.IndexedSlices):
                return values
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

        return [(spread(gradient), variable) for gradient, variable in grads_and_vars]

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Takes pairs of gradients and variables; returns `iterations`."""
        del name, skip_gradients_aggregation, kwargs
        grads_and_vars = list(grads_and_vars)
        if grads_and_vars:
            self.apply(*zip(*grads_and_vars, strict=True))
        return self.iterations

    def add_variable(self, shape, initializer="zeros", dtype=None, aggregation=None, name=None):
        """Makes a variable of its own.

        Args: as of Keras 3; `aggregation` is ``"only_first_replica"`` or None.
        """
        aggregations = {
            None: tf.VariableAggregation.NONE,
            "only_first_replica": tf.VariableAggregation.ONLY_FIRST_REPLICA,
        }
        variable = tf.Variable(
            keras.initializers.get(initializer)(shape, dtype),
            trainable=False,
            name=name,
            aggregation=aggregations[aggregation],
        )
        self._variables.append(variable)
        return variable

    def add_optimizer_variables(self, variables, name):
        """Makes a variable of its own, of zeros, beside each of a list of variables."""
        return [self.add_variable_from_reference(variable, name) for variable in variables]

    @property
    def variables(self):
        """This optimizer's own variables and those of the inner one."""
        inner = self.inner_optimizer.variables
        return CallableList(own_variables(self) + list(inner() if callable(inner) else inner))


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def build(optimizer, variables):
    """Makes an optimizer's own variables, if it has none yet."""
    _optimizers.build(_without_loss_scale(optimizer), variables)


def apply(optimizer, gradients, variables):
    """Lets an optimizer take a step with this replica's gradients."""
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def _without_loss_scale(optimizer):
    is_outer = isinstance(optimizer, LOSS_SCALE_OPTIMIZERS)
    return optimizer.inner_optimizer if is_outer else optimizer


def is_built(optimizer):
    """Whether an optimizer has its variables."""
    optimizer = _without_loss_scale(optimizer)
    if isinstance(optimizer, WrapperBase):
        return optimizer.built
    if isinstance(optimizer, OptimizerV2):
        return hasattr(optimizer, "first_variables")
    return bool(getattr(optimizer, "_built", False))


def add_accumulator(optimizer):
    """Does nothing: Keras 2 has no `gradient_accumulation_steps`."""
    del optimizer  # a body is what AutoGraph needs


def exchange_learning_rate(optimizer, learning_rate):
    """Gives an optimizer another learning rate; returns what it had.

    Args:
        optimizer: the optimizer.
        learning_rate: a variable, a number or a schedule.
    """
    if isinstance(optimizer, OptimizerV2):
        if optimizer._initial_decay:
            raise ValueError(
                "The argument `decay` counts iterations, and not steps of the small batch: give "
                "the optimizer a schedule, as tf.keras.optimizers.schedules.InverseTimeDecay. "
                f"Received: decay={optimizer._initial_decay}"
            )
        optimizer._create_hypers()  # a number becomes a variable
        if "learning_rate" not in optimizer._hyper:
            raise ValueError(
                "An optimizer whose learning rate is to be scaled needs one of its own. "
                f"Received: optimizer={type(optimizer).__name__}(…)"
            )
        had = optimizer._hyper["learning_rate"]
        optimizer._hyper["learning_rate"] = learning_rate
        return had
    had, optimizer._learning_rate = optimizer._learning_rate, learning_rate
    if isinstance(had, tf.Variable):
        optimizer.learning_rate_before = had  # where tf.train.Checkpoint finds it
    is_schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    current = getattr(optimizer, "_current_learning_rate", None)
    if is_schedule and (current is None or not current.dtype.is_floating):
        optimizer._current_learning_rate = tf.Variable(
            floating(had(0) if callable(had) and not isinstance(had, tf.Variable) else had),
            trainable=False,
            name="current_learning_rate",
        )
    return had


def floating(learning_rate):
    """Returns a learning rate as a tensor that has fractions: a schedule may return an int."""
    learning_rate = tf.convert_to_tensor(learning_rate)
    if learning_rate.dtype.is_floating:
        return learning_rate
    return tf.cast(learning_rate, keras.backend.floatx())


def own_variables(optimizer):
    """Returns the variables that the optimizer itself has made, not those of an inner one."""
    return [variable for variable in optimizer._variables if variable is not optimizer._iterations]


def all_variables(optimizer):
    """Returns all variables of an optimizer, as a list."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def variables_to_save(optimizer):
    """Returns the variables of a wrapper that Keras does not save by itself.

    These are its own, and those of a legacy optimizer in it.
    """
    inner = optimizer.inner_optimizer
    of_inner = list(inner.variables()) if isinstance(inner, OptimizerV2) else []
    return own_variables(optimizer) + of_inner


def average_weights(optimizer, count):
    """Moves the moving averages of the weights as Keras does, for the `count`-th time from 0.

    They start with the weights before the first step.

    Args:
        optimizer: a built optimizer; called in each replica.
        count: int64 scalar.
    """
    if not getattr(optimizer, "use_ema", False):
        return
    variables, frequency = optimizer.first_variables, optimizer.ema_overwrite_frequency

    def across_replicas(strategy):
        del strategy
        optimizer._update_model_variables_moving_average(variables)

    def overwrite():
        for variable in variables:
            index = optimizer._index_dict[_key_of(variable)]
            variable.assign(optimizer._model_variables_moving_average[index])

    context = tf.distribute.get_replica_context()
    context.merge_call(across_replicas)
    if frequency:
        cond(context, (count + 1) % frequency == 0, overwrite, lambda: None)


# ---- layers ------------------------------------------------------------------------------------


def _seed_of_replica(original):
    def make_legacy_seed(self):
        seed = original(self)
        context = our_replica_context()
        if not context:
            return seed
        replica = tf.get_static_value(context.replica_id_in_sync_group)
        if replica is None:  # in a tf.function of its own: those of a worker differ in their layers
            replica = tensorflow_seam.first_replica(context.strategy.extended)
        if replica == 0:
            return seed
        if seed is None:
            if tensorflow_seam.global_seed() is None:
                return None
            _, seed = tf.compat.v1.random.get_seed(None)  # what the operation would take
        return int((seed + replica * SEED_STRIDE) % (2**31 - 1))

    return make_legacy_seed


# ---- training ----------------------------------------------------------------------------------


def _shuffled_alike(original):
    def initialize(self, *args, **kwargs):
        strategy = tf.distribute.get_strategy()
        if kwargs.get("shuffle") and is_ours(strategy):
            seed = strategy.seeds.common()
            if seed is not None:
                with tensorflow_seam.seeded(seed):
                    return original(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return initialize


def _making_function(original):
    def make_train_function(self, force=False):
        strategy = self.distribute_strategy
        if not is_ours(strategy):
            return original(self, force)
        leave_xla_out(self)
        is_new = self.train_function is None or force
        function = original(self, force)
        if is_new:
            self.train_function = function = strategy.nonfinite.raising_plainly(function)
        return function

    return make_train_function


def _with_metrics_of_all_rows(original):
    signature = inspect.signature(original)

    def on_batch(self, *args, **kwargs):
        if not is_ours(self.distribute_strategy):
            return original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        wants_dict = arguments.pop("return_dict", False)
        logs = self._validate_and_get_metrics_result(original(**arguments, return_dict=True))
        return logs if wants_dict else training.flatten_metrics_in_order(logs, self.metrics_names)

    return on_batch


# The models whose next `enumerate_epochs` is that of `fit`, not of an evaluation.
_about_to_train = weakref.WeakSet()

# For each model the epoch with which its next `fit` begins.
_initial_epochs = weakref.WeakKeyDictionary()


def _beginning_with_epoch(original):
    def maybe_load_initial_counters(self, steps_per_epoch, initial_epoch):
        _about_to_train.add(self)
        epoch, step = original(self, steps_per_epoch, initial_epoch)
        return _initial_epochs.pop(self, None) or epoch, step

    return maybe_load_initial_counters


def initial_epoch(model):
    """Returns the epoch in which `fit` starts, if that has been set; or else 0."""
    return _initial_epochs.get(model, 0)


def set_initial_epoch(model, epoch):
    """Sets the epoch in which `fit` starts; 0 leaves it to the argument of `fit`."""
    _initial_epochs[model] = epoch


def _remembering_class_weight(original):
    """What maps class weights onto a dataset, which one that follows would not have."""

    def configure(self, strategy, x, steps_per_epoch, class_weight, distribute):
        self.has_class_weight = bool(class_weight)
        original(self, strategy, x, steps_per_epoch, class_weight, distribute)

    return configure


def _exchanging_datasets(original):
    def enumerate_epochs(self):
        following = getattr(self._adapter.get_dataset(), "following", None)
        if following is None or self.has_class_weight or self._model not in _about_to_train:
            yield from original(self)
            return
        _about_to_train.discard(self._model)
        iterator = None
        for epoch in range(self._initial_epoch, self._epochs):
            if self._insufficient_data:
                break
            dataset = following(epoch)
            if dataset is not None:
                self._dataset = self._model.distribute_strategy.experimental_distribute_dataset(
                    dataset
                )
                if self._steps_per_epoch is None:
                    cardinality = int(dataset.cardinality())
                    self._inferred_steps = cardinality if cardinality >= 0 else None
                iterator = None
            if iterator is None or self._adapter.should_recreate_iterator():
                iterator = iter(self._dataset)
            yield epoch, iterator
            self._adapter.on_epoch_end()

    return enumerate_epochs


def set_data_order(model, order):
    """Does nothing: backups are of whole epochs."""


def position_in_data(model, batch):
    """Returns `batch`."""
    return batch


def call_in_order(callback_list):
    """Does nothing: Keras 2 calls callbacks in order."""
