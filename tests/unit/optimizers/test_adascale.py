"""AdaScale in one process: its arguments, the optimizers and steps that it works with, its state.

test_gain.py tests its formulas, test_wrappers.py what it has in common with DeltaAdasum, and
tests/multi_worker/test_adascale_on_replicas.py replicas.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions
from support.two_variables import assert_equal, model_of, values_of, variables_of

import tf_adasum
from tf_adasum import optimizers
from tf_adasum.optimizers import AdaScale, adascale

SGD = keras.optimizers.SGD
STEPS = 6

# Twelve steps of about 0.1 on weights near 1, with another rounding of η: 6e-8 of each.
FLOAT32 = {"rtol": 2e-6, "atol": 1e-6}

pytestmark = pytest.mark.filterwarnings("ignore:AdaScale around")


def gradients_of(calls):
    """For each call the gradients of two variables, a matrix and a vector."""
    return [[gradient + np.float32(0.7) for gradient in values_of(1 + n)] for n in range(calls)]


def stepped(optimizer, gradients, **hooks):
    """Applies gradients call by call to new variables, and returns these."""
    variables = variables_of()
    keras_versions.build(optimizer, variables)
    keras_versions.apply_each(optimizer, gradients, variables, **hooks)
    return variables


def accumulating(steps=2, learning_rate=0.05, cls=SGD, **options):
    return keras_versions.accumulating(cls, learning_rate, steps, **options)


# ---- arguments ---------------------------------------------------------------------------------


def test_a_single_gradient_has_no_variance():
    message = "pass gradient_accumulation_steps to the inner optimizer. Received: scale=4"
    with pytest.raises(ValueError, match=message):
        stepped(AdaScale(SGD(), scale=4), gradients_of(1))
    optimizer = AdaScale(SGD())
    optimizer.build(variables_of())
    with pytest.raises(ValueError, match=message):
        optimizer.set_scale(4)
    assert optimizer.scale == 1


def test_linear_scaling_is_refused():
    inner = SGD(tf_adasum.schedules.LinearScalingWarmup(0.1, scale=4, total_steps=100))
    with pytest.raises(ValueError, match="without LinearScalingWarmup"):
        AdaScale(inner)
    assert inner.get_config()["learning_rate"]["config"]["scale"] == 4  # left as it was


def test_one_warning_for_each_optimizer_other_than_sgd():
    adascale._warn_of_experiment.cache_clear()
    with pytest.warns(UserWarning, match="AdaScale around Adam is an experiment") as caught:
        for inner in (SGD, keras.optimizers.Adam, keras.optimizers.Adam):
            AdaScale(inner())
    assert len(caught) == 1 and caught[0].filename == __file__


# ---- the inner optimizer -----------------------------------------------------------------------

EMA = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
NAMES = ["SGD", "Adam", "AdamW", "Nadam", "Adafactor"]
NAMES += [name for name in ("Muon", "Lamb") if hasattr(keras.optimizers, name)]  # of Keras 3
INNER = {name: (getattr(keras.optimizers, name), {"weight_decay": 0.3}) for name in NAMES}
INNER |= {
    "momentum": (SGD, {"momentum": 0.9}),
    "clipnorm": (SGD, {"clipnorm": 0.5}),
    "ema": (SGD, EMA),
    "lamb": (optimizers.LAMB, {"weight_decay": 0.3, "exclude_from_weight_decay": "v1"}),
}


@pytest.mark.parametrize(
    "name", keras_versions.marked(INNER, {"Nadam": keras_versions.needs_nadam})
)
def test_is_the_inner_optimizer_with_another_learning_rate(name, two_gradients):
    """Keras's optimizer, accumulating and given η: clipping of the mean, decay by η, averages."""
    cls, options = INNER[name]
    gradients, gains = gradients_of(2 * STEPS), []
    optimizer = AdaScale(accumulating(cls=cls, **options), smoothing=0.5)
    actual = stepped(optimizer, gradients, after=lambda _: gains.append(float(optimizer.gain)))
    plain = accumulating(cls=cls, **options)
    expected = stepped(
        plain, gradients, before=lambda i: plain.learning_rate.assign(0.05 * gains[i])
    )
    assert len(set(gains)) >= STEPS and max(gains) > 1.2
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, **FLOAT32)


@keras_versions.needs_loss_scale_factor
def test_loss_scale_factor_is_taken_out_of_the_gradients():
    gradients = gradients_of(4)
    scaled = [[1024 * gradient for gradient in own] for own in gradients]
    plain, with_factor = (AdaScale(accumulating(loss_scale_factor=f)) for f in (None, 1024))
    assert with_factor.scale_loss(3.0) == 3072
    assert_equal(stepped(with_factor, scaled), stepped(plain, gradients))  # a power of two
    assert with_factor.gain == plain.gain > 1


# ---- ways to take steps ------------------------------------------------------------------------


def fitted(**options):
    model = model_of(AdaScale(accumulating()), **options)
    random = np.random.default_rng(8)
    x, noise = (random.standard_normal([24, size]).astype("float32") for size in (3, 1))
    rows = 4 * keras_versions.calls_at_once()
    y = 2 * x[:, :1] + noise
    model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return model


@pytest.fixture(scope="module")
def trained():
    with keras_versions.gradients_per_step(2):
        return fitted()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"jit_compile": True}, marks=pytest.mark.keras3_only("XLA is for one device")),
        {"run_eagerly": True},
        {"steps_per_execution": 3},
    ],
    ids=str,
)
def test_ways_to_run_a_step(options, trained):
    with keras_versions.gradients_per_step(2):
        model = fitted(**options)
    for one, other in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.optimizer.gain, trained.optimizer.gain, rtol=1e-5)
    assert model.optimizer.iterations.numpy() == 6 and 1 < model.optimizer.gain < 2


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("with_dense", [False, True])
def test_sparse_gradients_are_the_dense_ones(accumulated, with_dense):
    """With repeated indices; alone among the gradients, and next to a dense one."""
    rows = np.random.default_rng(10).standard_normal((4, 3, 3)).astype("float32")
    results = []
    for is_sparse in (True, False):
        with keras_versions.gradients_per_step(accumulated):
            inner = SGD(0.1) if accumulated == 1 else accumulating(2, 0.1)
            optimizer, variables = AdaScale(inner), variables_of()[: 1 + with_dense]
            optimizer.build(variables)
            calls = []
            for own in rows:
                sparse = tf.IndexedSlices(own, tf.constant([3, 0, 3]), tf.constant([4, 3]))
                gradient = sparse if is_sparse else tf.convert_to_tensor(sparse)
                calls.append([gradient, tf.ones([5])][: len(variables)])
            keras_versions.apply_each(optimizer, calls, variables)
            results.append([optimizer.gain, *variables])
    for sparse, dense in zip(*results, strict=True):
        np.testing.assert_allclose(sparse, dense, **FLOAT32)
    assert (results[0][0] > 1) == (accumulated == 2)


# ---- NaN and Inf -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("step", [0, 1])
def test_steps_that_are_not_finite_are_left_out(bad, debias, step, two_gradients):
    good, first = gradients_of(STEPS), 2 * step
    spoilt = [gradient.copy() for gradient in good[0]]
    spoilt[1][2] = bad
    optimizer, expected = (AdaScale(accumulating(), smoothing=0.5, debias=debias) for _ in range(2))
    seen = []

    def look(call=None):
        seen.append([optimizer.gain, optimizer.scale_invariant_steps, optimizer.skipped_steps])

    look()
    stepped(optimizer, [*good[:first], good[first], spoilt, *good[first:]], after=look)
    stepped(expected, good)
    seen = np.array(seen)[::2]  # after every second call, which updates
    assert np.isfinite(seen).all()
    np.testing.assert_array_equal(seen[step + 1, :2], seen[step, :2])
    assert seen[:, 2].tolist() == [0] * (step + 1) + [1] * (len(seen) - step - 1)
    for name in ("gain", "scale_invariant_steps", "gradient_variance", "gradient_squared_norm"):
        assert getattr(optimizer, name) == getattr(expected, name), name


# ---- schedules and scales ----------------------------------------------------------------------


def test_a_new_scale_reaches_a_compiled_step(two_gradients):
    """The first call of the step builds the optimizer, as in custom loops."""
    variables, optimizer = variables_of(), AdaScale(accumulating(), smoothing=0.0)
    at_once, gradients = keras_versions.calls_at_once(), gradients_of(2)
    step = tf.function(lambda *calls: keras_versions.apply(optimizer, calls, variables))
    gains = []
    for scale in (2, 50):
        optimizer.set_scale(scale)
        for start in range(0, 2, at_once):
            step(*[[tf.constant(g) for g in own] for own in gradients[start : start + at_once]])
        gains.append(optimizer.gain)
    assert gains[0] < 2 < gains[1] < 50 and optimizer.iterations.numpy() == 2
