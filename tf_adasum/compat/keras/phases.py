"""What happens in `fit`, `evaluate`, `predict` and the `_on_batch` methods of a model.

One hook replaces all six methods, and runs these phases in this order:

| phase      | what it does                                                                       |
| ---------- | ---------------------------------------------------------------------------------- |
| settings   | describes the call as text, so that the workers can compare it                     |
| together   | compares the settings of all workers; reports an error of a later phase to them    |
| scope      | refuses objects that were created outside of the scope of the strategy             |
| data       | of `_on_batch` methods: divides the batch among the replicas                       |
| statistics | `evaluate`, `predict`: averages what each replica computed from its own rows       |
| call       | calls Keras's method; `fit.py` of each Keras has the hook that makes its steps     |
| tracebacks | after an error, removes the frames of libraries from the traceback                 |

Calls of a model without our strategy have no phases. The subclasses for Keras 2 and Keras 3 define
the phases that differ.
"""

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_adasum.compat import one_worker, tracebacks
from tf_adasum.compat.base_strategy import live_strategies
from tf_adasum.compat.keras import calls
from tf_adasum.compat.keras.call_settings import settings_of
from tf_adasum.compat.keras.calls import Call
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.statistics import average_statistics
from tf_adasum.errors import see
from tf_adasum.health import call_log, call_site

# For each model: a dict from the name of an `_on_batch` method to the settings of its last call.
_settings_of_batches: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Phases:
    """The phases of a call, each of which gets the `Call`.

    Subclasses define `metrics(call, logs)`, which gets what the step of a call has returned. It
    returns the metrics of the model over all rows, as a dict and as a list.
    """

    def run(self, method: Callable, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a call in its phases, see `compat.keras.phases`."""
        name = method.__name__
        try:
            call = Call(method, model, args, kwargs) if is_ours(model.distribute_strategy) else None
        except TypeError:  # Python raises an error that names the method
            call = None
        if call is None:
            if name != "fit":
                return method(model, *args, **kwargs)
            refuse_no_strategy(model)
            with calls.ending(name):
                return method(model, *args, **kwargs)
        try:
            if alone := self.alone(call):
                return alone(call)
            self.settings(call)
            with self.together(call):
                self.scope(call)
                self.data(call)
                with self.statistics(call):
                    return self.call(call)
        except Exception as error:
            tracebacks.shorten(error)
            raise

    def alone(self, call: Call) -> Callable[[Call], Any] | None:
        """Return the function that makes the call on this worker only, if that is possible."""
        return None

    def settings(self, call: Call) -> None:
        """Describe the call, if other workers have to make the same call."""
        if call.strategy._workers.count > 1:
            one_worker.refuse(f"model.{call.name}")
            call.settings = settings_of(call.model, call.name, call.all_arguments())

    @contextlib.contextmanager
    def together(self, call: Call) -> Iterator[None]:
        """Return a context manager for a call that all workers make, with the same settings.

        An exception is reported to the other workers, which would otherwise wait for this worker.
        """
        if call.name.endswith("on_batch"):
            with calls.running(call), call.strategy._detecting_failures():
                _compare_settings_of_batches(call)
                yield
            return
        with calls.running(call), call.strategy.working_together(), calls.ending(call.name):
            call.strategy._workers.compare_calls()
            yield

    def scope(self, call: Call) -> None:
        """Refuse objects that were created outside of the scope. Keras 2 does this itself."""

    def data(self, call: Call) -> None:
        """Divide the data, if Keras does not do it itself."""

    @contextlib.contextmanager
    def statistics(self, call: Call) -> Iterator[None]:
        """Average the statistics of the replicas, such as those of BatchNormalization.

        In `predict`, the dataset is not sharded by file, because `predict` returns rows in the
        order of the dataset.
        """
        if call.name in ("evaluate", "predict"):
            average_statistics(call.model)
        is_ordered = call.name == "predict"
        with call.strategy._sharding.in_order() if is_ordered else contextlib.nullcontext():
            yield

    def call(self, call: Call) -> Any:
        """Call Keras's method, and return its result.

        The step of an `_on_batch` method returns the mean or the sum of the replicas' own metrics.
        The logs that are returned here cover all rows.
        """
        is_divided = call.name in ("train_on_batch", "test_on_batch")
        if not is_divided or call.strategy.num_replicas_in_sync == 1:
            return call.result()
        wants_dict, call.arguments["return_dict"] = call.arguments.get("return_dict"), True
        logs, in_order = self.metrics(call, call.result())
        return logs if wants_dict else in_order


def _compare_settings_of_batches(call):
    """Compare the first settings of an `_on_batch` method on all workers, and log later changes.

    A comparison in every call would take longer than a step of a small model.
    """
    workers, settings = call.strategy._workers, call.settings
    known = _settings_of_batches.setdefault(call.model, {})
    before, known[call.name] = known.get(call.name), settings
    if before is None:
        workers.compare_calls()
    elif workers.count > 1 and settings.digest != before.digest:
        now, then = settings.all(), before.all()
        changed = next(key for key in {**now, **then} if now.get(key) != then.get(key))
        call_log.note(f"calls {call.name} with another {changed}: {now.get(changed)}")


def refuse_no_strategy(model: Any) -> None:
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
        if strategy._workers.count > 1 and strategy._workers.health.others_fit_without_strategy():
            raise RuntimeError(message)
    warnings.warn(message, stacklevel=5)  # hooks call this function
