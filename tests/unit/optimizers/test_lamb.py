"""LAMB against TensorFlow Addons' (tests/golden), and against its formulas in float64.

Tolerances are parts of the largest element of a variable. float32: a few roundings of 6e-8 in each
of the steps taken here; measured 2e-7. Every mistake that these tests are for is one of 1e-3 and
more: a forgotten bias correction, weight decay at another place, norms of another vector.
"""

import contextlib
import doctest
import json
import pathlib
import re
import subprocess
import sys
import textwrap
import warnings

import pytest

pytest.importorskip(
    "keras", minversion="3"
)  # LAMB of Keras 2 is that of Addons, see test_addons.py

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.optimizers import lamb

LAMB = lamb.LAMB

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden/lamb_addons.json").read_text())

TOLERANCE = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 1e-6, tf.float64: 1e-13}
# Addons takes 1 - β2^t in float32: it is off by up to 6e-8 / 2e-3 = 3e-5, its root by half of that,
# which only the trust ratio takes out again. Steps are up to half of a variable: measured 2e-6.
OF_ADDONS = 1e-5

SHAPES = [(), (1,), (17,), (3, 5), (18011,), (2, 3, 4), (0,), (0, 3)]


def variable(path, value, dtype="float32"):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(tf.cast(value, dtype), dtype=dtype, name=name)


def formulas(
    w,
    gradients,
    *,
    learning_rate,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-6,
    weight_decay=0.0,
    adapts=True,
):
    """The variable after each step, in float64, by the paper."""
    w = np.asarray(w, np.float64)
    first, second, steps = np.zeros_like(w), np.zeros_like(w), []
    for t, gradient in enumerate(np.asarray(gradients, np.float64), start=1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        direction = (first / (1 - beta_1**t)) / (np.sqrt(second / (1 - beta_2**t)) + epsilon)
        direction = direction + weight_decay * w
        lengths = np.linalg.norm(w.ravel()), np.linalg.norm(direction.ravel())
        ratio = lengths[0] / lengths[1] if adapts and min(lengths) > 0 else 1.0
        rate = learning_rate[t - 1] if np.ndim(learning_rate) else learning_rate
        w = w - rate * ratio * direction
        steps.append(w)
    return steps


def assert_close(actual, expected, tolerance):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    largest = np.max(np.abs(expected), initial=0)
    assert np.max(np.abs(actual - expected), initial=0) <= tolerance * largest


def numbers(seed, steps, shape):
    """A variable and its gradients of all steps, of different lengths; float64."""
    random = np.random.RandomState(seed)
    lengths = 10 ** random.uniform(-2, 1, steps)
    gradients = [length * random.standard_normal(shape) for length in lengths]
    return random.standard_normal(shape), np.reshape(gradients, (steps, *shape))


def run(optimizer, variables, gradients, apply=None):
    """Steps on gradients ``[step][variable]``; the variables' values after the last."""
    apply = apply or (lambda own: optimizer.apply(own, variables))
    optimizer.build(variables)
    for own in gradients:
        apply(own)
    return [one.numpy() for one in variables]


# ---- golden values -----------------------------------------------------------------------------


def golden_gradients(case):
    steps = [{p: tf.constant(g, tf.float32) for p, g in own.items()} for own in GOLDEN["gradients"]]
    if case == "sparse":
        sparse = GOLDEN["sparse"]
        for own, rows, indices in zip(steps, sparse["rows"], sparse["indices"], strict=True):
            shape = tf.constant(own[sparse["variable"]].shape)
            rows = tf.constant(rows, tf.float32)
            own[sparse["variable"]] = tf.IndexedSlices(rows, tf.constant(indices), shape)
    return steps


def test_the_golden_values_are_those_of_addons():
    assert GOLDEN["versions"]["tensorflow_addons"] == "0.23.0"
    assert len(GOLDEN["cases"]) == 12
    last_steps = [json.dumps(case["steps"][-1]) for case in GOLDEN["cases"].values()]
    assert len(set(last_steps)) == len(last_steps), "every option changes something"


@pytest.mark.parametrize(
    "case, mode",
    [
        *((case, "eager") for case in GOLDEN["cases"]),
        ("exclude_from_both", "graph"),
        ("exclude_from_both", "xla"),
    ],
)
def test_agrees_with_addons(case, mode):
    golden = GOLDEN["cases"][case]
    gradients = golden_gradients(case)
    rates = GOLDEN["learning_rates"].get(case, [GOLDEN["learning_rate"]] * len(gradients))
    variables = {path: variable(path, value) for path, value in GOLDEN["variables"].items()}
    assert [one.path for one in variables.values()] == list(variables)
    optimizer = LAMB(learning_rate=rates[0], **golden["options"])
    optimizer.build(list(variables.values()))

    def apply(*own):
        optimizer.apply(own, list(variables.values()))

    if mode != "eager":
        apply = tf.function(apply, jit_compile=mode == "xla", reduce_retracing=True)
    for own, rate, expected in zip(gradients, rates, golden["steps"], strict=True):
        optimizer.learning_rate = rate
        apply(*own.values())
        for path, value in expected.items():
            assert_close(variables[path].numpy(), value, OF_ADDONS)
    by_path = {one.path.removeprefix("lamb/"): one.numpy() for one in optimizer.variables}
    for path in variables:
        for name, slot in (("momentum", "m"), ("velocity", "v")):
            actual = by_path[f"{path.replace('/', '_')}_{name}"]
            assert_close(actual, golden[slot][path], TOLERANCE[tf.float32])


# ---- formulas ----------------------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.1},
    "betas": {"beta_1": 0.5, "beta_2": 0.9},
    "no_momentum": {"beta_1": 0, "beta_2": 0},
    "epsilon": {"epsilon": 0.1, "weight_decay": 1},
}


@pytest.mark.parametrize("adapts", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_follows_its_formulas(shape, options, adapts):
    w, gradients = numbers(1, 6, shape)
    excluded = {} if adapts else {"exclude_from_layer_adaptation": "."}
    optimizer = LAMB(learning_rate=0.05, **options, **excluded)
    gradients = np.float32(gradients)
    actual = run(optimizer, [variable("w", w)], [[tf.constant(g)] for g in gradients])
    expected = formulas(np.float32(w), gradients, learning_rate=0.05, adapts=adapts, **options)
    assert_close(actual[0], expected[-1], TOLERANCE[tf.float32])


def test_stays_accurate_over_many_steps(dtype):
    """m and v have to be float32 at least: in bfloat16 v would stop growing in the fifth step.

    The variable is rounded in each step, and follows the formulas from where that has left it.
    The learning rate is exact in float32, as Keras keeps it.
    """
    steps = 60
    w, gradients = numbers(2, steps, (7, 3))
    gradients = tf.cast(gradients, dtype).numpy()
    one = variable("w", w, dtype.name)
    optimizer = LAMB(learning_rate=0.125, exclude_from_layer_adaptation=".")
    optimizer.build([one])
    for step, gradient in enumerate(gradients):
        before = one.numpy().astype(np.float64)
        optimizer.apply([tf.constant(gradient)], [one])
        own = gradients[: step + 1].astype(np.float64)
        after = formulas(0 * before, own, learning_rate=0.125, adapts=False)
        change = after[step] - (after[step - 1] if step else 0)
        assert_close(one.numpy(), before + change, TOLERANCE[dtype])


def test_bias_corrections_are_accurate():
    """With the same gradient in every step m̂ = g and v̂ = g²: all steps are as long as the first.

    Only if 1 - β^t is right: 1 - float32(0.999^2) is off by 1e-5. Here four roundings of 6e-8.
    """
    one = variable("w", [0.0, 0.0])
    optimizer = LAMB(0.125, epsilon=0.0, exclude_from_layer_adaptation=".")
    optimizer.build([one])
    for _ in range(20):
        one.assign([0.0, 0.0])
        optimizer.apply([tf.constant([0.3, -70.0])], [one])
        np.testing.assert_allclose(one.numpy(), [-0.125, 0.125], rtol=1e-6)


def test_norms_of_16_bit_variables_do_not_overflow(dtype):
    """‖w‖² = 1e7 is more than float16 can hold."""
    optimizer = LAMB(learning_rate=0.5, epsilon=0.0)
    w = np.full([1000], 100.0)
    gradient = tf.cast(tf.fill([1000], 0.01), dtype)
    (actual,) = run(optimizer, [variable("w", w, dtype.name)], [[gradient]])
    assert_close(actual, w / 2, TOLERANCE[dtype])


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**10])
def test_the_first_step_knows_no_gradient_scale(scale):
    w, gradients = numbers(3, 1, (4, 3))
    actual = [
        run(LAMB(0.1, epsilon=0.0), [variable("w", w)], [[tf.constant(g, tf.float32)]])[0]
        for g in (gradients[0], scale * gradients[0])
    ]
    assert_close(actual[1], actual[0], TOLERANCE[tf.float32])
    assert np.max(np.abs(actual[0] - w)) > 0.01


def test_zeros_with_an_epsilon_of_zero():
    """0 / 0: rows of an embedding that no batch has touched have no step."""
    optimizer = LAMB(0.1, epsilon=0.0)
    (actual,) = run(optimizer, [variable("w", [1.0, 2.0])], [[tf.constant([0.0, 3.0])]] * 2)
    assert actual[0] == 1.0
    assert actual[1] < 2.0


def test_not_a_number_is_not_hidden():
    (actual,) = run(LAMB(0.1), [variable("w", [1.0, 2.0])], [[tf.constant([np.nan, 3.0])]])
    assert np.isnan(actual).any()


def test_tensorflow_variables():
    """Their names count as paths, without the ":0"."""
    w, gradients = numbers(4, 3, (4,))
    gradients = np.float32(gradients)
    one = tf.Variable(np.float32(w), name="encoder/bias")
    optimizer = LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["r/bias$"])
    run(optimizer, [one], [[tf.constant(g)] for g in gradients])
    expected = formulas(np.float32(w), gradients, learning_rate=0.1, adapts=False)
    assert_close(one.numpy(), expected[-1], TOLERANCE[tf.float32])


# ---- sparse gradients --------------------------------------------------------------------------


def sparse_and_dense(seed, dense_shape, dtype=tf.float32):
    """Four rows, one of them three times; values that add up without rounding."""
    random = np.random.RandomState(seed)
    rows, indices = random.randint(-8, 9, [4, 3]) / 4, [5, 1, 5, 5]
    dense = np.zeros([7, 3])
    np.add.at(dense, indices, rows)
    shape = tf.constant([7, 3]) if dense_shape else None
    sparse = tf.IndexedSlices(tf.cast(rows, dtype), tf.constant(indices), shape)
    return sparse, tf.cast(dense, dtype)


def state_after(gradients, jit_compile):
    """The bits of a table and of its optimizer's variables; None for `jit_compile` is eager."""
    table = variable("table", np.arange(21).reshape(7, 3) / 8)
    optimizer = LAMB(0.1, weight_decay=0.01)
    optimizer.build([table])

    def apply(gradient):
        optimizer.apply([gradient], [table])

    if jit_compile is not None:
        apply = tf.function(apply, jit_compile=jit_compile)
    for gradient in gradients:
        apply(gradient)
    return [one.numpy().tobytes() for one in [table, *optimizer.variables]]


@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "xla"])
@pytest.mark.parametrize("dense_shape", [True, False], ids=["shape", "no shape"])
def test_sparse_gradients_are_as_dense_ones(dense_shape, jit_compile):
    sparse, dense = zip(*(sparse_and_dense(seed, dense_shape) for seed in range(3)), strict=True)
    assert state_after(sparse, jit_compile) == state_after(dense, jit_compile)
    assert state_after(sparse, jit_compile) != state_after(sparse[:2], jit_compile)


def test_repeated_rows_add_up_in_float32():
    """In bfloat16 256 + 1 is 256: forty single ones would be lost."""
    ones = tf.ones([41, 1], tf.bfloat16) * tf.constant([[256.0]] + [[1.0]] * 40, tf.bfloat16)
    table = variable("table", [[1.0], [1.0]], "bfloat16")
    optimizer = LAMB(0.1, beta_1=0.0)
    run(optimizer, [table], [[tf.IndexedSlices(ones, tf.zeros([41], tf.int64))]])
    (momentum,) = [one for one in optimizer.variables if one.path.endswith("_momentum")]
    np.testing.assert_array_equal(momentum.numpy(), [[296.0], [0.0]])


def test_embedding_trains_on_sparse_gradients():
    layer = keras.layers.Embedding(6, 2)
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(optimizer=LAMB(0.1), loss="mse")
    ids = np.array([[0, 1, 1], [2, 1, 0]] * 8)
    history = model.fit(ids, np.float32(ids[:, :1]), epochs=30, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


# ---- with the rest of Keras --------------------------------------------------------------------


def steps_with(optimizer, *, scale=1.0, mode="graph", steps=6):
    """Runs the optimizer on two variables; returns their values."""
    variables, gradients = [], []
    for seed, path in enumerate(["dense/kernel", "dense/bias"]):
        w, own = numbers(10 + seed, steps, (5, 3)[: 2 - seed])
        variables.append(variable(path, w))
        gradients.append(np.float32(own * scale))
    optimizer.build(variables)

    def apply(*own):
        optimizer.apply(own, variables)

    if mode != "eager":
        apply = tf.function(apply, jit_compile=mode == "xla")
    for own in zip(*gradients, strict=True):
        apply(*map(tf.constant, own))
    return [one.numpy() for one in variables]


def expected_steps(learning_rate, steps=6, group=1):
    """The same by the formulas, where `group` gradients are averaged for one step."""
    results = []
    for seed, weight_decay in ((0, 0.1), (1, 0.0)):
        w, gradients = numbers(10 + seed, steps, (5, 3)[: 2 - seed])
        gradients = np.float32(gradients).reshape(steps // group, group, *w.shape).mean(axis=1)
        options = {"weight_decay": weight_decay, "adapts": bool(weight_decay)}
        results.append(formulas(np.float32(w), gradients, learning_rate=learning_rate, **options))
    return [own[-1] for own in results]


def make(learning_rate=0.1, **options):
    return LAMB(learning_rate, weight_decay=0.1, exclude_from_weight_decay=["bias"], **options)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_function_and_xla(mode):
    for actual, expected in zip(steps_with(make(), mode=mode), expected_steps(0.1), strict=True):
        assert_close(actual, expected, TOLERANCE[tf.float32])


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_learning_rate_schedule(mode):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.2, 0.1, 0.05])
    rates = [0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    actual = steps_with(make(schedule), mode=mode)
    for own, expected in zip(actual, expected_steps(rates), strict=True):
        assert_close(own, expected, TOLERANCE[tf.float32])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_loss_scale_optimizer(mode):
    optimizer = keras.optimizers.LossScaleOptimizer(make(), initial_scale=1024.0)
    actual = steps_with(optimizer, scale=1024.0, mode=mode)
    for own, expected in zip(actual, expected_steps(0.1), strict=True):
        assert_close(own, expected, TOLERANCE[tf.float32])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradient_accumulation(mode):
    """t counts steps, not gradients."""
    optimizer = make(gradient_accumulation_steps=3)
    actual = steps_with(optimizer, mode=mode)
    for own, expected in zip(actual, expected_steps(0.1, group=3), strict=True):
        assert_close(own, expected, TOLERANCE[tf.float32])


@pytest.mark.parametrize(
    "options", [{"clipnorm": 0.5}, {"clipvalue": 0.1}, {"global_clipnorm": 0.5}], ids=str
)
def test_clipping_comes_first(options):
    clipped = steps_with(make(**options), steps=2)
    assert np.max(np.abs(clipped[0] - steps_with(make(), steps=2)[0])) > 1e-4


def test_moving_average():
    optimizer = make(use_ema=True, ema_momentum=0.5)
    last = steps_with(optimizer)
    average = [one.numpy() for one in optimizer.variables if one.path.endswith("_average")]
    for own, expected, value in zip(average, expected_steps(0.1), last, strict=True):
        assert own.shape == expected.shape
        assert 0 < np.max(np.abs(own - value)) < 1


MIRRORED = """
    import numpy as np
    import tensorflow as tf
    import keras

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from tf_adasum.optimizers.lamb import LAMB

    def train(strategy, optimizer, share, sparse):
        with strategy.scope():
            variables = [
                keras.Variable(np.arange(1, 13).reshape(4, 3) / 8, name="table"),
                keras.Variable(np.arange(1, 4) / 4, name="bias"),
            ]
            optimizer = optimizer()

        @tf.function
        def step(number):
            def in_replica():  # builds the optimizer in the first step, as custom loops do
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                own = tf.cast(replica + 1, tf.float32) * share
                rows = own * number * tf.constant([[1.0, -2, 3], [4, 5, -6], [1, 1, 1]])
                table = tf.IndexedSlices(rows, tf.constant([0, 2, 0]), tf.constant([4, 3]))
                table = table if sparse else tf.convert_to_tensor(table)
                optimizer.apply([table, own * (number + tf.constant([1.0, 2, -3]))], variables)
            strategy.run(in_replica)

        for number in (1.0, -0.5, 2.0):
            step(tf.constant(number))
        for one in variables:
            first, *others = [v.numpy() for v in strategy.experimental_local_results(one.value)]
            assert all(first.tobytes() == other.tobytes() for other in others)
        assert int(optimizer.iterations.numpy()) == 3
        return [one.numpy() for one in variables]

    make = lambda: LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay="bias")
    scaled = lambda: keras.optimizers.LossScaleOptimizer(make(), initial_scale=1.0)
    # The replicas' gradients are 1/3 and 2/3 of the one without a strategy: the sum is the same.
    alone = train(tf.distribute.get_strategy(), make, 1.0, sparse=False)
    # The default's collectives do not work in the condition that a LossScaleOptimizer makes.
    mirrored = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    for optimizer in (make, scaled):
        for sparse in (False, True):
            both = train(mirrored, optimizer, 1 / 3, sparse)
            for one, other in zip(alone, both):
                np.testing.assert_allclose(other, one, rtol=1e-6)
    print("two replicas are as one")
"""


def test_mirrored_strategy(tmp_path):
    script = tmp_path / "mirrored.py"
    script.write_text(textwrap.dedent(MIRRORED))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    assert "two replicas are as one" in done.stdout, done.stderr


# ---- saving ------------------------------------------------------------------------------------


def test_config_round_trip():
    optimizer = LAMB(
        learning_rate=0.02,
        beta_1=0.8,
        beta_2=0.9,
        epsilon=1e-4,
        weight_decay=0.3,
        exclude_from_weight_decay=["bias", "norm"],
        exclude_from_layer_adaptation=[],
        clipnorm=1.0,
        use_ema=True,
        ema_momentum=0.8,
        ema_overwrite_frequency=3,
        gradient_accumulation_steps=2,
        name="mine",
    )
    config = optimizer.get_config()
    assert json.loads(json.dumps(config)) == config
    again = LAMB.from_config(dict(config))
    assert again.get_config() == config
    assert config["exclude_from_weight_decay"] == ["bias", "norm"]
    assert config["exclude_from_layer_adaptation"] == []
    assert LAMB().get_config()["exclude_from_layer_adaptation"] is None
    assert LAMB().name == "lamb"

    serialized = keras.optimizers.serialize(optimizer)
    assert serialized["registered_name"] == "tf_adasum>LAMB"
    assert keras.optimizers.deserialize(serialized).get_config() == config


def model_and_data(optimizer):
    keras.utils.set_random_seed(5)
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.LayerNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.RandomState(6).standard_normal((32, 4)).astype("float32")
    return model, x, np.sum(x[:, :2], axis=1, keepdims=True)


def state(model):
    return [one.numpy().tobytes() for one in [*model.weights, *model.optimizer.variables]]


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "loss scale"])
@pytest.mark.parametrize("kind", ["keras", "weights.h5"])
def test_a_saved_run_goes_on_bit_for_bit(kind, wrapped, tmp_path):
    def optimizer():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
        excluded = ["bias", "layer_normalization"]
        own = LAMB(schedule, weight_decay=0.1, exclude_from_weight_decay=excluded)
        return keras.optimizers.LossScaleOptimizer(own) if wrapped else own

    model, x, y = model_and_data(optimizer())
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    if kind == "keras":
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.optimizer.get_config() == model.optimizer.get_config()
    else:
        model.save_weights(tmp_path / "model.weights.h5")
        again, _, _ = model_and_data(optimizer())
        again.optimizer.build(again.trainable_variables)
        again.load_weights(tmp_path / "model.weights.h5")
    assert state(again) == state(model)

    before = state(model)
    for one in (model, again):
        one.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert state(again) == state(model) != before


# ---- exclusions and arguments ------------------------------------------------------------------


def test_exclusions_match_paths_of_layers():
    model, x, y = model_and_data(LAMB(0.1, 0.9, 0.999, 1e-6, 0.1, "dense(_[0-9]+)?/kernel$"))
    before = [one.numpy() for one in model.trainable_variables]
    model.train_on_batch(x, y)
    kinds = set()
    for one, old in zip(model.trainable_variables, before, strict=True):
        kind = one.path.rpartition("/")[2]
        if kind in ("kernel", "gamma"):  # the others start at 0
            kinds.add(kind)
            change = np.linalg.norm(one.numpy() - old) / np.linalg.norm(old)
            # The trust ratio makes every step η ‖w‖ long.
            assert (abs(change - 0.1) < 1e-6) == (kind == "gamma"), (one.path, change)
    assert kinds == {"kernel", "gamma"}


def test_one_warning_names_the_patterns_that_match_nothing():
    optimizer = LAMB(
        exclude_from_weight_decay=["bias", "layernorm"],
        exclude_from_layer_adaptation=["scale", "layernorm", "kernel"],
    )
    with pytest.warns(UserWarning) as caught:
        optimizer.build([variable("dense/kernel", [1.0]), variable("dense/bias", [1.0])])
    (warning,) = [str(one.message) for one in caught if "LAMB" in str(one.message)]
    assert "by 'layernorm', 'scale', because" in warning
    assert "dense/kernel, dense/bias" in warning


def test_no_warning_where_all_patterns_match():
    optimizer = LAMB(exclude_from_weight_decay=["bias", "kernel"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.build([variable("dense/kernel", [1.0]), variable("dense/bias", [1.0])])


@pytest.mark.parametrize(
    "argument",
    [
        {"beta_1": 1.0},
        {"beta_1": -0.1},
        {"beta_1": "0.9"},
        {"beta_2": 1},
        {"beta_2": float("nan")},
        {"beta_2": True},
        {"epsilon": -1e-9},
        {"epsilon": None},
        {"epsilon": float("inf")},
        {"weight_decay": -0.1},
        {"weight_decay": None},
        {"weight_decay": [0.1]},
        {"exclude_from_weight_decay": ["bias", "("]},
        {"exclude_from_weight_decay": ["bias", 3]},
        {"exclude_from_weight_decay": {"bias": True}},
        {"exclude_from_layer_adaptation": "*"},
        {"exclude_from_layer_adaptation": 3},
    ],
    ids=str,
)
def test_refuses_bad_arguments(argument):
    ((name, value),) = argument.items()
    with pytest.raises(ValueError, match=f"`{name}` of LAMB must.*") as error:
        LAMB(**argument)
    assert str(error.value).endswith(f"Received: {name}={value!r}")


def test_keras_method_for_exclusions_says_what_to_do():
    optimizer = LAMB(exclude_from_weight_decay=["bias"])
    with pytest.raises(ValueError, match=r"to the constructor: LAMB\(exclude_from_weight_decay="):
        optimizer.exclude_from_weight_decay(var_names=["bias"])


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="weight_decay_rate"):
        LAMB(weight_decay_rate=0.1)


def test_the_example_of_the_docstring():
    """Both optimizers on the same numbers: it runs, and shows what it says."""
    (example,) = doctest.DocTestFinder(recurse=False).find(LAMB, "LAMB", module=lamb)
    assert len(re.findall(r"one_step\(", example.docstring)) == 3
    report = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.attempted >= 5
    assert result.failed == 0, "".join(report)
