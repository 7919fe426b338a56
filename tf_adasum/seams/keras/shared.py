"""What the seams to both generations of Keras have in common: nothing here is private in Keras."""

import contextlib
import functools
import os
import warnings
import weakref
import zipfile

import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.seams import tensorflow as tensorflow_seam

# What all workers call.
TOGETHER = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def wrap(owner, name, wrapper, mark="wrapped_by_tf_adasum"):
    """Replaces a function of a class or module by what `wrapper` makes of it, once."""
    original = getattr(owner, name)
    if getattr(original, mark, False):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, mark, True)
    setattr(owner, name, wrapped)


def is_ours(strategy):
    """Whether a strategy is an `AdasumMirroredStrategy`."""
    return hasattr(strategy, "gradient_reduction")


def our_replica_context():
    """The current replica context, if it belongs to one of our strategies."""
    context = tf.distribute.get_replica_context()
    return context if context and is_ours(context.strategy) else None


def path_of(variable):
    """Returns a Keras variable's path; the name of one of TensorFlow's, without its ":0"."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def tensorflow_variable(variable):
    """Returns the `tf.Variable` of a Keras 3 variable; one of TensorFlow's as it is."""
    value = variable.value
    return variable if callable(value) else value


def marker_of(strategy):
    """The strategy's `gradient_reduction`; None where Keras and TensorFlow go their own way."""
    return getattr(strategy, "gradient_reduction", None)


class Optimizers:
    """How the optimizers of a generation of Keras reduce their gradients."""

    def variables_of(self, optimizer):
        """Returns the list of variables that a built optimizer was built for."""
        raise NotImplementedError

    def index_of(self, optimizer, variable):
        """Returns the number of a variable, Keras's or TensorFlow's, among these."""
        raise NotImplementedError

    def build(self, optimizer, variables):
        """Makes an optimizer's own variables, if it has none yet; called in a replica."""
        raise NotImplementedError

    def begin_together(self, optimizer, gradients, variables, step):
        """Takes a step with what a replica has of gradients, if all replicas have finite ones.

        Args:
            optimizer: the optimizer.
            gradients: this replica's, or None for one that there is not.
            variables: as many variables; None for those of the optimizer.
            step: function of the list of gradients; called now, or as a branch in each replica.
        """
        context = our_replica_context()
        if not context or is_wrapped(optimizer):
            return step(gradients)
        gradients = context.strategy.empty_replicas.zero_where_empty(gradients)
        guard = context.strategy.nonfinite
        present = [gradient for gradient in gradients if gradient is not None]
        if guard.leaves_be or not present:
            return step(gradients)

        if variables is not None:  # no variable can be made in a branch
            self.build(optimizer, variables)
        every = self.variables_of(optimizer) if variables is None else list(variables)
        pairs = zip(gradients, every, strict=True)
        paths = [path_of(variable) for gradient, variable in pairs if gradient is not None]
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

    def combine(self, optimizer, gradients, variables):
        """Combines what the replicas have for some variables by the strategy's rule.

        Args:
            optimizer: the one that was built for these variables.
            gradients: this replica's, none of them None. Called in a replica of a strategy with a
                marker.
            variables: as many Keras or TensorFlow variables.
        """
        context = tf.distribute.get_replica_context()
        gradients = [of_known_shape(*pair) for pair in zip(gradients, variables, strict=True)]
        indices = [self.index_of(optimizer, variable) for variable in variables]
        reductions = self._reductions_of(optimizer, context)
        _check_same_gradients(context, gradients, variables, reductions.groups_of(indices))
        marker = marker_of(context.strategy).of(reductions, indices)
        return context.all_reduce("SUM", gradients, options=marker)

    def _reductions_of(self, optimizer, replica_context):
        """The optimizer's `AggregationState`, made now if it was built in a replica."""

        def across_replicas(strategy):
            if reductions_of(optimizer) is None:
                with tf.init_scope():
                    self.set_reductions(optimizer, strategy)

        replica_context.merge_call(across_replicas)
        return reductions_of(optimizer)

    def set_reductions(self, optimizer, strategy):
        """Gives a built optimizer its `AggregationState`."""
        paths = [path_of(variable) for variable in self.variables_of(optimizer)]
        optimizer.gradient_reductions = strategy.aggregation_state(paths)
        rule_state = optimizer.gradient_reductions.rule_state
        if rule_state:
            optimizer.rule_state = rule_state  # what Keras finds here it saves with the optimizer


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


def reductions_of(optimizer):
    """Returns the `AggregationState` of an optimizer; None where it has none."""
    return getattr(innermost(optimizer), "gradient_reductions", None)


def innermost(optimizer):
    """Returns the optimizer within all wrappers, as `LossScaleOptimizer` is one."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def accumulation_steps(optimizer):
    """Returns how many gradients go into an update: `gradient_accumulation_steps`, or else 1."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def check_same_settings(strategy, settings):
    """Lets the workers of a strategy, where it is one of ours, compare an optimizer's settings."""
    what = "All workers need an optimizer with the same settings."
    if our_replica_context():
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: strategy.workers.check_same(what, settings)
        )
    elif is_ours(strategy):
        strategy.workers.check_same(what, settings)


def take_over(optimizer, step):
    """Lets a `Step` of a wrapper do the updates of an optimizer, reductions included."""
    optimizer.step_of_wrapper = step


def step_of_wrapper(optimizer):
    """Returns the `Step` that a wrapper has given an optimizer; None without one."""
    return getattr(optimizer, "step_of_wrapper", None)


class AnyStep:
    """What an optimizer does with the gradients of one update.

    Every method is called in each replica.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def measure(self, gradients):
        """Returns scalars that are accumulated with the gradients, and come to `update` at the end.

        Args:
            gradients: of this call, neither clipped nor reduced.
        """
        del gradients
        return []

    def rests(self):
        """Whether this replica takes no step, nor decays weights: boolean scalar; None for never.

        Only for what reduces nothing in its updates.
        """
        return None


class CalledByWrapper:
    """What the steps of wrappers have in common: optimizers in them are not used by themselves.

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


def is_wrapped(optimizer):
    """Whether a wrapper does the updates of this optimizer."""
    return step_of_wrapper(optimizer) is not None


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


def assign(variables, values):
    """Assigns each replica's own values to variables; called in each replica.

    Args:
        variables: Keras or TensorFlow variables.
        values: a tensor for each.
    """

    def across_replicas(strategy, values):
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                tensorflow_variable(variable),
                lambda own, value: own.assign(value),
                args=(value,),
                group=False,
            )

    tf.distribute.get_replica_context().merge_call(across_replicas, args=(values,))


def identity_where_marked(original):
    """What scales a loss by the number of replicas: a rule wants each replica's own gradient."""

    def scale_loss(value):
        return value if marker_of(tf.distribute.get_strategy()) else original(value)

    return scale_loss


def with_averaged_statistics(original):
    """`evaluate` and `predict`."""

    def evaluate_or_predict(self, *args, **kwargs):
        _average_statistics(self)
        return original(self, *args, **kwargs)

    return evaluate_or_predict


def averaging_statistics_first(original):
    """`CallbackList.on_epoch_end`."""

    def on_epoch_end(self, epoch, logs=None):
        model = getattr(self, "_model", None) or getattr(self, "model", None)
        if model is not None:
            _average_statistics(model)
            if is_ours(model.distribute_strategy):
                model.distribute_strategy.nonfinite.warn_once()
        return original(self, epoch, logs)

    return on_epoch_end


def _average_statistics(model):
    strategy = model.distribute_strategy
    if is_ours(strategy) and model.built:
        synchronize(getattr(model, "optimizer", None))
        strategy.average_statistics(model)


def synchronize(optimizer):
    """Ends local steps ahead of time: the replicas' weights have to be the same."""
    while optimizer is not None:
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        optimizer = getattr(optimizer, "inner_optimizer", None)


def working_together(original):
    """What all workers call: see `TOGETHER`."""

    def call(self, *args, **kwargs):
        strategy = self.distribute_strategy
        if not is_ours(strategy):
            return original(self, *args, **kwargs)
        is_a_step = original.__name__.endswith("on_batch")
        with strategy.watching() if is_a_step else strategy.working_together(), _calls.one_more():
            return original(self, *args, **kwargs)

    return call


class _Calls:
    """How many calls of `TOGETHER` are under way, one within another."""

    count = 0

    @contextlib.contextmanager
    def one_more(self):
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


_calls = _Calls()


def reading_alone(original):
    """What saves a model, which one worker may do by itself; in `fit`, all of them do."""

    def save(*args, **kwargs):
        if _calls.count:
            return original(*args, **kwargs)
        with tensorflow_seam.reading_alone():
            return original(*args, **kwargs)

    return save


def exchangeable(dataset, following):
    """Returns a `tf.data.Dataset` that another one may follow when an epoch begins.

    Args:
        dataset: the first one.
        following: function that returns the dataset from this epoch on, or None for the same.
            Gets the epoch's number where it has not begun yet, which is with Keras 2.
    """
    dataset = dataset.with_options(tf.data.Options())  # another object: the user may have others
    dataset.following = following
    return dataset


def saving_at_once(original):
    """`save_model` and `save_weights_only`."""

    def save(model, filepath, *args, **kwargs):
        is_path = isinstance(filepath, str | os.PathLike)
        in_parts = any(args) or kwargs.get("max_shard_size") is not None
        if (
            not is_ours(getattr(model, "distribute_strategy", None))
            or not is_path
            or in_parts
            or not atomic_files.is_local(filepath)
            or not os.fspath(filepath).endswith((".keras", ".weights.h5"))
        ):
            return original(model, filepath, *args, **kwargs)
        with atomic_files.replacing(filepath) as unfinished:
            return original(model, unfinished, *args, **kwargs)

    return save


def naming_the_file(original):
    """`load_model` and `load_weights_only`."""

    of_model = original.__name__ == "load_weights_only"

    def load(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except (OSError, zipfile.BadZipFile) as error:
            strategy = args[0].distribute_strategy if of_model else tf.distribute.get_strategy()
            path = str(args[1 if of_model else 0])
            is_missing = getattr(error, "errno", None)
            if not is_ours(strategy) or is_missing or path in str(error):
                raise
            raise OSError(f"{path} cannot be read, it is cut off or damaged: {error}") from error

    return load


# For each model what its progress bar expects: "epochs", and "steps" per epoch.
expected = weakref.WeakKeyDictionary()


def expect(model, **numbers):
    """Tells a model's progress bar what to expect from the next epoch on.

    Args:
        model: the model.
        numbers: `epochs` and `steps` (per epoch); none for what `fit` was asked for.
    """
    if numbers:
        expected.setdefault(model, {}).update(numbers)
    else:
        expected.pop(model, None)


def expecting_what_fit_was_asked_for(original):
    """`ProgbarLogger.on_train_begin`."""

    def on_train_begin(self, logs=None):
        expect(self.model)  # forgets what a training has left that failed
        return original(self, logs)

    return on_train_begin


def expecting_steps(original):
    """`ProgbarLogger.on_epoch_begin` and `.on_epoch_end`."""

    def on_epoch_begin_or_end(self, epoch, logs=None):
        if self.model in expected:
            self.epochs = expected[self.model].get("epochs", self.epochs)
            self.target = expected[self.model].get("steps", self.target)
            if original.__name__ == "on_epoch_end" and self.progbar is not None:
                self.target = self.progbar.target = self.seen  # as many as there were
        return original(self, epoch, logs)

    return on_epoch_begin_or_end


def leave_xla_out(model):
    """Lets a model train without XLA, and says so where the user has asked for it."""
    if model.jit_compile and not model.run_eagerly:
        warnings.warn(
            "AdasumMirroredStrategy trains this model without XLA: TensorFlow's collectives have "
            "no XLA kernels. Compile it with jit_compile=False.",
            stacklevel=3,
        )
        model.jit_compile = False
