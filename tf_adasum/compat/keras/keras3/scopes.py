"""Refuses models, optimizers and metrics that were created outside of the strategy's scope.

Keras 3 does not check this. Weights and optimizers created outside have one copy for all local
replicas of a worker. If these replicas write to it at the same time, its values are wrong, and the
copies of different workers become different. Metrics created outside are local to each worker.
"""

import inspect

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.optimizers import all_variables, bring_inside, outside
from tf_adasum.compat.keras.keras3.variables import refuse_outside
from tf_adasum.compat.keras.optimizers import (
    is_ours,
    optimizers_of,
    path_of,
)
from tf_adasum.compat.keras.private_names_keras3 import BaseTrainer
from tf_adasum.errors import see

# For each method: the attribute with the traced step. After tracing, nothing is checked.
FUNCTIONS_OF_STEPS = {
    "train_on_batch": "train_function",
    "test_on_batch": "test_function",
    "predict_on_batch": "predict_function",
}

MODEL_OUTSIDE = (
    "The model {name!r} was built or loaded outside of the scope of the strategy. Create and "
    "compile it inside of `with strategy.scope():`.\n\n"
    "    with strategy.scope():\n        model = ...\n        model.compile(...)"
    "\n\n" + see("TFA-301")
)


@hooks.replaces(BaseTrainer, "compile")
def compile_in_scope(original, self, *args, **kwargs):
    """Compile the model in the scope of its strategy, and refuse objects created outside.

    If optimizers or metrics are passed as names, `compile` creates them. Metrics are checked here,
    because Keras does not list their variables before the first step.
    """
    strategy = self.distribute_strategy
    if not is_ours(strategy):
        return original(self, *args, **kwargs)
    if self._distribute_strategy is not strategy:
        raise ValueError(MODEL_OUTSIDE.format(name=self.name))
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    metrics = tf.nest.flatten([given.get("metrics"), given.get("weighted_metrics")])
    _check_metrics(strategy, [each for each in metrics if isinstance(each, keras.metrics.Metric)])
    with strategy.scope():
        return original(self, *args, **kwargs)


def check(model, strategy, call):
    """Before the first step of a call, refuse objects that were created outside of the scope.

    If an optimizer is not built yet, there is no error, and it is moved into the scope.
    """
    if getattr(model, FUNCTIONS_OF_STEPS.get(call, ""), None) is not None:
        return
    if model._distribute_strategy is not strategy:
        raise ValueError(MODEL_OUTSIDE.format(name=model.name))
    for variable in outside(strategy, model.trainable_variables):
        raise ValueError(
            f"The weight {path_of(variable)!r} was created outside of the scope of the strategy. "
            "Build or load its layer inside of `with strategy.scope():`.\n\n"
            "    with strategy.scope():\n        layer = ...\n\n"
            f"Or freeze it: layer.trainable = False {see('TFA-301')}"
        )
    if call.startswith("predict") or not model.compiled:
        return
    for optimizer in optimizers_of(model):
        bring_inside(strategy, optimizer)
        for _ in outside(strategy, all_variables(optimizer)):
            kind = type(optimizer).__name__
            raise ValueError(
                f"The optimizer {optimizer.name!r} was created outside of the scope of the "
                "strategy. Create it inside of `with strategy.scope():`.\n\n"
                f"    with strategy.scope():\n        optimizer = {kind}(...)\n"
                f"        model.compile(optimizer=optimizer, ...)\n\n{see('TFA-301')}"
            )
    _check_metrics(strategy, model.metrics)


def _check_metrics(strategy, metrics):
    for metric in metrics:
        for variable in metric.variables:
            refuse_outside(strategy, variable)
