"""AdaScale in one process: what it refuses, what it is composed with, how it is saved.

Its formulas are tested in test_gain.py, and on replicas in tests/multi_worker/test_adascale.py.
"""

import contextlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import stacks, ways_to_restart

import tf_adasum
from tf_adasum import optimizers
from tf_adasum.optimizers import AdaScale, DeltaAdasum, adascale

SGD = keras.optimizers.SGD
STEPS = 6

# Twelve steps of about 0.1 on weights near 1, with another rounding of η: 6e-8 of each.
FLOAT32 = {"rtol": 2e-6, "atol": 1e-6}


@pytest.fixture(autouse=True)
def quiet_about_other_optimizers():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AdaScale around")
        yield


@pytest.fixture(scope="module")
def strategies():
    return {
        rule: tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
        for rule in ("adasum", "mean")
    }


def gradients_of(calls, seed=0):
    """For each call the gradients of two variables, a matrix and a vector."""
    random = np.random.default_rng(seed)
    return [
        [(random.standard_normal(shape) + 0.7).astype("float32") for shape in ((4, 3), (5,))]
        for _ in range(calls)
    ]


def variables_of(seed=1):
    (values,) = gradients_of(1, seed)
    return [stacks.Variable(value, name=f"v{index}") for index, value in enumerate(values)]


def stepped(optimizer, gradients, before_update=lambda call: None, after=lambda call: None):
    """Applies gradients call by call to new variables, and returns these."""
    variables = variables_of()
    stacks.build(optimizer, variables)
    at_once = stacks.calls_at_once()
    for start in range(0, len(gradients), at_once):
        calls = range(start, start + at_once)
        for call in calls:
            before_update(call)
        apply(optimizer, gradients[start : start + at_once], variables)
        for call in calls:
            after(call)
    return variables


def apply(optimizer, calls, variables):
    """One call; or as many as are one, see `stacks`."""
    calls = [[tf.constant(g) if isinstance(g, np.ndarray) else g for g in own] for own in calls]
    stacks.apply(optimizer, calls, variables)


def apply_each(optimizer, gradients, variables):
    at_once = stacks.calls_at_once()
    for start in range(0, len(gradients), at_once):
        apply(optimizer, gradients[start : start + at_once], variables)


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def values(variables):
    return [np.array(variable.numpy()) for variable in variables]


def model_of(optimizer, **options):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(optimizer, "mse", **options)
    return model


X = np.random.default_rng(8).standard_normal([24, 3]).astype("float32")
Y = X[:, :1] * 2 + np.random.default_rng(9).standard_normal([24, 1]).astype("float32")


def fit(model, epochs=1, x=X, y=Y, **options):
    size = 4 * stacks.calls_at_once()
    return model.fit(x, y, batch_size=size, epochs=epochs, shuffle=False, verbose=0, **options)


def accumulating(steps=2, learning_rate=0.05, cls=SGD, **options):
    return stacks.accumulating(cls, learning_rate, steps, **options)


@pytest.fixture(scope="module")
def trained():
    """A model after two epochs, as Keras runs them by default."""
    with stacks.gradients_per_step(2):
        model = model_of(AdaScale(accumulating()))
        fit(model, epochs=2)
    return model


# ---- what it refuses ---------------------------------------------------------------------------


class TestRefuses:
    @pytest.mark.parametrize("given", ["sgd", None, 0.1, SGD])
    def test_what_is_no_optimizer(self, given):
        with pytest.raises(ValueError, match=r"of AdaScale must be a Keras .* Received"):
            AdaScale(given)

    def test_a_loss_scale_optimizer_inside(self):
        with pytest.raises(ValueError, match=r"LossScaleOptimizer\(AdaScale\(optimizer\)\)"):
            AdaScale(stacks.LossScaleOptimizer(SGD()))

    @pytest.mark.parametrize("wrapper", [AdaScale, DeltaAdasum])
    def test_a_wrapper_inside(self, wrapper):
        name = wrapper.__name__
        with pytest.raises(ValueError, match=rf"cannot wrap another wrapper.* Received.*{name}\("):
            AdaScale(wrapper(SGD()))

    @pytest.mark.parametrize("wrapper", [AdaScale, DeltaAdasum])
    def test_an_optimizer_that_has_a_wrapper(self, wrapper):
        inner = SGD()
        wrapper(inner)
        with pytest.raises(ValueError, match="already wrapped: pass a new optimizer to AdaScale"):
            AdaScale(inner)

    @pytest.mark.parametrize("scale", [0, 0.99, -4, np.nan, np.inf, True, "4", [4]], ids=str)
    def test_a_scale_that_is_no_number_of_batches(self, scale, two_gradients):
        with pytest.raises(ValueError, match=r"1 or more\. Received: scale="):
            AdaScale(SGD(), scale=scale)
        optimizer = AdaScale(accumulating())
        with pytest.raises(ValueError, match=r"1 or more\. Received: scale="):
            optimizer.set_scale(scale)
        assert optimizer.scale == 2

    @pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5, np.nan, "0.9"], ids=str)
    def test_a_smoothing_outside_of_its_range(self, smoothing):
        with pytest.raises(ValueError, match=r"`smoothing` must be in \[0, 1\).* Received: smooth"):
            AdaScale(SGD(), smoothing=smoothing)

    def test_a_single_gradient_that_has_no_variance(self):
        optimizer = AdaScale(SGD(), scale=4)
        message = "pass gradient_accumulation_steps to the inner optimizer. Received: scale=4"
        with pytest.raises(ValueError, match=message):
            stepped(optimizer, gradients_of(1))
        optimizer = AdaScale(SGD())
        optimizer.build(variables_of())
        with pytest.raises(ValueError, match=message):
            optimizer.set_scale(4)
        assert optimizer.scale == 1

    def test_rules_that_are_not_the_mean(self, strategies):
        message = r"AdasumMirroredStrategy\(aggregation='mean'\).* Received: .*[aA]dasum"
        with strategies["adasum"].scope(), pytest.raises(ValueError, match=message):
            AdaScale(SGD())
        optimizer = AdaScale(SGD())
        with strategies["adasum"].scope(), pytest.raises(ValueError, match=message):
            optimizer.build(variables_of())

    def test_a_wrapper_around(self):
        with pytest.raises(ValueError, match="cannot wrap another wrapper"):
            DeltaAdasum(AdaScale(SGD()))


def test_the_mean_of_the_strategy_is_accepted(trained):
    strategy = tf_adasum.AdasumMirroredStrategy(devices=stacks.devices_of(2), aggregation="mean")
    with strategy.scope():
        model = model_of(AdaScale(accumulating()))
        fit(model, epochs=2)
    np.testing.assert_allclose(model.optimizer.gain, trained.optimizer.gain, rtol=1e-5)


def test_warns_once_of_what_is_not_sgd():
    adascale._warn_of_experiment.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            AdaScale(SGD(0.1, momentum=0.9))
            AdaScale(keras.optimizers.Adam())
            AdaScale(keras.optimizers.Lion())
    messages = [str(one.message) for one in caught if "AdaScale around" in str(one.message)]
    assert len(messages) == 2
    assert "AdaScale around Adam is an experiment" in messages[0] and "Lion" in messages[1]


def test_the_warning_points_to_the_line_that_made_it():
    adascale._warn_of_experiment.cache_clear()
    with pytest.warns(UserWarning, match="AdaScale around Adam") as caught:
        AdaScale(keras.optimizers.Adam())
    assert [one.filename for one in caught] == [__file__]


# ---- S = 1 -------------------------------------------------------------------------------------

PLAIN = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "nesterov": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "weight_decay": lambda: SGD(0.1, momentum=0.9, weight_decay=0.1),
    "clipnorm": lambda: SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: SGD(0.1, global_clipnorm=0.5),
    "clipvalue": lambda: SGD(0.1, clipvalue=0.5),
    "ema": lambda: SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2),
    "schedule": lambda: SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9),
    "callable": lambda: SGD(lambda: 0.1),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "lamb": lambda: optimizers.LAMB(0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("name", stacks.marked(PLAIN, {"nadam": stacks.needs_nadam}))
def test_a_scale_of_one_is_the_plain_optimizer(name):
    gradients = gradients_of(STEPS)
    plain, wrapped = PLAIN[name](), AdaScale(PLAIN[name]())
    expected, actual = (stepped(optimizer, gradients) for optimizer in (plain, wrapped))
    assert_equal(values(actual), values(expected))
    assert np.abs(actual[0].numpy() - variables_of()[0].numpy()).max() > 1e-3
    assert wrapped.gain == 1 and wrapped.scale == 1
    assert wrapped.scale_invariant_steps == STEPS == wrapped.iterations
    if hasattr(plain, "finalize_variable_values"):
        plain.finalize_variable_values(expected)
    wrapped.finalize_variable_values(actual)
    assert_equal(values(actual), values(expected))


def test_a_scale_of_one_on_several_gradients(two_gradients):
    optimizer = AdaScale(accumulating(2), scale=1)
    stepped(optimizer, gradients_of(STEPS))
    assert optimizer.gain == 1 and optimizer.scale_invariant_steps == STEPS / 2
    assert optimizer.gradient_variance > 1


# ---- composition -------------------------------------------------------------------------------

INNER = {
    "sgd": (SGD, {}),
    "momentum": (SGD, {"momentum": 0.9}),
    "weight_decay": (SGD, {"weight_decay": 0.3}),
    "clipnorm": (SGD, {"clipnorm": 0.5}),
    "global_clipnorm": (SGD, {"global_clipnorm": 0.5}),
    "clipvalue": (SGD, {"clipvalue": 0.5}),
    "ema": (SGD, {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}),
    "adam": (keras.optimizers.Adam, {}),
    "adamw": (keras.optimizers.AdamW, {"weight_decay": 0.3}),
    "nadam": (keras.optimizers.Nadam, {}),
    "lion": (keras.optimizers.Lion, {}),
    "ftrl": (keras.optimizers.Ftrl, {}),
    "rmsprop": (keras.optimizers.RMSprop, {"momentum": 0.5}),
    "adafactor": (keras.optimizers.Adafactor, {}),
    "lamb": (optimizers.LAMB, {"weight_decay": 0.3, "exclude_from_weight_decay": "v1"}),
}
for name in ("Muon", "Lamb"):  # of Keras 3
    if hasattr(keras.optimizers, name):
        INNER[name] = (getattr(keras.optimizers, name), {"weight_decay": 0.3})


@pytest.mark.parametrize("name", stacks.marked(INNER, {"nadam": stacks.needs_nadam}))
def test_is_the_inner_optimizer_with_another_learning_rate(name, two_gradients):
    """Keras's optimizer, accumulating and given η: clipping of the mean, decay by η, averages."""
    cls, options = INNER[name]
    gradients, etas = gradients_of(2 * STEPS), []
    optimizer = AdaScale(accumulating(cls=cls, **options), smoothing=0.5)
    actual = stepped(
        optimizer, gradients, after=lambda call: etas.append(float(optimizer.gain) * 0.05)
    )
    plain = accumulating(cls=cls, **options)
    expected = stepped(plain, gradients, lambda call: plain.learning_rate.assign(etas[call]))
    assert len(set(etas)) >= STEPS and max(etas) > 0.06
    for one, other in zip(values(actual), values(expected), strict=True):
        np.testing.assert_allclose(one, other, **FLOAT32)


@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping_changes_the_step_and_not_the_gain(name, two_gradients):
    gradients = gradients_of(2)
    clipped, plain = (AdaScale(accumulating(**o)) for o in ({name: 0.1}, {}))
    one, other = (stepped(optimizer, gradients) for optimizer in (clipped, plain))
    assert clipped.gain == plain.gain
    assert np.abs(one[0].numpy() - other[0].numpy()).max() > 1e-2
    mean = [np.mean(own, axis=0) for own in zip(*gradients, strict=True)]
    longest = {
        "clipnorm": max(np.linalg.norm(own) for own in mean),
        "global_clipnorm": np.sqrt(sum(np.sum(own**2) for own in mean)),
        "clipvalue": max(np.abs(own).max() for own in mean),
    }
    assert longest[name] > 0.1
    moved = [v.numpy() - w.numpy() for v, w in zip(one, variables_of(), strict=True)]
    step = [own / (0.05 * float(clipped.gain)) for own in moved]
    for own in step:
        if name == "clipvalue":
            np.testing.assert_allclose(np.abs(own).max(), 0.1, rtol=1e-3)
        if name == "clipnorm":
            np.testing.assert_allclose(np.linalg.norm(own), 0.1, rtol=1e-3)
    if name == "global_clipnorm":
        norm = np.sqrt(sum(np.sum(own**2) for own in step))
        np.testing.assert_allclose(norm, 0.1, rtol=1e-3)


@stacks.needs_loss_scale_factor
def test_loss_scale_factor_is_taken_out_of_the_gradients():
    gradients = gradients_of(4)
    scaled = [[1024 * gradient for gradient in own] for own in gradients]
    plain, with_factor = (AdaScale(accumulating(loss_scale_factor=f)) for f in (None, 1024))
    assert with_factor.scale_loss(3.0) == 3072 and with_factor.loss_scale_factor == 1024
    assert_equal(
        values(stepped(with_factor, scaled)), values(stepped(plain, gradients))
    )  # a power of two: bit for bit
    assert with_factor.gain == plain.gain > 1


@pytest.mark.usefixtures("two_gradients")
class TestLossScaleOptimizer:
    def at(self, scale):
        return 1 if stacks.CALLER_UNSCALES else scale

    def test_is_the_optimizer_without_it(self):
        gradients = gradients_of(STEPS)
        scaled = [[self.at(8) * gradient for gradient in own] for own in gradients]
        plain, inner = (AdaScale(accumulating()) for _ in range(2))
        outer = stacks.LossScaleOptimizer(inner, initial_scale=8)
        assert_equal(values(stepped(outer, scaled)), values(stepped(plain, gradients)))
        assert inner.gain == plain.gain > 1

    def test_a_step_that_overflows_is_none(self):
        gradients = gradients_of(STEPS)
        plain, inner = (AdaScale(accumulating()) for _ in range(2))
        outer = stacks.LossScaleOptimizer(inner, initial_scale=8, dynamic_growth_steps=99)
        at_once = stacks.calls_at_once()
        before = 3 if at_once == 1 else 2  # in the middle of an accumulation, where there is one
        scaled = [[self.at(8) * gradient for gradient in own] for own in gradients[:before]]
        scaled += [gradients[0]] * (at_once - 1)
        scaled.append([np.full_like(gradients[0][0], np.inf), gradients[0][1]])
        scaled += [[self.at(4) * gradient for gradient in own] for own in gradients[before:]]
        assert_equal(values(stepped(outer, scaled)), values(stepped(plain, gradients)))
        assert stacks.loss_scale_of(outer).numpy() == 4
        assert inner.skipped_steps == 0 and inner.scale_invariant_steps == (
            plain.scale_invariant_steps
        )

    def test_mixed_precision(self):
        stacks.set_dtype_policy("mixed_float16")
        try:
            model = model_of(AdaScale(accumulating()))
        finally:
            stacks.set_dtype_policy("float32")
        fit(model, epochs=2)
        assert isinstance(model.optimizer, stacks.LossScaleOptimizer)
        inner = model.optimizer.inner_optimizer
        # Some of the first steps may overflow at a scale of 2^15, and are left out.
        assert inner.scale_invariant_steps > 2 and 1 < inner.gain < 2
        assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.keras3_only("Keras 2 has no SwapEMAWeights")
@pytest.mark.parametrize("wrapped_again", [False, True], ids=["alone", "in LossScaleOptimizer"])
def test_swap_ema_weights(wrapped_again):
    """The validation sees the averages: as with Keras's own optimizer, S = 1."""
    losses = []
    for wrap in (lambda optimizer: optimizer, AdaScale):
        optimizer = wrap(SGD(0.02, use_ema=True, ema_momentum=0.9))
        if wrapped_again:
            optimizer = stacks.LossScaleOptimizer(optimizer, initial_scale=1)
        model = model_of(optimizer, run_eagerly=True)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        history = fit(model, 2, validation_data=(X, Y), callbacks=[swap]).history
        losses.append(history["val_loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["ReduceLROnPlateau", "LearningRateScheduler"])
def test_callbacks_set_the_rate_of_one_batch(name, two_gradients):
    callback = {
        "ReduceLROnPlateau": keras.callbacks.ReduceLROnPlateau(
            "loss", patience=1, min_delta=1e6, factor=0.5
        ),
        "LearningRateScheduler": keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate * 0.5
        ),
    }[name]
    model = model_of(AdaScale(accumulating(learning_rate=0.04)), run_eagerly=stacks.RUNS_EAGERLY)
    rates = fit(model, epochs=3, callbacks=[callback]).history[stacks.LEARNING_RATE_IN_LOGS]
    expected = {
        "ReduceLROnPlateau": [0.04, 0.04, 0.02],
        "LearningRateScheduler": [0.02, 0.01, 0.005],
    }[name]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    optimizer = model.optimizer
    if not stacks.RATE_IS_OF_LAST_STEP:
        np.testing.assert_allclose(
            optimizer.inner_optimizer.learning_rate,
            float(optimizer.gain) * optimizer.learning_rate.numpy(),
            rtol=1e-6,
        )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"jit_compile": True},
            marks=pytest.mark.keras3_only(
                "XLA compiles for one device, and several gradients of Keras 2 take several"
            ),
        ),
        {"run_eagerly": True},
        {"steps_per_execution": 3},
    ],
    ids=str,
)
def test_ways_to_run_a_step(options, trained, two_gradients):
    model = model_of(AdaScale(accumulating()), **options)
    fit(model, epochs=2)
    for one, other in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.optimizer.gain, trained.optimizer.gain, rtol=1e-5)
    assert model.optimizer.iterations.numpy() == 6 and 1 < model.optimizer.gain < 2


def test_is_built_in_the_first_step_of_a_custom_loop(two_gradients):
    variables, optimizer = variables_of(), AdaScale(accumulating())
    own = [tf.constant(gradient) for gradient in gradients_of(1)[0]]

    @tf.function
    def step():
        apply(optimizer, [own] * stacks.calls_at_once(), variables)

    for _ in range(2 * stacks.calls_per_update(2)):
        step()
    assert optimizer.iterations.numpy() == 2 and optimizer.scale == 2
    np.testing.assert_allclose(optimizer.gain, 1, rtol=1e-6)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_sparse_gradients_are_the_dense_ones(accumulated):
    """With repeated indices; alone among the gradients, and beside a dense one."""
    random = np.random.default_rng(10)
    rows = random.standard_normal((4, 3, 3)).astype("float32")
    for with_dense in (False, True):
        results = []
        for is_sparse in (True, False):
            with stacks.gradients_per_step(accumulated):
                inner = SGD(0.1) if accumulated == 1 else accumulating(2, 0.1)
                optimizer, variables = AdaScale(inner), variables_of()[: 1 + with_dense]
                optimizer.build(variables)
                calls = []
                for own in rows:
                    indices, shape = tf.constant([3, 0, 3]), tf.constant([4, 3])
                    sparse = tf.IndexedSlices(tf.constant(own), indices, shape)
                    gradient = sparse if is_sparse else tf.convert_to_tensor(sparse)
                    calls.append([gradient, tf.ones([5])][: len(variables)])
                apply_each(optimizer, calls, variables)
                results.append([optimizer.gain, *values(variables)])
        for sparse, dense in zip(*results, strict=True):
            np.testing.assert_allclose(sparse, dense, **FLOAT32)
        assert (results[0][0] > 1) == (accumulated == 2)


def test_an_embedding_trains(two_gradients):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([2], dtype="int32"), *layers])
    model.compile(AdaScale(accumulating()), "mse", run_eagerly=stacks.RUNS_EAGERLY)
    x = np.arange(48).reshape(24, 2) % 7
    losses = fit(model, 4, x, np.ones([24, 1])).history["loss"]
    assert losses[-1] < losses[0] and 1 < model.optimizer.gain < 2


def test_variables_without_gradients_are_left_out(two_gradients):
    gradients = gradients_of(STEPS)
    optimizer, alone = (AdaScale(accumulating()) for _ in range(2))
    warns = pytest.warns(UserWarning, match="Gradients do not exist")
    with contextlib.nullcontext() if stacks.MISSING_GRADIENTS_ARE_LOGGED else warns:
        variables = stepped(optimizer, [[own[0], None] for own in gradients])
    expected = variables_of()[:1]
    alone.build(expected)
    apply_each(alone, [own[:1] for own in gradients], expected)
    assert_equal(values(variables), [expected[0].numpy(), variables_of()[1].numpy()])
    assert optimizer.gain == alone.gain > 1


# ---- NaN and Inf -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("debias", [True, False])
def test_steps_that_are_not_finite_are_left_out(bad, debias, two_gradients):
    good = gradients_of(STEPS)
    spoilt = [gradient.copy() for gradient in good[3]]
    spoilt[1][2] = bad
    optimizer, expected = (AdaScale(accumulating(), smoothing=0.5, debias=debias) for _ in range(2))
    seen = []

    def look(call):
        seen.append([optimizer.gain, optimizer.scale_invariant_steps, optimizer.skipped_steps])

    stepped(optimizer, [*good[:2], good[2], spoilt, *good[2:]], after=look)
    stepped(expected, good)
    seen = np.array(seen)[1::2]  # of every second call, which updates
    assert np.isfinite(seen).all()
    np.testing.assert_array_equal(seen[1, :2], seen[0, :2])
    assert seen[:, 2].tolist() == [0] + [1] * (len(seen) - 1)
    for name in ("gain", "scale_invariant_steps", "gradient_variance", "gradient_squared_norm"):
        assert getattr(optimizer, name) == getattr(expected, name), name


def test_the_first_step_may_be_bad(two_gradients):
    good = gradients_of(2)
    bad = [[np.full_like(gradient, np.nan) for gradient in own] for own in good]
    optimizer = AdaScale(accumulating())
    stepped(optimizer, bad)
    assert optimizer.gain == 1 and optimizer.scale_invariant_steps == 0
    stepped_again = AdaScale(accumulating())
    stepped(stepped_again, [*bad, *good])
    alone = AdaScale(accumulating())
    stepped(alone, good)
    assert stepped_again.gain == alone.gain > 1 and stepped_again.skipped_steps == 1


def test_without_a_second_gradient_nothing_is_measured():
    """Not even whether it is finite: the plain optimizer would not look at it either."""
    bad = [[np.full_like(gradient, np.nan) for gradient in own] for own in gradients_of(2)]
    optimizer = AdaScale(SGD(0.1))
    stepped(optimizer, bad)
    assert optimizer.scale_invariant_steps == 2 and optimizer.skipped_steps == 0
    assert optimizer.gain == 1


# ---- schedules and scales ----------------------------------------------------------------------


def test_the_schedule_is_evaluated_at_the_whole_scale_invariant_step(two_gradients):
    class Recorded(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self):
            self.steps = []

        def __call__(self, step):
            self.steps.append(step)
            return 0.1 - 0.001 * tf.cast(step, tf.float32)

    schedule = Recorded()
    optimizer = AdaScale(accumulating(learning_rate=schedule))
    taus = [0.0]
    gradients = gradients_of(2 * STEPS)
    stepped(optimizer, gradients, after=lambda _: taus.append(optimizer.scale_invariant_steps))
    assert taus[-1] > STEPS + 1 and taus[-1] % 1 > 0.01
    schedule.steps.clear()
    rate = optimizer.learning_rate
    (step,) = schedule.steps
    assert step.dtype == tf.int64 and step == int(taus[-1])
    np.testing.assert_allclose(rate, 0.1 - 0.001 * int(taus[-1]), rtol=1e-6)
    if not stacks.RATE_IS_OF_LAST_STEP:
        assert optimizer.effective_learning_rate == optimizer.inner_optimizer.learning_rate
    with pytest.raises(TypeError, match="cannot be set to a number"):
        optimizer.learning_rate = 0.1


def test_the_schedule_of_the_step_is_that_before_it(two_gradients):
    """The step from τ to τ + r takes lr(⌊τ⌋): of two steps, the second takes lr(⌊r⌋)."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])  # 1 at 0, then 0
    optimizer, states = AdaScale(accumulating(learning_rate=rate)), []
    variables = variables_of()
    optimizer.build(variables)
    gradients = gradients_of(4)
    for two in (gradients[:2], gradients[2:]):
        apply_each(optimizer, two, variables)
        states.append(variables[0].numpy())
    assert np.abs(states[0] - variables_of()[0].numpy()).max() > 0.1
    assert_equal([states[1]], [states[0]])


class TestScale:
    def test_default(self, four_gradients):
        optimizer = AdaScale(accumulating(4))
        assert optimizer.scale == 4
        optimizer.build(variables_of())
        assert optimizer.scale == 4 and isinstance(optimizer.scale, float)

    @pytest.mark.parametrize("when", ["argument", "before build", "after build"])
    def test_set(self, when, two_gradients):
        optimizer = AdaScale(accumulating(), scale=7.5 if when == "argument" else None)
        if when == "before build":
            optimizer.set_scale(7.5)
        variables = variables_of()
        optimizer.build(variables)
        if when == "after build":
            optimizer.set_scale(7.5)
        apply_each(optimizer, gradients_of(2), variables)
        assert optimizer.scale == 7.5
        sigma, mu = optimizer.gradient_variance, optimizer.gradient_squared_norm
        np.testing.assert_allclose(optimizer.gain, (sigma + mu) / (sigma / 7.5 + mu), rtol=1e-12)
        assert 2 < optimizer.gain < 7.5

    def test_reaches_a_step_that_was_compiled_before(self, two_gradients):
        variables, optimizer = variables_of(), AdaScale(accumulating(), smoothing=0.0)
        optimizer.build(variables)
        calls = [[tf.constant(g) for g in own] for own in gradients_of(2)]
        step = tf.function(lambda *calls: stacks.apply(optimizer, calls, variables))
        gains = []
        for scale in (2, 50):
            optimizer.set_scale(scale)
            for start in range(0, 2, stacks.calls_at_once()):
                step(*calls[start : start + stacks.calls_at_once()])
            gains.append(optimizer.gain)
        assert gains[0] < 2 < gains[1] < 50


# ---- configuration and state -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 8.5, "smoothing": 0.25, "debias": False, "name": "mine"}],
    ids=["default", "given"],
)
@pytest.mark.parametrize("rate", ["float", "schedule"])
def test_configuration(options, rate, four_gradients):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    rate = 0.1 if rate == "float" else schedule
    optimizer = AdaScale(accumulating(4, rate, momentum=0.5, clipnorm=1.0), **options)
    config = keras.saving.serialize_keras_object(optimizer)
    for again in (
        AdaScale.from_config(optimizer.get_config()),
        keras.saving.deserialize_keras_object(config),
        keras.optimizers.get(config),
    ):
        assert again.get_config() == optimizer.get_config()
        assert isinstance(again.inner_optimizer, SGD)
        assert again.inner_optimizer.momentum == 0.5 and again.clipnorm == 1.0
        assert (again.scale, again.smoothing, again.debias, again.name) == (
            options.get("scale", 4),
            options.get("smoothing"),
            options.get("debias", True),
            options.get("name", "adascale"),
        )
        if rate is not schedule:
            assert again.learning_rate.numpy() == np.float32(0.1)


def test_the_configuration_has_the_scale_that_was_set(two_gradients):
    optimizer = AdaScale(accumulating())
    optimizer.set_scale(np.float32(6))
    assert AdaScale.from_config(optimizer.get_config()).scale == 6


@pytest.mark.keras3_only("`compile` of Keras 2 takes no optimizer's configuration")
def test_compiled_from_its_configuration(two_gradients):
    config = keras.saving.serialize_keras_object(AdaScale(accumulating()))
    model = model_of(config, run_eagerly=stacks.RUNS_EAGERLY)
    fit(model)
    assert isinstance(model.optimizer, AdaScale) and 1 < model.optimizer.gain < 2


def state_of(model):
    return [
        *model.get_weights(),
        *(np.array(variable.numpy()) for variable in model.optimizer.variables),
        model.optimizer.gain.numpy(),
        model.optimizer.scale_invariant_steps.numpy(),
        model.optimizer.gradient_variance.numpy(),
        model.optimizer.gradient_squared_norm.numpy(),
    ]


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)


@pytest.mark.parametrize("rate", [0.05, SCHEDULE], ids=["float", "schedule"])
@pytest.mark.parametrize("restart", ways_to_restart.WAYS)
def test_continues_as_if_it_had_not_stopped(restart, rate, tmp_path, two_gradients):
    def make():
        inner = accumulating(2, rate, momentum=0.9)
        return model_of(AdaScale(inner, smoothing=0.7), run_eagerly=stacks.RUNS_EAGERLY)

    def three_batches(model):  # the last one is in the middle of another accumulation
        for start in (0, 4, 8):
            model.train_on_batch(X[start : start + 4], Y[start : start + 4])

    unbroken = make()
    three_batches(unbroken)
    again = restart(unbroken, tmp_path, make)
    assert_equal(state_of(again), state_of(unbroken))
    for model in (unbroken, again):
        three_batches(model)
    assert_equal(state_of(again), state_of(unbroken))
    assert unbroken.optimizer.iterations.numpy() == 6 // stacks.calls_per_update(2)
    assert unbroken.optimizer.gain > 1


def test_a_model_trained_on_replicas_can_be_loaded_without(tmp_path, monkeypatch):
    """For `predict`, on a machine with one device."""
    optimizer = AdaScale(SGD(0.1), scale=16)
    with monkeypatch.context() as on_four_replicas:
        on_four_replicas.setattr(AdaScale, "_check_measurable", lambda self, scale: None)
        model = model_of(optimizer)
        optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(loaded.get_weights(), model.get_weights())
    assert loaded.predict(X, verbose=0).shape == (24, 1)


def test_before_it_is_built(two_gradients):
    optimizer = AdaScale(accumulating())
    assert (optimizer.gain, optimizer.scale_invariant_steps, optimizer.skipped_steps) == (1, 0, 0)
    assert (optimizer.gradient_variance, optimizer.gradient_squared_norm) == (0, 0)
    assert optimizer.learning_rate.numpy() == np.float32(0.05)
    assert optimizer.effective_learning_rate == np.float32(0.05)


# ---- the interface of an optimizer -------------------------------------------------------------


def test_options_are_those_of_the_inner_optimizer():
    optimizer = AdaScale(SGD(0.1, weight_decay=0.1, clipvalue=3.0))
    assert (optimizer.weight_decay, optimizer.clipvalue, optimizer.use_ema) == (0.1, 3.0, False)
    optimizer.weight_decay = 0.2
    assert optimizer.inner_optimizer.weight_decay == 0.2


@pytest.mark.parametrize("choice", ["names", "variables"])
def test_variables_are_excluded_from_weight_decay(choice):
    optimizer, variables = AdaScale(SGD(0.1, weight_decay=0.5)), variables_of()
    excluded = {"var_names": ["v1"]} if choice == "names" else {"var_list": variables[1:]}
    optimizer.exclude_from_weight_decay(**excluded)
    before = values(variables)
    apply(optimizer, [[tf.zeros_like(value) for value in before]], variables)
    assert np.abs(variables[0].numpy() - before[0]).max() > 1e-3
    assert_equal(values(variables)[1:], before[1:])


def test_apply_gradients_returns_the_iteration():
    variables, optimizer = variables_of(), AdaScale(SGD(0.1))
    own = [tf.constant(gradient) for gradient in gradients_of(1)[0]]
    assert optimizer.apply_gradients(zip(own, variables, strict=True)).numpy() == 1


@pytest.mark.parametrize("steps", [None, 2])
def test_the_inner_optimizer_is_not_used_by_itself(steps):
    with stacks.gradients_per_step(steps or 1):
        inner = accumulating(steps, 0.1) if steps else SGD(0.1)
        AdaScale(inner)
        variable = stacks.Variable([1.0])
        with pytest.raises(ValueError, match="SGD is wrapped by another optimizer"):
            apply(inner, [[tf.ones(1)]] * stacks.calls_at_once(), [variable])


def test_linear_scaling_is_not_scaled_again():
    schedule = tf_adasum.schedules.LinearScalingWarmup(0.1, scale=4, total_steps=100)
    inner = SGD(schedule)
    with pytest.raises(ValueError, match="without LinearScalingWarmup"):
        AdaScale(inner)
    assert inner.get_config()["learning_rate"]["config"]["scale"] == 4  # left as it was


def test_keras_knows_the_classes_in_a_new_process():
    names = ["AdaScale", "DeltaAdasum", "LAMB", "LinearScalingWarmup", "GainTracker"]
    code = (
        "import keras, tf_adasum\n"
        f"for name in {names}: assert keras.saving.get_registered_object('tf_adasum>' + name), name"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_schedule_of_ints_has_fractions(two_gradients):
    ints = keras.optimizers.schedules.PiecewiseConstantDecay([100], [1, 0])
    optimizer = AdaScale(accumulating(learning_rate=ints))
    stepped(optimizer, gradients_of(2))
    assert optimizer.gain > 1.01
    np.testing.assert_allclose(optimizer.effective_learning_rate, optimizer.gain, rtol=1e-6)
