"""Refuses models, optimizers and metrics that were created outside of the strategy's scope.

Keras 3 does not check this. Weights and optimizers created outside have one copy for all local
replicas of a worker. If these replicas write to it at the same time, its values are wrong, and the
copies of different workers become different. Metrics created outside are local to each worker.
"""

import inspect

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.updates import all_variables, bring_inside
from tf_adasum.compat.keras.keras3.variables import outside, outside_scope, refuse_outside
from tf_adasum.compat.keras.optimizers import is_ours, optimizers_of, path_of
from tf_adasum.compat.keras.private_names_keras3 import BaseTrainer


def _check_model(model, strategy):
    if model._distribute_strategy is not strategy:
        raise outside_scope(f"model {model.name!r} was built or loaded")


@hooks.replaces(BaseTrainer, "compile")
def compile_in_scope(original, self, *args, **kwargs):
    """Compile the model in the scope of its strategy, and refuse objects created outside.

    If optimizers or metrics are passed as names, `compile` creates them. Metrics are checked here,
    because Keras does not list their variables before the first step.
    """
    strategy = self.distribute_strategy
    if not is_ours(strategy):
        return original(self, *args, **kwargs)
    _check_model(self, strategy)
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    metrics = tf.nest.flatten([given.get("metrics"), given.get("weighted_metrics")])
    _check_metrics(strategy, [each for each in metrics if isinstance(each, keras.metrics.Metric)])
    with strategy.scope():
        return original(self, *args, **kwargs)


def check(model, strategy, call):
    """Before the first step of a call, refuse objects that were created outside of the scope.

    If an optimizer is not built yet, there is no error, and it is moved into the scope.
    """
    if call.endswith("on_batch") and getattr(model, call.replace("on_batch", "function")):
        return  # the step is traced already
    _check_model(model, strategy)
    for variable in outside(strategy, model.trainable_variables):
        raise outside_scope(f"weight {path_of(variable)!r}, which is not frozen, was created")
    if call.startswith("predict") or not model.compiled:
        return
    for optimizer in optimizers_of(model):
        bring_inside(strategy, optimizer)
        for _ in outside(strategy, all_variables(optimizer)):
            raise outside_scope(f"optimizer {optimizer.name!r} was created")
    _check_metrics(strategy, model.metrics)


def _check_metrics(strategy, metrics):
    for metric in metrics:
        refuse_outside(strategy, metric.variables)
