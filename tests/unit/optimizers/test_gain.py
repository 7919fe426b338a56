"""The gain ratio: cases by hand, an oracle, moving averages, squared norms, a scale that changes.

Shape letters: T steps, C gradients per step, n elements.
"""

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions, optimizer_oracles
from support.fuzzing import fuzz_settings

from tf_adasum.optimizers import AdaScale, gain


def accumulated(steps, gradients, rate=0.1, momentum=0.0, **options):
    """An AdaScale that has taken gradients [T * steps, n], accumulated; and its variable."""
    gradients = np.asarray(gradients, "float32")
    inner = keras_versions.accumulating(keras.optimizers.SGD, rate, steps, momentum=momentum)
    optimizer = AdaScale(inner, **options)
    variable = keras_versions.Variable(np.zeros(gradients.shape[1], "float32"))
    optimizer.build([variable])
    keras_versions.apply_each(optimizer, gradients[:, None], [variable])
    return optimizer, variable


# ---- one step ----------------------------------------------------------------------------------


@fuzz_settings(150)
@hypothesis.given(
    count=st.sampled_from([2, 3, 8, 64]),
    scale=st.sampled_from([1.0, 1.5, 2.0, 5.0, 1000.0]),
    length=st.sampled_from([1e-30, 1e-4, 1e-3, 1.0, 1e6, 1e30]),
    common=st.sampled_from([0.0, 0.3, 10.0]),
    seed=st.integers(0, 99),
)
def test_the_gain_is_that_of_the_oracle(count, scale, length, common, seed):
    random = np.random.default_rng(seed)
    gradients = length * (random.standard_normal((count, 17)) + common)
    estimates = gain.estimates(
        tf.constant(np.mean(np.sum(gradients**2, axis=1))),
        tf.constant(np.sum(np.mean(gradients, axis=0) ** 2)),
        count,
        scale,
    )
    ratio = gain.gain_ratio(*estimates, scale).numpy()
    oracle = optimizer_oracles.AdaScaleOracle(np.zeros(17), 0.1, scale, smoothing=0.0)
    oracle.step(gradients)
    np.testing.assert_allclose(ratio, oracle.gain, rtol=1e-9)
    assert 1 <= ratio <= scale


@pytest.mark.parametrize(
    "options", [{}, {"scale": 1500.0}, {"debias": False}, {"smoothing": 0.9}], ids=str
)
def test_several_steps_are_those_of_the_oracle(options, two_gradients):
    """The default smoothing depends on the scale; with a schedule of ints, steps have fractions."""
    gradients = (np.random.default_rng(3).standard_normal((12, 9)) + 0.5).astype("float32")
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 2, 5], [4, 3, 1, 0])
    optimizer, variable = accumulated(2, gradients, schedule, 0.9, **options)
    oracle = optimizer_oracles.AdaScaleOracle(
        np.zeros(9),
        lambda step: 4 - (step > 0) - 2 * (step > 2) - (step > 5),
        **{"scale": 2.0, "momentum": 0.9, **options},
    )
    for pair in gradients.reshape(6, 2, 9):
        oracle.step(pair)
    np.testing.assert_allclose(optimizer.gain, oracle.gain, rtol=3e-6)
    np.testing.assert_allclose(optimizer.scale_invariant_steps, oracle.tau, rtol=3e-6)
    # As for the gain; and six steps in float32, of up to the largest element each.
    largest = np.abs(oracle.weights).max()
    np.testing.assert_allclose(variable.numpy(), oracle.weights, rtol=0, atol=5e-6 * largest)


# ---- squared norms -----------------------------------------------------------------------------


def sparse(rows, indices):
    return tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant([6, 2]))


REPEATED = ([[1.0, 2.0], [10.0, 0.0], [3.0, -2.0]], [4, 0, 4])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: [tf.reshape(tf.range(6.0), [2, 3]), tf.constant(-3.0), tf.zeros([0, 4])], 55 + 9),
        (lambda: [tf.constant([3], kind) for kind in (tf.float16, tf.float64, tf.bfloat16)], 27),
        (lambda: [tf.fill([100], tf.constant(300, tf.float16))], 9e6),  # float16 ends at 65504
        (lambda: [tf.ones([gain.SMALL + 1]), tf.ones([2])], gain.SMALL + 3),
        (lambda: [sparse(*REPEATED)], 4**2 + 10**2),
        (lambda: [sparse(*REPEATED), tf.constant([2.0])], 120),
        (lambda: [sparse(np.zeros([0, 2]), np.zeros([0], "int32"))], 0),
    ],
    ids=["shapes", "dtypes", "float16", "large", "repeated rows", "sparse and dense", "no rows"],
)
def test_squared_norms_are_exact(backend, make, expected):
    norm = gain.squared_norm(make())
    assert norm.dtype == tf.float64 and norm.shape == () and norm == expected


# ---- a scale that changes ----------------------------------------------------------------------


def test_the_variance_belongs_to_a_base_batch_if_the_scale_changes(two_gradients):
    """Two gradients in each step: of 1, then of 4 base batches, with noise of variance 3.

    Because of the many elements, the relative error √(2/(n(C-1))) of one step is 0.6 %.
    """
    random, elements = np.random.default_rng(7), 60_000
    optimizer, variable = accumulated(2, np.zeros((0, elements)), smoothing=0.9)
    for scale in (2, 8):
        before = optimizer.gradient_variance
        optimizer.set_scale(scale)
        assert optimizer.gradient_variance == before
        for _ in range(5):
            noise = random.standard_normal((2, elements)) * np.sqrt(3 / elements / (scale / 2))
            gradients = (np.sqrt(1 / elements) + noise).astype("float32")
            keras_versions.apply_each(optimizer, gradients[:, None], [variable])
            np.testing.assert_allclose(optimizer.gradient_variance, 3, rtol=0.03)
            np.testing.assert_allclose(optimizer.gain, (3 + 1) / (3 / scale + 1), rtol=0.03)
