"""The gain ratio: cases by hand, moving averages, squared norms, and a scale that changes.

Shape letters: T steps, C gradients per step, n elements, R runs side by side.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import optimizer_oracles, stacks

from tf_adasum.optimizers import AdaScale, gain

# Two gradients, and their gain ratio with S = 2. "60 degrees" is the example of the paper's text.
HALF_ROOT_3 = np.sqrt(3) / 2
CASES = {
    "opposite": ([[1, 0], [-1, 0]], 2),
    "opposite and long": ([[30, -40], [-30, 40]], 2),
    "orthogonal": ([[1, 0], [0, 1]], 2),
    "60 degrees": ([[1, 0], [0.5, HALF_ROOT_3]], 4 / 3),
    "120 degrees": ([[1, 0], [-0.5, HALF_ROOT_3]], 2),  # μ² would be below zero
    "one is zero": ([[1, 0], [0, 0]], 2),
    "parallel, of length 1 and 3": ([[1, 0], [3, 0]], 5 / 4),
    "identical": ([[3, 4], [3, 4]], 1),
}

# By hand σ² = 0 for identical gradients; the code takes 1e-6, beside a μ² of 25.
BY_HAND = {"rtol": 1e-6}


def sample_of(gradients, scale):
    """(σ²_t, μ²_t) of gradients [..., C, n]."""
    gradients = np.asarray(gradients, np.float64)
    return gain.estimates(
        tf.constant(np.mean(np.sum(gradients**2, axis=-1), axis=-1)),
        tf.constant(np.sum(np.mean(gradients, axis=-2) ** 2, axis=-1)),
        gradients.shape[-2],
        scale,
    )


def gain_of(gradients, scale=None):
    scale = float(scale or len(gradients))
    return gain.gain_ratio(*sample_of(gradients, scale), scale).numpy()


def accumulated(steps, gradients, **options):
    """An AdaScale that has taken gradients [T * steps, n] with so many accumulation steps."""
    gradients = np.asarray(gradients, "float32")
    inner = stacks.accumulating(keras.optimizers.SGD, 0.1, steps)
    optimizer = AdaScale(inner, **options)
    variable = stacks.Variable(np.zeros(gradients.shape[1], "float32"))
    optimizer.build([variable])
    apply_each(optimizer, gradients, variable)
    return optimizer


def apply_each(optimizer, gradients, variable):
    calls = [[tf.constant(gradient)] for gradient in gradients]
    for start in range(0, len(calls), stacks.calls_at_once()):
        stacks.apply(optimizer, calls[start : start + stacks.calls_at_once()], [variable])


# ---- one step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
class TestByHand:
    def test_the_estimates(self, name):
        gradients, expected = CASES[name]
        np.testing.assert_allclose(gain_of(gradients), expected, **BY_HAND)

    def test_through_the_optimizer(self, name, two_gradients):
        gradients, expected = CASES[name]
        np.testing.assert_allclose(accumulated(2, gradients).gain, expected, **BY_HAND)


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_identical_gradients_are_worth_one_step(count):
    gradient = np.random.default_rng(0).standard_normal(17)
    np.testing.assert_allclose(gain_of([gradient] * count), 1, **BY_HAND)
    np.testing.assert_allclose(gain_of([gradient] * count, scale=1000), 1, rtol=1e-4)


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_orthogonal_gradients_are_worth_all_steps(count):
    np.testing.assert_allclose(gain_of(np.eye(count)), count, rtol=1e-12)


@pytest.mark.parametrize("length", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_is_between_one_and_the_scale(length):
    random = np.random.default_rng(1)
    for scale in (1, 1.5, 2, 5, 1000):
        for common in (0, 0.3, 10):
            gradients = length * (random.standard_normal((5, 17)) + common)
            ratio = gain_of(gradients, scale)
            assert 1 <= ratio <= scale


def test_does_not_depend_on_the_length():
    gradients = np.random.default_rng(2).standard_normal((4, 9)) + 0.5
    np.testing.assert_allclose(gain_of(1e4 * gradients), gain_of(gradients), rtol=1e-12)


def test_all_noise_and_no_noise_in_the_limit():
    random = np.random.default_rng(3)
    noise = random.standard_normal((8, 10_000))
    noise -= noise.mean(axis=0)
    common = random.standard_normal(10_000)
    assert gain_of(noise + 1e-3 * common) > 7.99
    assert gain_of(1e-3 * noise + common) < 1.01


def test_zeros_are_finite(two_gradients):
    assert gain_of(np.zeros((3, 5))) == 3  # nothing is known of μ, and σ² is taken as 1e-6
    optimizer = accumulated(2, np.zeros((6, 3)))
    assert optimizer.gain == 2 and optimizer.skipped_steps == 0
    assert optimizer.gradient_variance == gain.LEAST_VARIANCE
    assert optimizer.gradient_squared_norm == 0


def test_not_a_number_stays_one():
    for values in ((np.nan, 1.0), (1.0, np.nan), (np.inf, np.inf)):
        variance, squared_norm = (tf.constant(v, tf.float64) for v in values)
        assert np.isnan(gain.gain_ratio(variance, squared_norm, 4.0))


def test_the_docstring_is_true():
    variance, squared_norm = gain.estimates(
        tf.constant(1.0, tf.float64), tf.constant(0.5, tf.float64), count=2, scale=2
    )
    assert (variance, squared_norm) == (1.0, 0.0)


# ---- moving averages ---------------------------------------------------------------------------


def averages_by_the_code(samples, smoothing, debias):
    weight, average, all_averages = tf.constant(0.0, tf.float64), 0.0, []
    for sample in samples:
        weight, rate = gain.averaging(weight, smoothing, debias)
        average += rate * (sample - average)
        all_averages.append(average)
    return np.array(all_averages)


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9, 0.996])
@pytest.mark.parametrize("debias", [True, False])
def test_moving_averages(smoothing, debias):
    samples = np.random.default_rng(4).exponential(size=40)
    oracle = optimizer_oracles.AdaScaleOracle([0.0], 0.1, 4, smoothing=smoothing, debias=debias)
    expected = []
    for sample in samples:
        oracle.samples.append((sample, sample))
        expected.append(oracle.averages()[0])
    actual = averages_by_the_code(samples, smoothing, debias)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)  # float64, summed in another order


@pytest.mark.parametrize("debias", [True, False])
def test_averages_of_a_constant_are_that_constant(debias):
    actual = averages_by_the_code(np.full(50, 3.0), 0.9, debias)
    np.testing.assert_allclose(actual, 3, rtol=1e-14)


def test_the_forms_differ():
    """B.3 forgets nothing of the first ten samples; the debiased form does."""
    samples = [1.0, 0, 0, 0, 0]
    plain, debiased = (averages_by_the_code(samples, 0.9, debias)[-1] for debias in (False, True))
    assert plain == 0.2
    np.testing.assert_allclose(debiased, 0.9**4 * 0.1 / (1 - 0.9**5), rtol=1e-12)


# ---- squared norms -----------------------------------------------------------------------------


def test_sum_over_all_variables(backend):
    values = [np.arange(6.0).reshape(2, 3), np.array(-3.0), np.zeros((0, 4)), np.full(17, 0.5)]
    gradients = [tf.constant(value, tf.float32) for value in values]
    norm = gain.squared_norm(gradients)
    assert norm.dtype == tf.float64 and norm.shape == ()
    assert norm == 55 + 9 + 0 + 17 / 4


def test_every_dtype(backend, dtype):
    gradient = tf.cast(np.random.default_rng(5).standard_normal(18011), dtype)
    exactly = np.sum(tf.cast(gradient, tf.float64).numpy() ** 2)
    np.testing.assert_allclose(gain.squared_norm([gradient]), exactly, rtol=1e-6)


def test_several_dtypes_at_once(backend):
    gradients = [tf.constant([3.0], kind) for kind in (tf.float16, tf.float64, tf.bfloat16)]
    assert gain.squared_norm(gradients) == 27


def test_float16_does_not_overflow(backend):
    # The largest is 65504, and its square is not to be had in float16.
    assert gain.squared_norm([tf.fill([100], tf.constant(300, tf.float16))]) == 100 * 300.0**2


def test_repeated_rows_add_up_first(backend):
    rows = tf.constant([[1.0, 2.0], [10.0, 0.0], [3.0, -2.0]])
    sparse = tf.IndexedSlices(rows, tf.constant([4, 0, 4]), tf.constant([6, 2]))
    assert gain.squared_norm([sparse]) == 4**2 + 0 + 10**2
    assert gain.squared_norm([sparse, tf.constant([2.0])]) == 120


def test_a_sparse_gradient_without_rows(backend):
    rows = tf.zeros([0, 2])
    sparse = tf.IndexedSlices(rows, tf.zeros([0], tf.int32), tf.constant([6, 2]))
    assert gain.squared_norm([sparse]) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_is_seen(backend, bad):
    norm = gain.squared_norm([tf.constant([1.0, bad]), tf.constant([1.0])])
    assert not np.isfinite(norm)


# ---- a scale that changes ----------------------------------------------------------------------

SIGMA_SQUARED = 3.0  # of a base batch
SCALES = (4, 16)  # with four gradients in each step: of 1, then of 4 base batches each


def gaussian_gradients(random, scale, runs, elements=8, count=4):
    """[R, C, n]: a common part of length 1, and the noise of scale / count base batches."""
    deviation = np.sqrt(SIGMA_SQUARED / elements / (scale / count))
    noise = deviation * random.standard_normal((runs, count, elements))
    return np.sqrt(1 / elements) + noise


def averages_over_a_change(multiply, steps=(100, 100), runs=3000):
    """[T] means, and their standard errors, over runs of the moving average of σ²."""
    random = np.random.default_rng(6)
    weight, average, means, errors = tf.constant(0.0, tf.float64), np.zeros(runs), [], []
    for scale, number in zip(SCALES, steps, strict=True):
        if multiply and scale == SCALES[1]:
            average = average * SCALES[0] / SCALES[1]
        for _ in range(number):
            sample, _ = sample_of(gaussian_gradients(random, scale, runs), float(scale))
            weight, rate = gain.averaging(weight, 1 - scale / 1000, True)
            average = average + rate.numpy() * (sample.numpy() - average)
            means.append(average.mean())
            errors.append(average.std() / np.sqrt(runs))
    return np.array(means), np.array(errors)


def test_the_variance_is_unbiased_before_and_after_a_change():
    means, errors = averages_over_a_change(multiply=False)
    # 5 standard errors, 0.7 % and less: a right one of 200 steps is beyond in one of 10,000 runs.
    np.testing.assert_array_less(np.abs(means - SIGMA_SQUARED), 5 * errors)
    assert errors.max() < 0.03


def test_multiplying_the_average_would_make_it_wrong():
    means, _ = averages_over_a_change(multiply=True)
    np.testing.assert_allclose(means[99], SIGMA_SQUARED, rtol=0.02)
    assert means[100] < 0.3 * SIGMA_SQUARED  # a quarter of what it is, and
    assert means[140] < 0.85 * SIGMA_SQUARED  # 40 steps later still too small


def test_the_optimizer_keeps_the_average_of_the_variance(four_gradients):
    """Many elements instead of many runs; relative error √(2/(n(C-1))) of one step: 0.6 %."""
    random, elements = np.random.default_rng(7), 20_000
    optimizer = accumulated(4, np.zeros((0, elements)), smoothing=0.9)
    (variable,) = stacks.first_of(optimizer.inner_optimizer)
    for scale in SCALES:
        before = optimizer.gradient_variance
        optimizer.set_scale(scale)
        assert optimizer.gradient_variance == before
        for _ in range(5):
            gradients = gaussian_gradients(random, scale, 1, elements)[0].astype("float32")
            apply_each(optimizer, gradients, variable)
            np.testing.assert_allclose(optimizer.gradient_variance, SIGMA_SQUARED, rtol=0.03)
            expected = (SIGMA_SQUARED + 1) / (SIGMA_SQUARED / scale + 1)
            np.testing.assert_allclose(optimizer.gain, expected, rtol=0.03)
