"""Which variables replicas share, and which one is named if their copies differ.

The workers are threads. tests/multi_worker/test_replica_check.py has real workers.
"""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fake_workers import run_on_workers

import tf_adasum
from tf_adasum.replicas import equal_variables


def test_shared_variables_of_a_model_with_a_frozen_layer():
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation="adacons").scope():
        inputs = keras.layers.Input([3])
        dense, norm = keras.layers.Dense(2), keras.layers.BatchNormalization()
        model = keras.Model(inputs, norm(dense(inputs)))
        dense.trainable = False
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.fit(np.ones([4, 3]), np.ones([4, 2]), verbose=0)
    shared = [id(variable) for variable in equal_variables.shared_variables(model)]
    state = model.optimizer.aggregation_state.rule_state.of_name.values()
    for variable in (*dense.variables, norm.gamma, norm.beta, *state):
        assert shared.count(id(variable)) == 1
    assert not {id(norm.moving_mean), id(norm.moving_variance)} & set(shared)


def strategy_of(workers, copies, created=()):
    """Two devices on each of three workers; `copies` holds all copies of each variable."""
    return types.SimpleNamespace(
        _workers=workers,
        num_replicas_in_sync=6,
        extended=types.SimpleNamespace(
            worker_devices=["CPU:0"] * 2, created_variables=lambda: created
        ),
        experimental_local_results=lambda each: copies[id(each)][2 * workers.rank :][:2],
    )


def test_lists_of_other_lengths_are_refused_on_all_workers():
    variables = [tf.Variable(0.0), tf.Variable(1.0)]
    copies = {id(variable): [variable] * 6 for variable in variables}

    def check(workers):
        equal_variables.check(strategy_of(workers, copies), variables[: 1 + workers.rank // 2])

    errors = run_on_workers(3, check)
    assert {type(error) for error in errors} == {ValueError}
    for error in errors:
        assert "workers 0, 1: 1 variable; worker 2: 2 variables" in str(error)


DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"]


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_compared_bit_by_bit(dtype, differs):
    """NaN equals itself, and -0 is not 0."""
    value = tf.cast([0, 1, 1, 0], dtype).numpy()
    other = value.copy()
    if value.dtype.kind in "iub":
        other.view("uint8")[0] ^= differs
    else:
        value[:2], other[:2] = [0.0, np.nan], [-0.0 if differs else 0.0, np.nan]
    variable = tf.Variable(value)
    copies = {id(variable): [variable] * 5 + [tf.Variable(other)]}

    def check(workers):
        equal_variables.check(strategy_of(workers, copies), [variable])

    error = tf_adasum.ReplicasDifferError if differs else type(None)
    assert {type(outcome) for outcome in run_on_workers(3, check)} == {error}


def test_a_variable_that_one_worker_has_no_longer_is_not_compared():
    gone, kept = tf.Variable(0.0), tf.Variable(1.0)
    copies = {id(gone): [gone] * 6, id(kept): [kept] * 6}

    def check(workers):
        created = [None if workers.rank == 1 else gone, kept]
        equal_variables.check(strategy_of(workers, copies, created))

    assert run_on_workers(3, check) == [None] * 3


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variables", [1, "a", [1.0], [None], {}], ids=repr)
def test_other_arguments_are_refused(strategy, variables):
    with pytest.raises(ValueError, match="`variables` must be a list of Keras or TensorFlow"):
        strategy.check_replicas(variables)


def test_it_is_refused_in_functions(strategy):
    for call in (
        tf.function(strategy.check_replicas),
        lambda: strategy.run(strategy.check_replicas),
    ):
        with pytest.raises(ValueError, match=r"call it outside of tf\.function and strategy\.run"):
            call()
