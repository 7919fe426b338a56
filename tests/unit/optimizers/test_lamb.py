"""LAMB against TensorFlow Addons' (tests/golden), and against its formulas in float64.

Tolerances are parts of the largest element of a variable. float32: a few roundings of 6e-8 in each
of the steps taken here; measured 2e-7. Every mistake that these tests are for is one of 1e-3 and
more: a forgotten bias correction, weight decay at another place, norms of another vector.
"""

import contextlib
import json
import pathlib
import warnings

import pytest

# With Keras 2, LAMB is the LAMB of Addons: see test_addons.py.
pytest.importorskip("keras", minversion="3")

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.optimizers import LAMB

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
    w, gradients, *, rate, beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay=0.0, adapts=True
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
        w = w - (rate[t - 1] if np.ndim(rate) else rate) * ratio * direction
        steps.append(w)
    return steps


def assert_close(actual, expected, tolerance):
    error = tolerance * np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=error)


def numbers(seed, steps, shape):
    """A variable and its gradients of all steps, of different lengths; float64."""
    random = np.random.RandomState(seed)
    lengths = 10 ** random.uniform(-2, 1, steps)
    gradients = [length * random.standard_normal(shape) for length in lengths]
    return random.standard_normal(shape), np.reshape(gradients, (steps, *shape))


def run(optimizer, variables, gradients, mode="eager"):
    """Steps on gradients ``[step][variable]``; the variables' values after the last."""
    optimizer.build(variables)

    def apply(*own):
        optimizer.apply(own, variables)

    if mode != "eager":
        apply = tf.function(apply, jit_compile=mode == "xla")
    for own in gradients:
        apply(*own)
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


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_agrees_with_addons(case):
    golden = GOLDEN["cases"][case]
    gradients = golden_gradients(case)
    rates = GOLDEN["learning_rates"].get(case, [GOLDEN["learning_rate"]] * len(gradients))
    variables = {path: variable(path, value) for path, value in GOLDEN["variables"].items()}
    optimizer = LAMB(learning_rate=rates[0], **golden["options"])
    for own, rate, expected in zip(gradients, rates, golden["steps"], strict=True):
        optimizer.learning_rate = rate
        run(optimizer, list(variables.values()), [own.values()])
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
    expected = formulas(np.float32(w), gradients, rate=0.05, adapts=adapts, **options)
    assert_close(actual[0], expected[-1], TOLERANCE[tf.float32])


def test_stays_accurate_over_many_steps(dtype):
    """m and v have to be float32 at least: in bfloat16 v would stop growing in the fifth step.

    The variable is rounded in each step, and follows the formulas from where that has left it.
    The learning rate is exact in float32, as Keras keeps it.
    """
    w, gradients = numbers(2, 60, (7, 3))
    gradients = tf.cast(gradients, dtype).numpy()
    one = variable("w", w, dtype.name)
    optimizer = LAMB(learning_rate=0.125, exclude_from_layer_adaptation=".")
    optimizer.build([one])
    for step, gradient in enumerate(gradients):
        before = one.numpy().astype(np.float64)
        optimizer.apply([tf.constant(gradient)], [one])
        own = gradients[: step + 1].astype(np.float64)
        after = formulas(0 * before, own, rate=0.125, adapts=False)
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


def test_elements_without_gradients_do_not_move():
    """With an epsilon of 0 it is 0 / 0, as in rows of an embedding that no batch has used."""
    optimizer = LAMB(0.1, epsilon=0.0)
    (actual,) = run(optimizer, [variable("w", [1.0, 2.0])], [[tf.constant([0.0, 3.0])]] * 2)
    assert actual[0] == 1.0 and actual[1] < 2.0


def test_nan_stays_nan():
    (actual,) = run(LAMB(0.1), [variable("w", [1.0, 2.0])], [[tf.constant([np.nan, 3.0])]])
    assert np.isnan(actual).any()


# ---- sparse gradients --------------------------------------------------------------------------


def sparse_and_dense(seed, dense_shape):
    """Four rows, one of them three times; values that add up without rounding."""
    random = np.random.RandomState(seed)
    rows, indices = random.randint(-8, 9, [4, 3]) / 4, [5, 1, 5, 5]
    dense = np.zeros([7, 3])
    np.add.at(dense, indices, rows)
    shape = tf.constant([7, 3]) if dense_shape else None
    sparse = tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(indices), shape)
    return sparse, tf.constant(dense, tf.float32)


def state_after(gradients, mode):
    """The bits of a table and of its optimizer's variables."""
    table, optimizer = variable("table", np.arange(21).reshape(7, 3) / 8), LAMB(0.1, weight_decay=1)
    run(optimizer, [table], [[own] for own in gradients], mode)
    return [one.numpy().tobytes() for one in [table, *optimizer.variables]]


MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


@MODES
@pytest.mark.parametrize("dense_shape", [True, False], ids=["shape", "no shape"])
def test_sparse_gradients_are_as_dense_ones(dense_shape, mode):
    sparse, dense = zip(*(sparse_and_dense(seed, dense_shape) for seed in range(3)), strict=True)
    assert state_after(sparse, mode) == state_after(dense, mode)
    assert state_after(sparse, mode) != state_after(sparse[:2], mode)


def test_repeated_rows_add_up_in_float32():
    """In bfloat16 256 + 1 is 256: forty single ones would be lost."""
    ones = tf.ones([41, 1], tf.bfloat16) * tf.constant([[256.0]] + [[1.0]] * 40, tf.bfloat16)
    table = variable("table", [[1.0], [1.0]], "bfloat16")
    optimizer = LAMB(0.1, beta_1=0.0)
    run(optimizer, [table], [[tf.IndexedSlices(ones, tf.zeros([41], tf.int64))]])
    (momentum,) = [one for one in optimizer.variables if one.path.endswith("_momentum")]
    np.testing.assert_array_equal(momentum.numpy(), [[296.0], [0.0]])


# ---- with the rest of Keras --------------------------------------------------------------------


def schedule():
    return keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.2, 0.1, 0.05])


def make(rate=0.1, **options):
    return LAMB(rate, weight_decay=0.1, exclude_from_weight_decay=["bias"], **options)


@MODES
@pytest.mark.parametrize(
    ("make", "rate", "scale", "group"),
    [
        pytest.param(make, 0.1, 1, 1, id="plain"),
        pytest.param(lambda: make(schedule()), [0.2, 0.2, 0.1, 0.1, 0.05, 0.05], 1, 1, id="rate"),
        pytest.param(
            lambda: keras.optimizers.LossScaleOptimizer(make(), initial_scale=1024.0),
            *(0.1, 1024, 1),
            id="loss scale",
        ),
        # t counts steps, not gradients.
        pytest.param(lambda: make(gradient_accumulation_steps=3), 0.1, 1, 3, id="accumulation"),
    ],
)
def test_steps_in_keras_follow_the_formulas(make, rate, scale, group, mode):
    variables, all_gradients, expected = [], [], []
    for seed, path in enumerate(["dense/kernel", "dense/bias"]):
        w, gradients = numbers(10 + seed, 6, (5, 3)[: 2 - seed])
        gradients = np.float32(gradients)
        variables.append(variable(path, w))
        all_gradients.append(tf.unstack(scale * gradients))
        options = {"adapts": False} if path == "dense/bias" else {"weight_decay": 0.1}
        means = gradients.reshape(6 // group, group, *w.shape).mean(axis=1)
        expected.append(formulas(np.float32(w), means, rate=rate, **options)[-1])
    actual = run(make(), variables, zip(*all_gradients, strict=True), mode)
    for own, value in zip(actual, expected, strict=True):
        assert_close(own, value, TOLERANCE[tf.float32])


# ---- arguments and configuration ---------------------------------------------------------------


def test_config_round_trip():
    options = {"learning_rate": 0.5, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-4}
    options |= {"weight_decay": 0.3, "exclude_from_weight_decay": ["bias", "norm"]}
    options |= {"exclude_from_layer_adaptation": [], "use_ema": True, "ema_momentum": 0.8}
    options |= {"gradient_accumulation_steps": 2, "name": "mine", "global_clipnorm": 3.0}
    config = LAMB(**options).get_config()
    assert json.loads(json.dumps(config)) == config
    assert {name: config[name] for name in options} == options
    assert LAMB.from_config(config).get_config() == config
    serialized = keras.optimizers.serialize(LAMB(**options))
    assert serialized["registered_name"] == "tf_adasum>LAMB"
    assert keras.optimizers.deserialize(serialized).get_config() == config


def test_one_warning_names_the_patterns_that_match_nothing():
    variables = [tf.Variable([1.0], name=name) for name in ("dense/kernel", "dense/bias")]
    optimizer = LAMB(
        exclude_from_weight_decay=["bias", "layernorm"],
        exclude_from_layer_adaptation=["scale", "layernorm", "kernel"],
    )
    with pytest.warns(UserWarning) as caught:
        optimizer.build(variables)
    (warning,) = [str(one.message) for one in caught if "LAMB" in str(one.message)]
    assert "by 'layernorm', 'scale', because" in warning
    assert "dense/kernel, dense/bias" in warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LAMB(exclude_from_weight_decay=["bias", "kernel"]).build(variables)
