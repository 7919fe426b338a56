"""Hooks into training, evaluation and prediction, for Keras 2 and 3."""

import contextlib
import dataclasses
import threading
import warnings
import weakref

import tensorflow as tf

from tf_adasum.compat import one_worker
from tf_adasum.compat.base_strategy import live_strategies
from tf_adasum.compat.keras.call_settings import Settings, settings_of
from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import is_ours, optimizers_of, optimizers_within
from tf_adasum.errors import hint, see
from tf_adasum.health import call_log, call_site

# ---- calls that all workers make ---------------------------------------------------------------

# The methods of a model that run steps.
CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@dataclasses.dataclass
class _Call:
    """A running call that all workers make.

    Attributes:
        name: its name.
        settings: its `Settings`.
        unread: the names of the calls within it whose steps return logs that no callback reads;
            None if the call has no list of callbacks of its own.
        steps: the number of steps that `count_step` has counted.
    """

    name: str
    settings: Settings
    unread: frozenset[str] | None = None
    steps: int = 0


class _Running(threading.local):
    """What runs in this thread, because another thread may call `predict` during `fit`.

    Attributes:
        calls: list of `_Call`, the outermost first.
        ends: for each running `fit`, the `contextlib.ExitStack` that is closed at its end.
    """

    def __init__(self):
        self.calls, self.ends = [], []


_running_here = _Running()


@contextlib.contextmanager
def _running(name, settings):
    _running_here.calls.append(_Call(name, settings))
    try:
        with call_log.call(name):
            yield
    finally:
        _running_here.calls.pop()


@contextlib.contextmanager
def _ending(name):
    if name != "fit":
        yield
        return
    with contextlib.ExitStack() as stack:
        _running_here.ends.append(stack)
        try:
            yield
        finally:
            _running_here.ends.pop()


def are_calls_under_way():
    """Return whether `fit` or another call that all workers make is running."""
    return bool(_running_here.calls)


def when_fit_ends(function):
    """Call a function when the running `fit` ends or fails. In a custom loop, do nothing."""
    if _running_here.ends:
        _running_here.ends[-1].callback(function)


def skip_log_reduction(names):
    """Let the steps of calls return logs that are not averaged, because no callback reads them.

    All workers have to call this function with the same names. If a call has several lists of
    callbacks, each of them calls this function, and the names that all lists have count.

    Args:
        names: "fit" or "evaluate" or both, within the innermost running call.
    """
    if _running_here.calls:
        before = _running_here.calls[-1].unread
        _running_here.calls[-1].unread = (
            frozenset(names) if before is None else before.intersection(names)
        )


def reduces_logs(name):
    """Return whether the steps of `fit` or `evaluate` have to average their logs.

    Args:
        name: "fit" or "evaluate"; averages them if another call is running.
    """
    decided = [call.unread for call in _running_here.calls if call.unread is not None]
    return not decided or _running_here.calls[-1].name != name or name not in decided[-1]


def count_step():
    """Count a step of the innermost running call, and return the number of its counted steps."""
    _running_here.calls[-1].steps += 1
    return _running_here.calls[-1].steps


def current_call():
    """Return the name of the innermost running call that all workers make, or None."""
    return _running_here.calls[-1].name if _running_here.calls else None


def current_calls():
    """Return the names of all running calls as text, such as "evaluate within fit"."""
    return " within ".join(call.name for call in reversed(_running_here.calls)) or "none"


def current_call_settings():
    """Return the `Settings` of the innermost running call. If no call runs, they are empty."""
    return _running_here.calls[-1].settings if _running_here.calls else Settings()


@hooks.replaces(private_names.Trainer, *CALLS, outermost=True)
def call_together(original, self, *args, **kwargs):
    """Report an exception to the other workers, which would otherwise wait for this worker.

    If several workers call `fit` of a model without a strategy, refuse the call.
    """
    strategy = self.distribute_strategy
    if not is_ours(strategy):
        if original.__name__ == "fit":
            _refuse_no_strategy(self)
        with _ending(original.__name__):
            return original(self, *args, **kwargs)
    name, settings = original.__name__, Settings()
    batch_size, replicas = kwargs.get("batch_size"), strategy.num_virtual_replicas
    is_small = isinstance(batch_size, int) and batch_size < replicas
    if name == "fit" and is_small and strategy.workers.rank == 0:
        hint(
            f"The batch size {batch_size} is that of all {replicas} replicas together, so some "
            "replicas have no rows."
        )
    if strategy.workers.count > 1:
        one_worker.refuse(f"model.{name}")
        settings = settings_of(self, original, args, kwargs)
    if name.endswith("on_batch"):
        with _running(name, settings), strategy.detecting_failures():
            _compare_settings_of_batches(self, name, settings)
            return original(self, *args, **kwargs)
    is_nested = are_calls_under_way()
    with _running(name, settings), strategy.working_together(), _ending(name):
        if is_nested:
            strategy.workers.gather([])  # wait for all workers
        return original(self, *args, **kwargs)


# For each model: a dict from the name of an `_on_batch` method to the settings of its last call.
_settings_of_batches = weakref.WeakKeyDictionary()


def _compare_settings_of_batches(model, name, settings):
    """Compare the first settings of an `_on_batch` method on all workers, and log later changes.

    A comparison in every call would take longer than a step of a small model.
    """
    strategy = model.distribute_strategy
    known = _settings_of_batches.setdefault(model, {})
    before, known[name] = known.get(name), settings
    if before is None:
        strategy.workers.gather([])
    elif strategy.workers.count > 1:
        if settings.digest != before.digest:
            now, then = settings.all(), before.all()
            changed = next(key for key in {**now, **then} if now.get(key) != then.get(key))
            call_log.note(f"calls {name} with another {changed}: {now.get(changed)}")


def _refuse_no_strategy(model):
    """Raise an error if several workers train without a strategy. Warn if only one worker does."""
    default = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or model.distribute_strategy is not default:
        return
    if all(strategy.num_replicas_in_sync == 1 for strategy in live_strategies):
        return
    _, line = call_site.of_thread(threading.get_ident())
    message = (
        f"The model {model.name!r} was created outside the scope of the AdasumMirroredStrategy, "
        f"and fit is called at {line}, so each worker trains its own model. Create and compile "
        f"the model in the scope: with strategy.scope(): model = ... {see('TFA-301')}"
    )
    for strategy in live_strategies:
        if strategy.workers.count > 1 and strategy.workers.health.others_fit_without_strategy():
            raise RuntimeError(message)
    warnings.warn(message, stacklevel=5)  # hooks call this function


# ---- statistics and weights that differ between replicas ---------------------------------------


@hooks.replaces(private_names.Trainer, "evaluate", "predict")
def evaluate_or_predict(original, self, *args, **kwargs):
    """Before the call, average the statistics that each replica computed from its own rows.

    For example, BatchNormalization has such statistics. In `predict`, the dataset is not sharded by
    file, because `predict` returns rows in the order of the dataset.
    """
    average_statistics(self)
    strategy = self.distribute_strategy
    if original.__name__ != "predict" or not is_ours(strategy):
        return original(self, *args, **kwargs)
    with strategy.sharding.in_order():
        return original(self, *args, **kwargs)


def average_statistics(model):
    """Average the statistics of a model's replicas. Of a model without our strategy, do nothing."""
    strategy = model.distribute_strategy
    if is_ours(strategy) and variables_so_far(model):
        synchronize(model)
        strategy.average_statistics(model)


def synchronize(model):
    """Combine the local steps of a model's optimizers now, so that replicas have equal weights."""
    for optimizer in optimizers_of(model):
        for each in optimizers_within(optimizer):
            if hasattr(each, "synchronize"):
                each.synchronize()


def variables_so_far(model):
    """Return a list of the variables that a model has now. More may be created later.

    The attribute `built` is not used, because it stays False for models without a method `call`,
    such as most GANs.
    """
    try:
        return list(model.variables)
    except ValueError:  # Keras 2, of models that are not built yet
        return []


# ---- datasets of a training --------------------------------------------------------------------


def replaceable_dataset(dataset, next_dataset):
    """Return a `tf.data.Dataset` that another dataset can replace when an epoch begins.

    Args:
        dataset: the first dataset.
        next_dataset: function that is called when an epoch begins. It returns the dataset to use
            from this epoch on, or None to keep the current dataset. With Keras 2, it gets the
            number of the epoch as its argument. With Keras 3, it gets no argument.
    """
    dataset = dataset.with_options(tf.data.Options())  # the user's object does not change
    dataset.next_dataset = next_dataset
    return dataset
