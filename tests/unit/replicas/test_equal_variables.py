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


def outcomes(copies, asked=lambda rank: None, created=lambda rank: ()):
    """What a check returns or raises on three workers with two devices each.

    Args:
        copies: for each variable its six copies, of which it is the first.
        asked: function of the rank that returns the variables to compare.
        created: function of the rank that returns the variables that the strategy has created.
    """

    def check(workers):
        of_id = {id(own[0]): own[2 * workers.rank :][:2] for own in copies}
        extended = types.SimpleNamespace(
            worker_devices=["CPU:0"] * 2, created_variables=lambda: created(workers.rank)
        )
        strategy = types.SimpleNamespace(
            _workers=workers,
            num_replicas_in_sync=6,
            extended=extended,
            experimental_local_results=lambda each: of_id[id(each)],
        )
        equal_variables.check(strategy, asked(workers.rank))

    return run_on_workers(3, check)


def test_lists_of_other_lengths_are_refused_on_all_workers():
    variables = [tf.Variable(0.0), tf.Variable(1.0)]
    copies = [[variable] * 6 for variable in variables]
    for error in outcomes(copies, asked=lambda rank: variables[: 1 + rank // 2]):
        assert isinstance(error, ValueError)
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
    copies = [[variable] * 5 + [tf.Variable(other)]]
    error = tf_adasum.ReplicasDifferError if differs else type(None)
    assert {*map(type, outcomes(copies, asked=lambda rank: [variable]))} == {error}


def test_a_variable_that_one_worker_has_no_longer_is_not_compared():
    gone, kept = tf.Variable(0.0), tf.Variable(1.0)
    created = {0: [gone, kept], 1: [None, kept], 2: [gone, kept]}
    assert outcomes([[gone] * 6, [kept] * 6], created=created.get) == [None] * 3


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
