"""Which variables replicas share, and which one is named where their copies differ.

The workers are threads; each replica's copy of a variable is a variable of its own.
"""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fake_workers import each_of

import tf_adasum
from tf_adasum.errors import see
from tf_adasum.replicas import equal_variables

FIRST_REPLICA = tf.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({}, True),
        ({"trainable": False}, False),
        ({"trainable": False, "aggregation": FIRST_REPLICA}, True),
        ({"synchronization": tf.VariableSynchronization.ON_READ}, False),
    ],
    ids=["weight", "statistics", "counter", "metric"],
)
def test_what_replicas_share(options, is_shared):
    assert equal_variables.is_shared(tf.Variable(1.0, **options)) == is_shared


def test_a_frozen_layer_is_shared_and_moving_statistics_are_not():
    dense, norm = keras.layers.Dense(2), keras.layers.BatchNormalization()
    for layer in (dense, norm):
        layer.build([None, 2])
        layer.trainable = False
    shared = [equal_variables.is_shared(v) for v in (*dense.variables, *norm.variables)]
    assert shared == [True, True, True, True, False, False]


def test_shared_variables_of_a_model():
    with tf_adasum.AdasumMirroredStrategy(["CPU:0"], aggregation="adacons").scope():
        inputs = keras.layers.Input([3])
        model = keras.Model(
            inputs, keras.layers.BatchNormalization()(keras.layers.Dense(2)(inputs))
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.fit(np.ones([4, 3]), np.ones([4, 2]), verbose=0)
    shared = equal_variables.shared_variables(model)
    of_weights = [variable for variable in shared if variable is model.layers[1].kernel]
    moving = [id(variable) for variable in model.non_trainable_variables]
    state = model.optimizer.gradient_reductions.rule_state.of_name.values()
    assert len(of_weights) == 1
    assert not any(id(variable) in moving for variable in shared)
    assert all(any(each is variable for variable in shared) for each in state)


class Replicas:
    """Replicas of several workers, and their copies of variables."""

    def __init__(self, workers, devices):
        self.workers, self.devices = workers, devices
        self.copies = {}

    def variable(self, name, value, different=()):
        """Makes a variable; `different` maps replicas to other values."""
        variable = tf.Variable(value, name=name)
        other = dict(different)
        self.copies[id(variable)] = [
            tf.Variable(other.get(replica, value)) for replica in range(self.workers * self.devices)
        ]
        return variable

    def strategy(self, workers, created=()):
        """What the check asks of a strategy; `created` are all variables made under it."""
        start = workers.rank * self.devices
        return types.SimpleNamespace(
            workers=workers,
            num_replicas_in_sync=self.workers * self.devices,
            extended=types.SimpleNamespace(
                worker_devices=["CPU:0"] * self.devices, created_variables=lambda: created
            ),
            experimental_local_results=lambda variable: tuple(
                self.copies[id(variable)][start : start + self.devices]
            ),
        )

    def check(self, variables_of, is_default=False):
        """Checks on all workers; returns the type and text of what all of them raise.

        Args:
            variables_of: function of a rank that returns that worker's variables.
            is_default: whether these are all that there are, and no list is given.
        """

        def check(own):
            variables = variables_of(own.rank)
            if is_default:
                equal_variables.check(self.strategy(own, created=variables))
            else:
                equal_variables.check(self.strategy(own), variables)

        outcomes = each_of(self.workers, check)
        assert len({(type(each), str(each)) for each in outcomes}) == 1, "the same on all workers"
        return type(outcomes[0]), str(outcomes[0])


@pytest.mark.parametrize(("workers", "devices"), [(1, 2), (2, 1), (3, 2)])
def test_equal_copies(workers, devices):
    replicas = Replicas(workers, devices)
    variables = [
        replicas.variable("weight", [1.0, float("nan"), -0.0]),
        replicas.variable("words", ["a", "b"]),
    ]
    assert replicas.check(lambda rank: variables)[0] is type(None)
    assert replicas.check(lambda rank: [])[0] is type(None)


@pytest.mark.parametrize(
    ("value", "other"),
    [([0.0], [-0.0]), ([1], [2]), ([True], [False]), (["a"], ["b"])],
    ids=["sign of zero", "int", "bool", "text"],
)
def test_the_first_variable_that_differs_is_named(value, other):
    replicas = Replicas(3, 2)
    variables = [
        replicas.variable("same", [1.0]),
        replicas.variable("kernel", value, {1: other, 4: other}),
        replicas.variable("bias", value, {3: other}),
    ]
    kind, message = replicas.check(lambda rank: variables)
    assert kind is tf_adasum.ReplicasDiffer
    assert "'kernel' (the first of 2 variables)" in message
    assert message.endswith(
        f"that differ from replica 0 on replica 1, replica 4 (worker 2) {see('TFA-508')}"
    )


def test_a_variable_that_a_worker_does_not_have_any_more_is_not_compared():
    replicas = Replicas(2, 1)
    gone = replicas.variable("gone", [1.0], {1: [2.0]})
    kept = replicas.variable("kept", [1.0])
    variables = [[gone, kept], [None, kept]]
    assert replicas.check(lambda rank: variables[rank], is_default=True)[0] is type(None)
    kind, message = replicas.check(lambda rank: [gone, kept], is_default=True)
    assert kind is tf_adasum.ReplicasDiffer and "'gone'" in message


def test_lists_of_other_lengths_are_refused_on_all_workers():
    replicas = Replicas(3, 2)
    variable = replicas.variable("weight", [1.0])
    kind, message = replicas.check(lambda rank: [variable] * (1 + rank // 2))
    assert kind is ValueError
    assert message.endswith(
        f"Received: workers 0, 1: 1 variable; worker 2: 2 variables {see('TFA-508')}"
    )


# ---- arguments ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(["CPU:0"])


@pytest.mark.parametrize("variables", [1, "a", [1.0], [None], {}], ids=repr)
def test_what_is_no_list_of_variables_is_refused(strategy, variables):
    with pytest.raises(ValueError, match="`variables` must be a list of Keras or TensorFlow"):
        strategy.check_replicas(variables)


def test_it_is_refused_in_functions(strategy):
    for call in (
        tf.function(strategy.check_replicas),
        lambda: strategy.run(strategy.check_replicas),
    ):
        with pytest.raises(ValueError, match=r"call it outside of tf\.function and strategy\.run"):
            call()
