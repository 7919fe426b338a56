"""DeltaAdasum on one replica: what it refuses, what it is composed with, how it is saved.

tests/multi_worker/test_delta_adasum_on_replicas.py tests how several replicas combine.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import stacks, ways_to_restart

import tf_adasum
from tf_adasum import optimizers, rules
from tf_adasum.optimizers import AdaScale, DeltaAdasum

Adam = keras.optimizers.Adam
SGD = keras.optimizers.SGD
STEPS = 6


@pytest.fixture(scope="module")
def strategies():
    return {
        str(rule): tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
        for rule in ("adasum", "mean", "sum", "adacons", rules.AdaCons(rescale=True))
    }


@pytest.fixture
def strategy(strategies):
    return strategies["adasum"]


def values_of(seed):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype("float32") for shape in ((4, 3), (5,))]


def variables_of():
    return [stacks.Variable(value, name=f"v{index}") for index, value in enumerate(values_of(0))]


def stepped(strategy, make, steps=STEPS, scale=1.0, after=lambda variables: None):
    """Takes steps on given gradients; returns the optimizer and the weights."""
    with strategy.scope():
        optimizer, variables = make(), variables_of()
        stacks.build(optimizer, variables)

    @tf.function
    def step(*gradients):
        stacks.apply_in(strategy, optimizer, gradients, variables)

    for number in range(1, steps + 1):
        step(*(tf.constant(scale * gradient) for gradient in values_of(number)))
        after(variables)
    return optimizer, variables


def values(variables):
    return [np.array(variable.numpy()) for variable in variables]


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def model_of(strategy, make, **options):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([3]), *layers])
        model.compile(make(), "mse", **options)
    return model


X = np.random.default_rng(8).standard_normal([20, 3]).astype("float32")
Y = X[:, :1] * 2


def fit(model, epochs=1, **options):
    return model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


def taken(optimizer):
    """Local steps since the last combination, and the number of combinations."""
    return int(optimizer._step.taken.numpy()), int(optimizer._step.combinations.numpy())


# ---- what it refuses ---------------------------------------------------------------------------


class TestRefuses:
    @pytest.mark.parametrize("given", ["adam", None, Adam])
    def test_what_is_no_optimizer(self, given):
        with pytest.raises(ValueError, match=r"of DeltaAdasum must be a Keras .* Received: op"):
            DeltaAdasum(given)

    @pytest.mark.parametrize("wrapper", [AdaScale, DeltaAdasum])
    def test_wrappers(self, wrapper):
        inner = SGD()
        wrapped = wrapper(inner)
        with pytest.raises(
            ValueError, match=rf"cannot wrap another.* Received.*{wrapped.name}|Ada|"
        ):
            DeltaAdasum(wrapped)
        with pytest.raises(ValueError, match="wrapped: pass a new optimizer to DeltaAdasum"):
            DeltaAdasum(inner)
        with pytest.raises(ValueError, match=r"LossScaleOptimizer\(DeltaAdasum\(optimizer\)\)"):
            DeltaAdasum(stacks.LossScaleOptimizer(SGD()))

    @pytest.mark.parametrize("local_steps", [0, -1, 1.0, True, None, "2"], ids=str)
    def test_local_steps(self, local_steps):
        message = f"`local_steps` must be an int, 1 or more.* Received: local_steps={local_steps!r}"
        with pytest.raises(ValueError, match=message):
            DeltaAdasum(SGD(), local_steps=local_steps)

    def test_no_strategy(self):
        optimizer, variables = DeltaAdasum(SGD()), variables_of()
        message = r"under an AdasumMirroredStrategy\(\), whose default .* Received: no strategy"
        with pytest.raises(ValueError, match=message):
            optimizer.apply([tf.constant(gradient) for gradient in values_of(1)], variables)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("stock", "Received: MirroredStrategy"),
            ("mean", r"Received: AdasumMirroredStrategy with .*[mM]ean"),
            ("adacons", r"needs AdaCons\(rescale=True\): .* Received: AdaCons\("),
        ],
    )
    def test_strategies(self, strategies, name, message):
        stock = tf.distribute.MirroredStrategy(["CPU:0"])
        strategy = stock if name == "stock" else strategies[name]
        with strategy.scope(), pytest.raises(ValueError, match=message):
            DeltaAdasum(SGD())
        optimizer = DeltaAdasum(SGD())
        with strategy.scope(), pytest.raises(ValueError, match=message):
            optimizer.build(variables_of())


@pytest.mark.parametrize("rule", ["adasum", "sum", repr(rules.AdaCons(rescale=True))])
def test_accepts_rules_of_undivided_gradients(strategies, rule):
    with strategies[rule].scope():
        optimizer = DeltaAdasum(SGD(0.1))
        optimizer.build(variables_of())
    assert optimizer.built


# ---- composition -------------------------------------------------------------------------------

INNER = {
    "momentum": lambda **options: SGD(0.1, momentum=0.9, **options),
    "adam": lambda **options: Adam(0.1, **options),
    "lamb": lambda **options: optimizers.LAMB(0.1, weight_decay=0.1, **options),
    "ftrl": lambda **options: keras.optimizers.Ftrl(0.1, **options),
    "legacy": lambda **options: stacks.legacy_optimizer("Adam", 0.1, **options),
    "muon": lambda **options: keras.optimizers.Muon(0.1, **options),
}


@pytest.mark.parametrize(
    "name", stacks.marked(INNER, {"muon": pytest.mark.keras3_only("Keras 2 has no Muon")})
)
@pytest.mark.parametrize("local_steps", [1, 4])
def test_one_replica_is_the_inner_optimizer(strategy, name, local_steps):
    _, expected = stepped(strategy, INNER[name])
    wrapped, actual = stepped(strategy, lambda: DeltaAdasum(INNER[name](), local_steps=local_steps))
    assert_equal(values(actual), values(expected))
    assert wrapped.iterations.numpy() == STEPS


def test_schedules_count_local_steps(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    _, expected = stepped(strategy, lambda: SGD(schedule))
    wrapped, actual = stepped(strategy, lambda: DeltaAdasum(SGD(schedule), local_steps=4))
    assert_equal(values(actual), values(expected))
    step = STEPS - stacks.RATE_IS_OF_LAST_STEP
    np.testing.assert_allclose(wrapped.learning_rate, 0.1 * 0.5 ** (step / 2), rtol=1e-6)
    with pytest.raises(TypeError, match="not settable"):
        wrapped.learning_rate = 0.1


def test_the_learning_rate_is_that_of_the_inner_optimizer(strategy):
    with strategy.scope():
        optimizer = DeltaAdasum(SGD(0.1))
    optimizer.learning_rate = 0.05
    assert optimizer.learning_rate.numpy() == np.float32(0.05)
    assert optimizer.inner_optimizer.learning_rate.numpy() == np.float32(0.05)
    optimizer.inner_optimizer.learning_rate = 0.025
    assert optimizer.learning_rate.numpy() == np.float32(0.025)


def test_callbacks_set_the_learning_rate(strategy):
    model = model_of(strategy, lambda: DeltaAdasum(SGD(0.04), local_steps=2), run_eagerly=True)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    rates = fit(model, 3, callbacks=[halve]).history[stacks.LEARNING_RATE_IN_LOGS]
    np.testing.assert_allclose(rates, [0.02, 0.01, 0.005], rtol=1e-6)


@pytest.mark.parametrize("local_steps", [1, 2])
class TestLossScaleOptimizer:
    def make(self, local_steps):
        inner = DeltaAdasum(Adam(0.1), local_steps=local_steps)
        return stacks.LossScaleOptimizer(inner, initial_scale=8)

    def test_is_the_optimizer_without_it(self, strategy, local_steps):
        _, expected = stepped(strategy, lambda: Adam(0.1))
        scale = 1.0 if stacks.CALLER_UNSCALES else 8.0
        _, actual = stepped(strategy, lambda: self.make(local_steps), scale=scale)
        assert_equal(values(actual), values(expected))

    def test_a_step_that_overflows_is_none(self, strategy, local_steps):
        outer, variables = stepped(strategy, lambda: self.make(local_steps), scale=np.inf)
        assert_equal(values(variables), values_of(0))
        inner = outer.inner_optimizer
        assert inner.iterations.numpy() == (STEPS if stacks.COUNTS_STEPS_LEFT_OUT else 0)
        assert stacks.loss_scale_of(outer).numpy() == max(8 / 2**STEPS, stacks.LEAST_LOSS_SCALE)
        if local_steps > 1:
            assert taken(inner) == (0, 0)


def test_moving_averages_with_one_local_step_are_those_of_keras(strategy):
    options = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
    plain, expected = stepped(strategy, lambda: Adam(0.1, **options), steps=5)
    wrapped, actual = stepped(strategy, lambda: DeltaAdasum(Adam(0.1, **options)), steps=5)
    assert_equal(values(actual), values(expected))
    with strategy.scope():
        plain.finalize_variable_values(expected)
        wrapped.finalize_variable_values(actual)
    assert_equal(values(actual), values(expected))


@pytest.mark.parametrize("overwrite", [None, 2])
def test_moving_averages_with_local_steps_count_combinations(strategy, overwrite):
    """A plain optimizer; after every third step one more term of the average, by hand."""
    averages, number, combinations = [], 0, 0

    def average(variables):
        nonlocal averages, number, combinations
        number += 1
        if number % 3:
            return
        combinations += 1
        now = values(variables)
        before = averages or (values_of(0) if stacks.AVERAGES_START_BEFORE else now)
        averages = [0.7 * a + 0.3 * v for a, v in zip(before, now, strict=True)]
        if overwrite and combinations % overwrite == 0:
            for variable, value in zip(variables, averages, strict=True):
                variable.assign(value)

    _, expected = stepped(strategy, lambda: SGD(0.1, momentum=0.9), steps=13, after=average)
    options = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": overwrite}
    optimizer, actual = stepped(
        strategy, lambda: DeltaAdasum(SGD(0.1, momentum=0.9, **options), local_steps=3), steps=13
    )
    assert taken(optimizer) == (1, 4)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # float32, other order of operations
    for one, other in zip(values(actual), values(expected), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)
    with strategy.scope():
        optimizer.finalize_variable_values(actual)
    for one, other in zip(values(actual), averages, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.keras3_only("Keras 2 has no SwapEMAWeights")
@pytest.mark.parametrize("wrapped_again", [False, True], ids=["alone", "in LossScaleOptimizer"])
def test_swap_ema_weights(strategy, wrapped_again):
    losses = []
    for is_delta in (False, True):

        def make(is_delta=is_delta):
            optimizer = SGD(0.02, use_ema=True, ema_momentum=0.9)
            optimizer = DeltaAdasum(optimizer) if is_delta else optimizer
            if wrapped_again:
                optimizer = stacks.LossScaleOptimizer(optimizer, initial_scale=1)
            return optimizer

        model = model_of(strategy, make, run_eagerly=True)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        history = fit(model, 2, validation_data=(X, Y), callbacks=[swap]).history
        losses.append(history["val_loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


# ---- fit ---------------------------------------------------------------------------------------


def test_local_steps_that_do_not_divide_an_epoch(strategy):
    """Five steps: a combination after two, four, and at the end of the epoch."""
    model = model_of(strategy, lambda: DeltaAdasum(Adam(0.05), local_steps=2))
    plain = model_of(strategy, lambda: Adam(0.05))
    for one in (model, plain):
        fit(one, epochs=2)
    assert taken(model.optimizer) == (0, 6)
    assert model.optimizer.iterations.numpy() == 10
    assert_equal(model.get_weights(), plain.get_weights())
    assert model.evaluate(X, Y, verbose=0) == plain.evaluate(X, Y, verbose=0)


def test_evaluate_and_predict_combine_first(strategy):
    model = model_of(strategy, lambda: DeltaAdasum(SGD(0.05), local_steps=4), run_eagerly=True)
    optimizer = model.optimizer
    uses = [
        lambda: model.evaluate(X, Y, verbose=0),
        lambda: model.predict(X, verbose=0),
        optimizer.synchronize,
    ]
    for combinations, use in enumerate(uses):
        model.train_on_batch(X[:4], Y[:4])
        assert taken(optimizer) == (1, combinations)
        use()
        assert taken(optimizer) == (0, combinations + 1)
    optimizer.synchronize()
    assert taken(optimizer) == (0, 3)


def test_synchronize_has_nothing_to_do(strategy):
    DeltaAdasum(SGD(), local_steps=2).synchronize()  # not built
    with strategy.scope():
        optimizer = DeltaAdasum(SGD())
        optimizer.build(variables_of())
    optimizer.synchronize()  # no local steps


# ---- configuration and state -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"local_steps": 3, "name": "mine"}], ids=str)
def test_configuration(options):
    optimizer = DeltaAdasum(Adam(0.1, beta_1=0.5, clipnorm=1.0), **options)
    config = keras.saving.serialize_keras_object(optimizer)
    for again in (
        DeltaAdasum.from_config(optimizer.get_config()),
        keras.saving.deserialize_keras_object(config),
    ):
        assert again.get_config() == optimizer.get_config()
        assert isinstance(again.inner_optimizer, Adam) and again.inner_optimizer.beta_1 == 0.5
        assert again.local_steps == options.get("local_steps", 1)
        assert again.name == options.get("name", "delta_adasum") and again.clipnorm == 1.0


@pytest.mark.parametrize("restart", ways_to_restart.WAYS)
def test_continues_as_if_it_had_not_stopped(strategy, restart, tmp_path):
    def make():
        return model_of(strategy, lambda: DeltaAdasum(Adam(0.05), local_steps=3), run_eagerly=True)

    def four_batches(model):  # so that it stops between two combinations
        for start in (0, 4, 8, 12):
            model.train_on_batch(X[start : start + 4], Y[start : start + 4])

    def state_of(model):
        return [*model.get_weights(), *values(model.optimizer.variables)]

    unbroken = make()
    four_batches(unbroken)
    with strategy.scope():
        again = restart(unbroken, tmp_path, make)
    assert_equal(state_of(again), state_of(unbroken))
    assert taken(again.optimizer) == (1, 1)
    for model in (unbroken, again):
        four_batches(model)
    assert_equal(state_of(again), state_of(unbroken))


def test_a_trained_model_can_be_loaded_without_a_strategy(strategy, tmp_path):
    """For `predict`, on another machine."""
    model = model_of(strategy, lambda: DeltaAdasum(SGD(0.1), local_steps=2), run_eagerly=True)
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(loaded.get_weights(), model.get_weights())
