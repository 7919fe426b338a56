"""A model with a list of variables, each with a value of its own on every local replica."""

import types

import numpy as np
import tensorflow as tf

from tf_adasum.compat.base_strategy import GradientAggregatingStrategy


class FakeVariable:
    """A variable of a strategy.

    Args:
        path: its path.
        values: for each local replica its array.
    """

    def __init__(self, path, *values):
        self.path, self.copies = path, [tf.Variable(value) for value in values]
        self.dtype, self.shape = np.asarray(values[0]).dtype, np.shape(values[0])

    def value(self):
        """Look like a variable of TensorFlow."""
        raise NotImplementedError

    def assign(self, value):
        for copy in self.copies:
            copy.assign(value)

    def numpy(self):
        """Return the values of all local replicas."""
        return [copy.numpy() for copy in self.copies]


class FakeStrategy:
    """What `backup` asks of any strategy."""

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def experimental_local_results(self, variable):
        return tuple(variable.copies)


class FakeModel:
    """What `backup` asks of a model.

    Args:
        variables: its list of `FakeVariable`.
        replicas: how many replicas its strategy has, on all workers.
        slots: the optimizer's list of `FakeVariable`.
        rule_state: the list of `FakeVariable` that the optimizer's rule has.
        metrics: the metrics' list of `FakeVariable`.
    """

    built, name, stop_training, _initial_epoch = True, "fake", False, 0

    def __init__(self, variables, replicas=1, slots=(), rule_state=(), metrics=()):
        of_name = {variable.path: variable for variable in rule_state}
        state = types.SimpleNamespace(rule_state=types.SimpleNamespace(of_name=of_name))
        self.variables, self.metrics_variables = list(variables), list(metrics)
        self.trainable_variables = self.variables
        self.optimizer = types.SimpleNamespace(
            variables=list(slots), built=True, aggregation_state=state
        )
        self.distribute_strategy = FakeStrategy(replicas)

    def state(self):
        """Return the bytes of all variables but metrics, on each local replica."""
        state = self.optimizer.aggregation_state.rule_state.of_name.values()
        variables = [*self.variables, *self.optimizer.variables, *state]
        return [own.tobytes() for variable in variables for own in variable.numpy()]


class FakeStrategyOfWorkers(FakeStrategy, GradientAggregatingStrategy):
    """One of this package, that counts how often a model was compared.

    Args:
        workers: its `Workers`, of one replica each.
    """

    def __init__(self, workers):
        super().__init__(workers.count)
        self._workers, self.checks, self.num_virtual_replicas = workers, 0, workers.count
        self._nonfinite = types.SimpleNamespace(warn_once=lambda: None)

    def _check_model(self, model):
        self.checks += 1


def model_of(workers):
    """Return a model of such a strategy, without variables."""
    model = FakeModel([])
    model.distribute_strategy = FakeStrategyOfWorkers(workers)
    return model
