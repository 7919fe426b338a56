"""Virtual replicas of one device train as that many replicas, see the oracle in NumPy."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import optimizer_oracles, oracle

import tf_adasum
from tf_adasum.replicas.virtual_replicas import validated_count

pytestmark = pytest.mark.keras3_only("virtual replicas need Keras 3")

ROWS, FEATURES, RATE = 4, 5, 0.05


@pytest.fixture(scope="module", params=[6, 8])
def strategy(request):
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], virtual_replicas=request.param)


def make(count, **arguments):
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], virtual_replicas=count, **arguments)


def data(rows, seed=0):
    random = np.random.RandomState(seed)
    x = random.normal(size=[rows, FEATURES]).astype("float32")
    return x, (x[:, :1] * x[:, 1:2] + 0.1).astype("float32")


def linear(strategy, optimizer=None, layers=(), **options):
    with strategy.scope():
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input([FEATURES]), *layers, dense])
        model.compile(optimizer or keras.optimizers.SGD(RATE), "mse", jit_compile=False, **options)
    return model


def bounds(rows, replicas):
    """As TensorFlow divides a batch."""
    return [min(number * -(-rows // replicas), rows) for number in range(replicas + 1)]


def expected_weights(x, y, replicas, combine=oracle.adasum, clip=None):
    """The kernel and the bias after SGD, by formulas."""
    weights = [np.zeros([FEATURES, 1]), np.zeros([1])]
    for start in range(0, len(x), ROWS * replicas):
        rows, targets = x[start : start + ROWS * replicas], y[start : start + ROWS * replicas]
        found = []
        ends = bounds(len(rows), replicas)
        for begin, end in itertools.pairwise(ends):
            own, n = rows[begin:end].astype("float64"), max(end - begin, 1)
            error = own @ weights[0] + weights[1] - targets[begin:end]
            pair = [2 * own.T @ error / n, 2 * error.sum(0) / n]
            if clip:
                norm = np.sqrt(sum(np.sum(each**2) for each in pair))
                pair = [each * min(1, clip / norm) for each in pair]
            found.append(pair)
        for variable, gradients in enumerate(zip(*found, strict=True)):
            shape = weights[variable].shape
            step = combine([each.ravel() for each in gradients]).reshape(shape)
            weights[variable] = weights[variable] - RATE * step
    return weights


def assert_weights(model, expected):
    for own, one in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(own, one, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("missing", "clip", "steps_per_execution"),
    [(0, None, 1), (1, None, 1), (13, None, 1), (22, None, 1), (0, 0.3, 1), (0, None, 2)],
)
def test_fit(strategy, missing, clip, steps_per_execution):
    """With a last batch that does not fill all; clipping is per virtual replica."""
    replicas = strategy.num_virtual_replicas
    sgd, options = keras.optimizers.SGD(RATE, global_clipnorm=clip), {"metrics": ["mae"]}
    model = linear(strategy, sgd, steps_per_execution=steps_per_execution, **options)
    x, y = data(4 * ROWS * replicas - missing)
    history = model.fit(x, y, batch_size=ROWS * replicas, shuffle=False, verbose=0).history
    assert_weights(model, expected_weights(x, y, replicas, clip=clip))
    assert int(model.optimizer.iterations.numpy()) == 4
    assert history.keys() == {"loss", "mae"}


def test_mean_is_one_device_with_the_whole_batch():
    strategy = make(4, aggregation="mean")
    model, (x, y) = linear(strategy), data(2 * ROWS * 4 - 5)
    model.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0)
    alone = linear(tf.distribute.get_strategy())
    alone.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0)
    assert_weights(model, alone.get_weights())


def test_each_virtual_replica_drops_other_units(strategy):
    masks = []

    class Noting(keras.layers.Dropout):
        def call(self, inputs, training=False):
            outputs = super().call(inputs, training)
            tf.py_function(lambda own: masks.append(own.numpy() == 0), [outputs], [])
            return outputs

    replicas = strategy.num_virtual_replicas
    model = linear(strategy, layers=[Noting(0.5, seed=1)])
    model.fit(np.ones([ROWS * replicas, FEATURES]), np.ones([ROWS * replicas, 1]),
              batch_size=ROWS * replicas, verbose=0)  # fmt: skip
    assert len({mask.tobytes() for mask in masks}) == len(masks) == replicas


def test_a_custom_loop(strategy):
    replicas = strategy.num_virtual_replicas
    model, (x, y) = linear(strategy), data(ROWS * replicas)

    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    @tf.function
    def step(x, y):
        return strategy.run(strategy.in_virtual_replicas(train_step), args=(x, y))

    loss = step(x, y)
    assert_weights(model, expected_weights(x, y, replicas))
    np.testing.assert_allclose(loss, np.mean(np.square(y)), rtol=1e-5)
    with pytest.raises(RuntimeError, match="in_virtual_replicas"):
        strategy.run(train_step, args=(x, y))


def test_own_train_step_with_own_logs(strategy):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"own": loss}

    replicas = strategy.num_virtual_replicas
    with strategy.scope():
        model = Own()
        model.compile(keras.optimizers.SGD(RATE))
    x, y = data(ROWS * replicas)
    history = model.fit(x, y, batch_size=ROWS * replicas, shuffle=False, verbose=0).history
    assert_weights(model, expected_weights(x, y, replicas))
    np.testing.assert_allclose(history["own"], [np.mean(np.square(y))], rtol=1e-5)


def test_a_gradient_that_is_not_finite_names_the_micro_batch():
    strategy = make(4, on_nonfinite="raise")
    model, (x, y) = linear(strategy), data(ROWS * 4)
    x[2 * ROWS + 1] = np.nan
    with pytest.raises(FloatingPointError, match=r"its replica 0, micro-batch 2: .*kernel"):
        model.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0)


@pytest.mark.parametrize("guard", ["skip", "loss scaling"])
@pytest.mark.parametrize("micro_batch", [0, 2, 3])
def test_such_an_update_is_left_out(guard, micro_batch):
    strategy = make(4, on_nonfinite="skip" if guard == "skip" else "propagate")
    sgd = keras.optimizers.SGD(RATE)
    scaled = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=64.0)
    model, (x, y) = linear(strategy, sgd if guard == "skip" else scaled), data(2 * ROWS * 4)
    x[ROWS * micro_batch + 1] = np.inf
    model.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0)
    assert_weights(model, expected_weights(x[ROWS * 4 :], y[ROWS * 4 :], 4))


def test_adascale_counts_virtual_replicas():
    strategy = make(4, aggregation="mean")
    with strategy.scope():
        optimizer = tf_adasum.optimizers.AdaScale(keras.optimizers.SGD(RATE))
    model, (x, y) = linear(strategy, optimizer), data(ROWS * 4)
    x, y = x + 1, y + 2  # gradients with a part in common
    model.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0)
    assert optimizer.scale == 4
    kernels, biases = [], []
    for own, targets in zip(np.split(x.astype("float64"), 4), np.split(y, 4), strict=True):
        kernels.append(-2 * own.T @ targets / ROWS)
        biases.append(-2 * targets.mean(0))
    expected = optimizer_oracles.AdaScaleOracle(np.zeros(FEATURES + 1), RATE, 4)
    expected.step(np.concatenate([np.reshape(kernels, [4, -1]), biases], axis=1))
    assert 1 < expected.gain < 4
    np.testing.assert_allclose(float(optimizer.gain), expected.gain, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1, tf_adasum.rules.Adasum(), None), "must be an int"),
        ((8, 1, tf_adasum.rules.AdaCons(), None), "AdaCons"),
        ((8, 1, tf_adasum.rules.Adasum(), "mean"), "local_reduction"),
        ((14, 3, tf_adasum.rules.Adasum(), None), "virtual_replicas=15, or a number"),
    ],
)
def test_refused_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        validated_count(*arguments)
    assert validated_count(None, 3, tf_adasum.rules.AdaCons(), None) == 3


def test_what_cannot_be_supported_says_so():
    strategy = make(4)
    x, y = data(ROWS * 4)
    model = linear(strategy, keras.optimizers.SGD(RATE, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        model.fit(x, y, batch_size=ROWS * 4, verbose=0)
    with pytest.raises(RuntimeError, match="in_virtual_replicas"):
        _ = strategy.gradient_reduction
    model = linear(strategy, layers=[keras.layers.BatchNormalization(synchronized=True)])
    with pytest.raises(RuntimeError, match="synchronized BatchNormalization"):
        model.fit(x, y, batch_size=ROWS * 4, verbose=0)
    other = keras.optimizers.SGD(RATE)

    def two_updates(x):
        for optimizer in (model.optimizer, other):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

    model = linear(strategy)
    with pytest.raises(ValueError, match="only once"):
        strategy.run(strategy.in_virtual_replicas(two_updates), args=(tf.constant(x),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 2}, "local_steps=1"),
        ({"is_scaled": True}, "no LossScaleOptimizer"),
        ({"on_nonfinite": "skip"}, "on_nonfinite='raise'"),
    ],
)
def test_steps_of_delta_adasum_that_cannot_be_undone(options, message):
    (x, y), action = data(ROWS * 4), options.get("on_nonfinite", "propagate")
    strategy = make(4, on_nonfinite=action)
    with strategy.scope():
        optimizer = tf_adasum.optimizers.DeltaAdasum(
            keras.optimizers.Adam(), local_steps=options.get("local_steps", 1)
        )
        if "is_scaled" in options:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises((ValueError, RuntimeError), match=message):
        linear(strategy, optimizer).fit(x, y, batch_size=ROWS * 4, verbose=0)


@pytest.mark.parametrize("saved_on", [4, 2])
def test_the_slots_of_all_virtual_replicas_are_saved(saved_on, tmp_path):
    def trained(count):
        with (strategy := make(count)).scope():
            adam = tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Adam(0.1))
        model, (x, y) = linear(strategy, adam), data(ROWS * count)
        model.fit(x, y, batch_size=ROWS * count, verbose=0)
        return model

    before, model, path = trained(saved_on), trained(4), tmp_path / "saved.keras"
    before.save(path)
    with make(4).scope():
        after = keras.models.load_model(path)
    for own, loaded in zip(before.optimizer.variables, after.optimizer.variables, strict=True):
        rows = np.resize(own, loaded.shape)
        np.testing.assert_array_equal(loaded, rows)
        if "virtual" in own.path and own.shape[1:] == (FEATURES, 1):
            assert len(np.unique(rows, axis=0)) == saved_on
    assert len(model.optimizer.variables) == len(after.optimizer.variables)


def test_the_slots_of_a_replica_keep_no_nan_after_an_error():
    strategy = make(4, on_nonfinite="raise")
    with strategy.scope():
        adam = tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Adam(0.1))
    model, (x, y) = linear(strategy, adam), data(ROWS * 4)
    bad = np.where(np.arange(len(x))[:, None] < ROWS, np.nan, x)
    with pytest.raises(FloatingPointError):
        model.fit(bad, y, batch_size=ROWS * 4, shuffle=False, verbose=0)
    model.fit(x, y, batch_size=ROWS * 4, verbose=0)
    for variable in [*model.optimizer.variables, *model.variables]:
        assert np.isfinite(variable).all(), variable.path


def test_the_tracker_measures_virtual_replicas():
    strategy = make(4)
    model, (x, y) = linear(strategy), data(ROWS * 4)
    tracker = tf_adasum.callbacks.OrthogonalityTracker()
    history = model.fit(x, y, batch_size=ROWS * 4, shuffle=False, verbose=0, callbacks=[tracker])
    parts = zip(np.split(x.astype("float64"), 4), np.split(y, 4), strict=True)
    found = [(-2 * own.T @ targets / ROWS, -2 * targets.mean(0)) for own, targets in parts]
    separate, combined, terms = np.zeros(2), np.zeros(2), np.zeros([2, 2])
    for variable in range(2):
        rows = np.array([each[variable].ravel() for each in found])
        gram = rows @ rows.T
        separate[variable] = np.trace(gram)
        combined[variable] = np.sum(oracle.adasum(rows) ** 2)
        terms[:, variable] = np.trace(gram) / 4, (gram.sum() - np.trace(gram)) / 12
    expected = [*(combined / separate), combined.sum() / separate.sum()]
    np.testing.assert_allclose(tracker.values[0], expected, rtol=1e-4)
    np.testing.assert_allclose(tracker.gram_terms[0], terms, rtol=1e-4)
    assert 1 <= history.history["progress"][0] <= 4
    estimate = tracker.estimate([2, 4, 8])
    assert estimate[2] > estimate[4] == 1 > estimate[8]


def test_an_estimate_counts_steps_that_were_not_measured():
    strategy = make(4)
    model, (x, y) = linear(strategy), data(3 * ROWS * 4)
    tracker = tf_adasum.callbacks.OrthogonalityTracker(log_freq=2)
    model.fit(x, y, batch_size=ROWS * 4, verbose=0, callbacks=[tracker])
    assert tracker.steps == [2]
    assert tracker.estimate([4]) == {4: 3}


@pytest.mark.parametrize(("rule", "is_known"), [("adasum", False), ("mean", True)])
def test_evaluate_sums_over_the_rows_of_all(rule, is_known):
    strategy = make(4, aggregation=rule)
    with strategy.scope():
        model = keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1)])
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"), jit_compile=False)
    x, y = data(2 * ROWS * 4)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS * 4, drop_remainder=is_known)
    found = model.evaluate(rows, verbose=0)
    weights = [each.astype("float64") for each in model.get_weights()]
    errors = (x @ weights[0] + weights[1] - y) ** 2
    np.testing.assert_allclose(found, errors.sum() / 2, rtol=1e-5)  # the mean of two batches
