"""Virtual replicas of one device train as that many replicas, see the oracle in NumPy."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import optimizer_oracles, oracle, two_variables

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


def sgd():
    return keras.optimizers.SGD(RATE)


def delta_adasum():
    return tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Adam(0.1))


def linear(strategy, optimizer=sgd, **options):
    options = {"features": FEATURES, "jit_compile": False, **options}
    return two_variables.linear(strategy, optimizer, **options)


def fit(model, x, y, **options):
    """Train with ROWS rows on each virtual replica; return the logs."""
    rows = ROWS * model.distribute_strategy.num_virtual_replicas
    return model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, **options).history


def update(model, x, y):
    """Take a step as users write it."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)
    return loss


START = [np.zeros([FEATURES, 1]), np.zeros([1])]


def gradients_of(x, y, replicas, weights=START):
    """For each replica the gradients of kernel and bias, by formulas."""
    ends = [min(number * -(-len(x) // replicas), len(x)) for number in range(replicas + 1)]
    found = []
    for begin, end in itertools.pairwise(ends):  # as TensorFlow divides a batch
        own, n = x[begin:end].astype("float64"), max(end - begin, 1)
        error = own @ weights[0] + weights[1] - y[begin:end]
        found.append([2 * own.T @ error / n, 2 * error.sum(0) / n])
    return found


def assert_trained(model, x, y, replicas, batch, clip=np.inf):
    """The kernel and the bias are those after SGD, by formulas."""
    weights = START
    for start in range(0, len(x), batch):
        here = slice(start, start + batch)
        found = gradients_of(x[here], y[here], replicas, weights)
        norms = [np.sqrt(sum(np.sum(each**2) for each in pair)) for pair in found]
        parts = [min(1, clip / max(norm, 1e-30)) for norm in norms]
        found = [[part * each for each in pair] for part, pair in zip(parts, found, strict=True)]
        steps = map(oracle.adasum, zip(*found, strict=True))
        weights = [weight - RATE * step for weight, step in zip(weights, steps, strict=True)]
    for own, one in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, one, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("missing", "clip", "steps_per_execution"),
    [(0, None, 1), (1, None, 1), (13, None, 1), (22, None, 1), (0, 0.3, 1), (0, None, 2)],
)
def test_fit(strategy, missing, clip, steps_per_execution):
    """With a last batch that does not fill all; clipping is per virtual replica."""
    replicas = strategy.num_virtual_replicas
    options = {"steps_per_execution": steps_per_execution, "metrics": ["mae"]}
    model = linear(strategy, lambda: keras.optimizers.SGD(RATE, global_clipnorm=clip), **options)
    x, y = data(4 * ROWS * replicas - missing)
    assert fit(model, x, y).keys() == {"loss", "mae"}
    assert_trained(model, x, y, replicas, ROWS * replicas, clip or np.inf)
    assert int(model.optimizer.iterations.numpy()) == 4


def test_mean_is_one_device_with_the_whole_batch():
    model, (x, y) = linear(make(4, aggregation="mean")), data(2 * ROWS * 4 - 5)
    fit(model, x, y)
    assert_trained(model, x, y, replicas=1, batch=ROWS * 4)


def test_each_virtual_replica_drops_other_units(strategy):
    masks = []

    class Noting(keras.layers.Dropout):
        def call(self, inputs, training=False):
            outputs = super().call(inputs, training)
            tf.py_function(lambda own: masks.append(own.numpy() == 0), [outputs], [])
            return outputs

    replicas = strategy.num_virtual_replicas
    fit(linear(strategy, layers=[Noting(0.5, seed=1)]), *data(ROWS * replicas))
    assert len({mask.tobytes() for mask in masks}) == len(masks) == replicas


@pytest.mark.parametrize(
    ("form", "dense"),
    [
        (tf.constant, tf.identity),
        (tf.sparse.from_dense, tf.sparse.to_dense),
        (tf.RaggedTensor.from_tensor, lambda x: x.to_tensor(shape=[None, FEATURES])),
    ],
    ids=["dense", "sparse", "ragged"],
)
def test_a_custom_loop(strategy, form, dense):
    replicas = strategy.num_virtual_replicas
    model, (x, y) = linear(strategy), data(ROWS * replicas)

    @tf.function
    def step(x, y):
        own = strategy.in_virtual_replicas(lambda x, y: update(model, dense(x), y))
        return strategy.run(own, args=(x, y))

    loss = step(form(x), y)
    assert_trained(model, x, y, replicas, ROWS * replicas)
    np.testing.assert_allclose(loss, np.mean(np.square(y)), rtol=1e-5)
    with pytest.raises(RuntimeError, match="in_virtual_replicas"):
        strategy.run(update, args=(model, x, y))


def test_own_train_step_with_own_logs(strategy):
    class Own(keras.Sequential):
        def train_step(self, data):
            return {"own": update(self, *data)}

    replicas = strategy.num_virtual_replicas
    model, (x, y) = linear(strategy, cls=Own), data(ROWS * replicas)
    logs = fit(model, x, y)
    assert_trained(model, x, y, replicas, ROWS * replicas)
    np.testing.assert_allclose(logs["own"], [np.mean(np.square(y))], rtol=1e-5)


def test_a_gradient_that_is_not_finite_names_the_micro_batch():
    model, (x, y) = linear(make(4, on_nonfinite="raise")), data(ROWS * 4)
    x[2 * ROWS + 1] = np.nan
    with pytest.raises(FloatingPointError, match=r"its replica 0, micro-batch 2: .*kernel"):
        fit(model, x, y)


def scaled():
    return keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=64.0)


@pytest.mark.parametrize(("action", "optimizer"), [("skip", sgd), ("propagate", scaled)])
@pytest.mark.parametrize("micro_batch", [0, 2, 3])
def test_such_an_update_is_left_out(action, optimizer, micro_batch):
    model, (x, y) = linear(make(4, on_nonfinite=action), optimizer), data(2 * ROWS * 4)
    x[ROWS * micro_batch + 1] = np.inf
    fit(model, x, y)
    assert_trained(model, x[ROWS * 4 :], y[ROWS * 4 :], 4, ROWS * 4)


def test_adascale_counts_virtual_replicas():
    model = linear(make(4, aggregation="mean"), lambda: tf_adasum.optimizers.AdaScale(sgd()))
    x, y = data(ROWS * 4)
    x, y = x + 1, y + 2  # gradients with a part in common
    fit(model, x, y)
    assert model.optimizer.scale == 4
    expected = optimizer_oracles.AdaScaleOracle(np.zeros(FEATURES + 1), RATE, 4)
    expected.step([np.append(kernel, bias) for kernel, bias in gradients_of(x, y, 4)])
    assert 1 < expected.gain < 4
    np.testing.assert_allclose(float(model.optimizer.gain), expected.gain, rtol=1e-4)


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
    strategy, (x, y) = make(4), map(tf.constant, data(ROWS * 4))
    model = linear(strategy, lambda: keras.optimizers.SGD(RATE, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        fit(model, x, y)
    with pytest.raises(RuntimeError, match="in_virtual_replicas"):
        _ = strategy.gradient_reduction
    model = linear(strategy, layers=[keras.layers.BatchNormalization(synchronized=True)])
    with pytest.raises(RuntimeError, match="synchronized BatchNormalization"):
        fit(model, x, y)
    models = [linear(strategy), linear(strategy)]

    def two_updates(x, y):
        for each in models:
            update(each, x, y)

    with pytest.raises(ValueError, match="only once"):
        strategy.run(strategy.in_virtual_replicas(two_updates), args=(x, y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 2}, "local_steps=1"),
        ({"is_scaled": True}, "no LossScaleOptimizer"),
        ({"on_nonfinite": "skip"}, "on_nonfinite='raise'"),
    ],
)
def test_steps_of_delta_adasum_that_cannot_be_undone(options, message):
    def optimizer():
        steps, adam = options.get("local_steps", 1), keras.optimizers.Adam()
        own = tf_adasum.optimizers.DeltaAdasum(adam, local_steps=steps)
        return keras.optimizers.LossScaleOptimizer(own) if "is_scaled" in options else own

    strategy = make(4, on_nonfinite=options.get("on_nonfinite", "propagate"))
    with pytest.raises((ValueError, RuntimeError), match=message):
        fit(linear(strategy, optimizer), *data(ROWS * 4))


@pytest.mark.parametrize("saved_on", [4, 2])
def test_the_slots_of_all_virtual_replicas_are_saved(saved_on, tmp_path):
    def trained(count):
        model = linear(make(count), delta_adasum)
        fit(model, *data(ROWS * count))
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
    model, (x, y) = linear(make(4, on_nonfinite="raise"), delta_adasum), data(ROWS * 4)
    with pytest.raises(FloatingPointError):
        fit(model, np.where(np.arange(len(x))[:, None] < ROWS, np.nan, x), y)
    fit(model, x, y)
    for variable in [*model.optimizer.variables, *model.variables]:
        assert np.isfinite(variable).all(), variable.path


def test_the_tracker_measures_virtual_replicas():
    (x, y), tracker = data(ROWS * 4), tf_adasum.callbacks.OrthogonalityTracker()
    logs, found = fit(linear(make(4)), x, y, callbacks=[tracker]), gradients_of(x, y, 4)
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
    assert 1 <= logs["progress"][0] <= 4
    estimate = tracker.estimate([2, 4, 8])
    assert estimate[2] > estimate[4] == 1 > estimate[8]


def test_an_estimate_counts_steps_that_were_not_measured():
    tracker = tf_adasum.callbacks.OrthogonalityTracker(log_freq=2)
    fit(linear(make(4)), *data(3 * ROWS * 4), callbacks=[tracker])
    assert tracker.steps == [2]
    assert tracker.estimate([4]) == {4: 3}


@pytest.mark.parametrize(("rule", "is_known"), [("adasum", False), ("mean", True)])
def test_evaluate_sums_over_the_rows_of_all(rule, is_known):
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model, (x, y) = linear(make(4, aggregation=rule), loss=loss), data(2 * ROWS * 4)
    model.set_weights([np.ones([FEATURES, 1]), np.ones([1])])
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS * 4, drop_remainder=is_known)
    errors = (x.sum(1, keepdims=True) + 1 - y) ** 2
    found = model.evaluate(rows, verbose=0)
    np.testing.assert_allclose(found, errors.sum() / 2, rtol=1e-5)  # the mean of two batches
