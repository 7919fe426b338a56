"""Eager reductions of gradients: the compiled functions behind them, and how long they stay."""

import gc
import weakref

import numpy as np
import tensorflow as tf
from support.keras_versions import Variable

import tf_adasum
from tf_adasum.compat.tensorflow import GradientCrossDeviceOps, GradientOptions
from tf_adasum.compat.tensorflow.cross_device_ops import MOST_FUNCTIONS


class State:
    """What a model's reductions leave behind, as far as the compat package looks at it."""

    def __init__(self):
        self.functions = {}


class Unchanging(GradientCrossDeviceOps):
    """One replica, whose gradients it returns, whatever state they come with."""

    def __init__(self):
        options = tf.distribute.experimental.CommunicationOptions()
        super().__init__(["/device:CPU:0"], 1, options)
        self.traced = []  # for each function the state of its gradients, or None

    def is_identity_for_one_replica(self, options):
        return False

    def combine_gradients(self, gradients, options, rows):
        self.traced.append(options.state)
        return gradients

    def reduced(self, gradients, marker):
        pairs = [(gradient, gradient) for gradient in gradients]
        return self.batch_reduce(tf.distribute.ReduceOp.SUM, pairs, marker)


def marker_of(state, indices=(0,)):
    return GradientOptions().for_variables(state, indices)


ONE = [tf.constant([1.0])]


def test_a_state_keeps_its_function_until_it_is_emptied():
    ops, states = Unchanging(), (State(), State())
    for state in states * 2:
        ops.reduced(ONE, marker_of(state))
    assert len(ops.traced) == 2
    states[0].functions.clear()
    for state in states:
        ops.reduced(ONE, marker_of(state))
    assert len(ops.traced) == 3 and ops.traced[2] is states[0]


def test_the_functions_of_a_models_subsets_are_bounded():
    ops, state = Unchanging(), State()
    for index in range(2 * MOST_FUNCTIONS):
        ops.reduced(ONE, marker_of(state, [index]))
        ops.reduced(ONE, marker_of(state, [0]))
    assert len(state.functions) == MOST_FUNCTIONS
    assert len(ops.traced) == 2 * MOST_FUNCTIONS, "the one that is used all the time stays"


def test_gradients_without_a_state_are_bounded_too():
    ops = Unchanging()
    for size in range(1, 2 * MOST_FUNCTIONS):
        (reduced,) = ops.reduced([tf.ones([size])], marker_of(None, ()))
        assert reduced.shape == [size]
    assert len(ops._functions) == MOST_FUNCTIONS


def test_sparse_gradients_of_any_length_share_a_function():
    ops, state = Unchanging(), State()
    for rows in (1, 2, 3, 4, 5):
        slices = tf.IndexedSlices(tf.ones([rows, 2]), tf.range(rows), tf.constant([9, 2]))
        (reduced,) = ops.reduced([slices], marker_of(state))
        assert tf.convert_to_tensor(reduced).numpy().sum() == 2 * rows
    assert len(state.functions) == 1 and len(ops.traced) <= 2


def all_reduced(strategy, marker):
    def in_replica():
        own = [tf.ones([3]), tf.ones([1])]
        return tf.distribute.get_replica_context().all_reduce("SUM", own, options=marker)

    return [value.numpy().tolist() for value in strategy.run(in_replica)]


def test_the_state_of_a_rule_goes_with_its_marker():
    rule = tf_adasum.rules.AdaCons(rescale=False)  # which changes the gradients of one replica, too
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
    with strategy.scope():
        variables = [Variable(np.ones(3, "float32")), Variable(np.ones(1, "float32"))]
    marker = strategy.gradient_reduction_of(variables)

    for steps in (1, 2):
        assert all_reduced(strategy, marker) == [[0.5] * 3, [0.5]]
        assert marker.state.rule_state.of_name["steps"].numpy() == [steps]
    state = weakref.ref(marker.state)
    assert len(marker.state.functions) == 1
    del marker
    gc.collect()
    assert state() is None
