"""What AdaScale and DeltaAdasum have in common, on one replica; and how optimizers are saved."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions
from support.two_variables import SHAPES, assert_equal, values_of, variables_of
from support.two_variables import model_of as compiled

import tf_adasum
from tf_adasum import rules
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
STEPS = 6
pytestmark = pytest.mark.filterwarnings("ignore:AdaScale around")

WRAPPERS = {
    "AdaScale": AdaScale,
    "DeltaAdasum": DeltaAdasum,
    "4 local steps": functools.partial(DeltaAdasum, local_steps=4),
}


@pytest.fixture(params=WRAPPERS)
def wrapper(request):
    return WRAPPERS[request.param]


@pytest.fixture(scope="module")
def adasum_strategy():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


@pytest.fixture
def strategy(adasum_strategy, wrapper):
    return tf.distribute.get_strategy() if wrapper is AdaScale else adasum_strategy


def stepped(strategy, make, steps=STEPS, after=lambda variables: None):
    """Takes steps on given gradients; returns the optimizer and the variables."""
    with strategy.scope():
        optimizer, variables = make(), variables_of()
        keras_versions.build(optimizer, variables)
    step = tf.function(
        lambda *gradients: keras_versions.apply_in(strategy, optimizer, gradients, variables)
    )
    for number in range(1, steps + 1):
        step(*map(tf.constant, values_of(number)))
        after(variables)
    return optimizer, variables


X = np.random.default_rng(8).standard_normal([20, 3]).astype("float32")
Y = X[:, :1] * 2


def model_of(optimizer):
    return compiled(optimizer, run_eagerly=keras_versions.RUNS_EAGERLY)


def fit(model, epochs, **options):
    return model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["sgd", SGD])
def test_another_object_than_an_optimizer_is_refused(wrapper, given):
    with pytest.raises(ValueError, match=r"must be a Keras optimizer, .* Received: optimizer="):
        wrapper(given)


@pytest.mark.parametrize("inner", [AdaScale, DeltaAdasum])
def test_a_wrapper_in_a_wrapper_is_refused(wrapper, inner):
    name, optimizer = wrapper(SGD()).__class__.__name__, SGD()
    message = rf"{name} wraps one optimizer, not .* another wrapper.* Received.*{inner.__name__}\("
    with pytest.raises(ValueError, match=message):
        wrapper(inner(optimizer))
    with pytest.raises(ValueError, match=f"already wrapped: pass a new optimizer to {name}"):
        wrapper(optimizer)
    with pytest.raises(ValueError, match=rf"LossScaleOptimizer\({name}\(optimizer\)\)"):
        wrapper(keras_versions.LossScaleOptimizer(SGD()))


def test_the_inner_optimizer_alone_is_refused():
    inner = SGD(0.1)
    AdaScale(inner)
    with pytest.raises(ValueError, match="SGD is wrapped by another optimizer"):
        keras_versions.apply(inner, [[tf.ones(1)]], [keras_versions.Variable([1.0])])


def test_a_step_of_delta_adasum_without_a_strategy_is_refused():
    message = r"under an AdasumMirroredStrategy\(\), whose default .* Received: no strategy"
    with pytest.raises(ValueError, match=message):
        DeltaAdasum(SGD()).apply([tf.ones(1)], [keras_versions.Variable([1.0])])


OF_MEAN = r"AdasumMirroredStrategy\(aggregation='mean'\).* Received: .*[aA]dasum"


@pytest.mark.parametrize(
    ("cls", "rule", "message"),
    [
        (AdaScale, "adasum", OF_MEAN),
        (DeltaAdasum, None, "Received: MirroredStrategy"),
        (DeltaAdasum, "mean", r"Received: AdasumMirroredStrategy with .*[mM]ean"),
        (DeltaAdasum, rules.AdaCons(rescale=False), r"needs AdaCons\(rescale=True\): .* AdaCons\("),
    ],
)
def test_strategies_with_other_rules_are_refused(cls, rule, message):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    if rule is not None:
        strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
    optimizer = cls(SGD())
    with strategy.scope():
        for call in (lambda: cls(SGD()), lambda: optimizer.build(variables_of())):
            with pytest.raises(ValueError, match=message):
                call()


# ---- steps -------------------------------------------------------------------------------------

EMA = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
INNER = {
    "momentum": lambda: SGD(0.1, momentum=0.9, weight_decay=0.1),
    "clipnorm": lambda: SGD(0.1, clipnorm=0.5),
    "schedule": lambda: SGD(SCHEDULE, momentum=0.9),
    "callable": lambda: SGD(lambda: 0.1),
    "adam": lambda: Adam(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lamb": lambda: LAMB(0.1, weight_decay=0.1),
    "legacy": lambda: keras_versions.legacy_optimizer("Adam", 0.1),
    "muon": lambda: keras.optimizers.Muon(0.1),
}
MARKS = {
    "nadam": keras_versions.needs_nadam,
    "muon": pytest.mark.keras3_only("Keras 2 has no Muon"),
}


@pytest.mark.parametrize("name", keras_versions.marked(INNER, MARKS))
def test_one_gradient_per_step_is_the_inner_optimizer_alone(wrapper, strategy, name):
    _, expected = stepped(strategy, INNER[name])
    optimizer, actual = stepped(strategy, lambda: wrapper(INNER[name]()))
    assert_equal(actual, expected)
    assert np.abs(actual[0].numpy() - values_of(0)[0]).max() > 1e-3
    assert optimizer.iterations.numpy() == STEPS
    if wrapper is AdaScale:
        assert optimizer.gain == 1 == optimizer.scale and optimizer.scale_invariant_steps == STEPS


@pytest.mark.parametrize("overwrite", [None, 2])
def test_moving_averages_with_local_steps_count_combinations(adasum_strategy, overwrite):
    """A plain optimizer; after every third step one more term of the average, by hand."""
    strategy, averages, numbers = adasum_strategy, [], iter(range(1, 14))

    def average(variables):
        nonlocal averages
        combinations, others = divmod(next(numbers), 3)
        if others:
            return
        now = [variable.numpy() for variable in variables]
        before = averages or (values_of(0) if keras_versions.AVERAGES_START_BEFORE else now)
        averages = [0.7 * a + 0.3 * v for a, v in zip(before, now, strict=True)]
        if overwrite and combinations % overwrite == 0:
            for variable, value in zip(variables, averages, strict=True):
                variable.assign(value)

    def assert_close(actual, expected):  # float32, in another order of operations
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), np.asarray(other), rtol=1e-5, atol=1e-6)

    _, expected = stepped(strategy, lambda: SGD(0.1, momentum=0.9), 13, after=average)
    ema = EMA | {"ema_overwrite_frequency": overwrite}
    inner = functools.partial(SGD, 0.1, momentum=0.9, **ema)
    optimizer, actual = stepped(strategy, lambda: DeltaAdasum(inner(), local_steps=3), 13)
    assert (optimizer._step.taken.numpy(), optimizer._step.combinations.numpy()) == (1, 4)
    assert_close(actual, expected)
    with strategy.scope():
        optimizer.finalize_variable_values(actual)
    assert_close(actual, averages)


@pytest.mark.keras3_only("Keras 2 has no SwapEMAWeights")
@pytest.mark.parametrize(
    ("wrapper", "wrapped_again"), [(AdaScale, False), (AdaScale, True), (DeltaAdasum, True)]
)
def test_the_validation_uses_the_moving_averages(wrapper, strategy, wrapped_again):
    losses = []
    for wrap in (lambda optimizer: optimizer, wrapper):
        with strategy.scope():
            optimizer = wrap(SGD(0.02, use_ema=True, ema_momentum=0.9))
            if wrapped_again:
                optimizer = keras_versions.LossScaleOptimizer(optimizer, initial_scale=1)
            model = model_of(optimizer)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        losses.append(fit(model, 2, validation_data=(X, Y), callbacks=[swap]).history["val_loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_callbacks_set_the_learning_rate(wrapper, strategy):
    with strategy.scope():
        model = model_of(wrapper(SGD(0.04)))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    rates = fit(model, 3, callbacks=[halve]).history[keras_versions.LEARNING_RATE_IN_LOGS]
    np.testing.assert_allclose(rates, [0.02, 0.01, 0.005], rtol=1e-6)


# ---- the interface of an optimizer -------------------------------------------------------------


def test_variables_are_excluded_from_weight_decay():
    optimizer, variables = AdaScale(SGD(0.1, weight_decay=0.5)), variables_of()
    optimizer.exclude_from_weight_decay(var_list=variables[1:], var_names=["none"])
    optimizer.apply_gradients(zip(map(tf.zeros, SHAPES), variables, strict=True))
    assert np.abs(variables[0].numpy() - values_of(0)[0]).max() > 1e-3
    assert_equal(variables[1:], values_of(0)[1:])


# ---- configuration and state -------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, SCHEDULE], ids=["float", "schedule"])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (AdaScale, {"scale": 8.5, "smoothing": 0.25, "debias": False, "name": "mine"}),
        (DeltaAdasum, {"local_steps": 3, "name": "mine"}),
    ],
)
def test_configuration(cls, options, rate):
    inner = SGD(rate, momentum=0.5, clipnorm=1.0)
    expected = {"optimizer": keras.saving.serialize_keras_object(inner), **options}
    optimizer = cls(inner, **options)
    config = keras.saving.serialize_keras_object(optimizer)
    assert config["registered_name"] == f"tf_adasum>{cls.__name__}"
    for each in (
        optimizer,
        cls.from_config(optimizer.get_config()),
        keras.saving.deserialize_keras_object(config),
        keras.optimizers.get(config),
    ):
        assert each.get_config() == expected and type(each) is cls
        assert each.inner_optimizer.momentum == 0.5 and each.name == options["name"]


def adascale(rate):
    return AdaScale(keras_versions.accumulating(SGD, rate, 2, momentum=0.9), smoothing=0.7)


def lamb():
    return LAMB(SCHEDULE, weight_decay=0.1, exclude_from_weight_decay="bias")


# Ways to resume with a saved model: each gets the model, a folder, and a function that makes it.


def from_model(model, folder, make):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def from_weights(model, folder, make):
    model.save_weights(folder / "model.weights.h5")
    again = make()
    again.optimizer.build(again.trainable_variables)
    again.load_weights(folder / "model.weights.h5")
    return again


def from_checkpoint(model, folder, make):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "checkpoint")
    again = make()
    again.optimizer.build(again.trainable_variables)
    status = tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    status.assert_consumed()
    return again


RESUMED = {
    "AdaScale": lambda: adascale(0.05),
    "AdaScale with a schedule": lambda: adascale(SCHEDULE),
    "DeltaAdasum": lambda: DeltaAdasum(Adam(0.05), local_steps=3),
    "LAMB": lamb,
    "LAMB in LossScaleOptimizer": lambda: keras_versions.LossScaleOptimizer(lamb()),
}


@pytest.mark.parametrize(
    "name",
    keras_versions.marked(
        RESUMED, {n: keras_versions.needs_state_of_lamb for n in RESUMED if "LAMB" in n}
    ),
)
@pytest.mark.parametrize("restart", [from_model, from_weights, from_checkpoint])
def test_a_saved_training_resumes_bit_for_bit(adasum_strategy, name, restart, tmp_path):
    """It stops in the middle of an accumulation, and between two combinations."""

    def make():
        return model_of(RESUMED[name]())

    def five_batches(model):
        for start in range(0, 20, 4):
            model.train_on_batch(X[start : start + 4], Y[start : start + 4])

    def state_of(model):
        variables = [*model.weights, *keras_compat.all_variables(model.optimizer)]
        return [np.array(variable.numpy()) for variable in variables]

    accumulating = keras_versions.gradients_per_step(2 if "AdaScale" in name else 1)
    with adasum_strategy.scope() if name == "DeltaAdasum" else accumulating:
        unbroken = make()
        five_batches(unbroken)
        resumed = restart(unbroken, tmp_path, make)
        before = state_of(unbroken)
        assert_equal(state_of(resumed), before)
        for model in (unbroken, resumed):
            five_batches(model)
    assert_equal(state_of(resumed), state_of(unbroken))
    assert np.abs(state_of(resumed)[0] - before[0]).max() > 1e-4


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: AdaScale(SGD(0.1), scale=16), "mean"),
        (lambda: DeltaAdasum(SGD(0.1), local_steps=2), "adasum"),
    ],
    ids=["AdaScale", "DeltaAdasum"],
)
def test_a_model_trained_on_replicas_is_loaded_without(make, rule, tmp_path):
    """For `predict`, on a machine with one device."""
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule).scope():
        model = model_of(make())
        model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(loaded.get_weights(), model.get_weights())
    assert_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


@pytest.mark.parametrize("name", ["clipnorm", "use_ema", "gradient_accumulation_steps"])
def test_options_are_those_of_the_inner_optimizer(name):
    inner = SGD(0.1)
    optimizer = AdaScale(inner)
    setattr(inner, name, 3)
    assert getattr(optimizer, name) == 3
    setattr(optimizer, name, 4)
    assert getattr(inner, name) == 4
