"""Random arguments of everything public: it works, or says in a ValueError or TypeError why not."""

import contextlib
import io
import json
import os

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fuzzing import cases
from support.stacks import LossScaleOptimizer, Variable

import tf_adasum
from tf_adasum import callbacks, launch, ops, optimizers, rules, schedules
from tf_adasum.aggregation import Scheme
from tf_adasum.cluster import resolver, tf_config
from tf_adasum.launch import jobs, processes
from tf_adasum.replicas import equal_variables

NUMBERS = st.one_of(
    st.integers(-3, 9),
    st.floats(-2, 2),
    st.sampled_from([10**30, -(10**400), float("nan"), float("inf"), -float("inf"), 1e-320, 1e308]),
    st.booleans(),
)
TEXTS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["adasum", "Mean", "model", "variable", "epoch", "CPU:0", "/device:CPU:0"]),
    st.sampled_from(["GPU:7", "CPU:99", "bfloat16", "float16", "mean", ".*", "(", "[", "*", ""]),
)
OBJECTS = st.sampled_from(
    [
        None,
        object(),
        object,
        len,
        Exception("no"),
        b"bytes",
        1j,
        np.zeros([0]),
        np.ones([2, 2]),
        np.float32(0.5),
        np.int64(2),
        np.array("text"),
        np.array([None]),
        keras.optimizers.SGD,
        tf.float16,
        rules.Adasum,
        range(3),
    ]
)
MADE = st.sampled_from(
    [
        lambda: tf.constant([1.0, 2.0]),
        lambda: tf.constant(2),
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.Adam(1e-3, clipnorm=2.0),
        lambda: optimizers.LAMB(),
        lambda: optimizers.AdaScale(keras.optimizers.SGD(0.1)),
        lambda: LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5),
        lambda: schedules.LinearScalingWarmup(0.1, scale=2, total_steps=9),
        lambda: rules.Adasum("model"),
        lambda: rules.AdaCons(),
        lambda: Variable([1.0]),
        lambda: tf.distribute.experimental.CommunicationOptions(),
        lambda: tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({})),
        lambda: iter([]),
    ]
).map(lambda make: make())
LEAVES = st.one_of(NUMBERS, TEXTS, OBJECTS, MADE)
KEYS = st.one_of(TEXTS, st.integers(-1, 5))
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=5,
)
TRUE_OPTIMIZERS = st.sampled_from(
    [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.Adam(1e-3, weight_decay=0.1)]
).map(lambda make: make())

# Each with the names of its arguments, those without a default first, and of some a good one.
MADE_WITH = {
    optimizers.LAMB: (
        "learning_rate beta_1 beta_2 epsilon weight_decay exclude_from_weight_decay "
        "exclude_from_layer_adaptation"
    ),
    optimizers.AdaScale: "optimizer scale smoothing debias",
    optimizers.DeltaAdasum: "optimizer local_steps",
    schedules.LinearScalingWarmup: "learning_rate scale total_steps warmup iterations",
    callbacks.GainTracker: "every",
    callbacks.OrthogonalityTracker: "every per_variable",
    callbacks.ReplicaCheck: "every",
    callbacks.StopAtScaleInvariantStep: "total",
    callbacks.ElasticScale: "schedule make_dataset",
    rules.Adasum: "granularity",
    rules.AdaCons: "momentum granularity rescale",
    rules.get: "rule",
}
GOOD = {
    "optimizer": TRUE_OPTIMIZERS,
    "learning_rate": st.floats(0, 1),
    "scale": st.integers(1, 9),
    "total_steps": st.integers(1, 99),
    "schedule": st.just({0: 2}),
    "rule": st.sampled_from(["adasum", "mean"]),
    "total": st.integers(1, 99),
}
REFUSED = (ValueError, TypeError)


@contextlib.contextmanager
def works_or_is_refused(more=()):
    """Lets through no other exception than one with a message that says why not."""
    try:
        yield
        hypothesis.event("works")
    except (*REFUSED, *more) as error:
        hypothesis.event("refused")
        assert str(error).strip(), f"{type(error).__name__} without a message"


def arguments_of(data, names):
    """Some of the arguments: half of them good, the others anything."""
    chosen = {}
    for name in names.split():
        good = GOOD.get(name)
        if good is not None and data.draw(st.booleans(), label=f"{name} is good"):
            chosen[name] = data.draw(good, label=name)
        elif good is not None or data.draw(st.booleans(), label=f"{name} is given"):
            chosen[name] = data.draw(ANYTHING, label=name)
    return chosen


@pytest.mark.parametrize("made", MADE_WITH, ids=lambda made: made.__name__)
@pytest.mark.filterwarnings("ignore")
def test_what_can_be_made(made):
    @cases(40)
    @hypothesis.given(data=st.data())
    def run(data):
        arguments = arguments_of(data, MADE_WITH[made])
        with works_or_is_refused():
            result = made(**arguments)
            if hasattr(result, "get_config") and made is not rules.get:
                type(result).from_config(result.get_config())

    run()


@cases(60)
@hypothesis.given(data=st.data())
def test_schedules_and_scales_in_use(data):
    numbers = {
        name: data.draw(NUMBERS) for name in ("learning_rate", "scale", "total_steps", "warmup")
    }
    with works_or_is_refused():
        schedule = schedules.LinearScalingWarmup(**numbers)
        rates = [float(schedule(step)) for step in (0, 1, 7)]
        assert np.isfinite(rates).all()
    with works_or_is_refused():
        optimizer = optimizers.AdaScale(keras.optimizers.SGD(0.1), scale=data.draw(NUMBERS))
        optimizer.set_scale(data.draw(ANYTHING))


NAMES = "devices communication_options aggregation radix_plan local_reduction wire_dtype"


@cases(60)
@hypothesis.given(data=st.data())
def test_strategy(data):
    arguments = {
        name: data.draw(ANYTHING, label=name)
        for name in (*NAMES.split(), "cluster_resolver")
        if data.draw(st.integers(0, 2)) == 0
    }
    arguments.setdefault("devices", ["CPU:0"])
    with works_or_is_refused():
        strategy = tf_adasum.AdasumMirroredStrategy(**arguments)
        strategy.check_replicas()


STRATEGY = []


@cases(40)
@hypothesis.given(data=st.data())
def test_methods_of_the_strategy(data):
    if not STRATEGY:
        STRATEGY.append(tf_adasum.AdasumMirroredStrategy(["CPU:0"]))
    with works_or_is_refused():
        STRATEGY[0].check_replicas(data.draw(ANYTHING))
    with works_or_is_refused():
        STRATEGY[0].split_batch(data.draw(ANYTHING))
    with works_or_is_refused():
        STRATEGY[0].gradient_reduction_of(data.draw(st.lists(MADE, max_size=2)))


@cases(60)
@hypothesis.given(data=st.data())
def test_adasum_of_anything(data):
    values = data.draw(st.one_of(ANYTHING, st.lists(st.just([1.0, 2.0]), max_size=3)))
    with works_or_is_refused([tf.errors.InvalidArgumentError]):
        tf_adasum.adasum(values)


SEGMENTS = st.one_of(ANYTHING, st.lists(st.integers(-1, 5), max_size=4), st.just([0, 2, 4]))
ROWS = st.one_of(
    ANYTHING,
    st.sampled_from([np.ones([2, 4], "float32"), np.ones([2, 4], "float16"), np.ones([0, 4])]),
    st.sampled_from([np.ones([2, 4], "int32"), np.ones([4]), np.ones([1, 2, 2])]),
)


@cases(100)
@hypothesis.given(data=st.data())
def test_operations(backend, data):
    # What only the values at run time can tell, TensorFlow reports in its own way.
    at_run_time = [tf.errors.InvalidArgumentError]
    with works_or_is_refused(at_run_time):
        ops.segment_gram(data.draw(ROWS), data.draw(SEGMENTS))
    with works_or_is_refused(at_run_time):
        ops.segment_weighted_sum(data.draw(ROWS), data.draw(ROWS), data.draw(SEGMENTS))
    with works_or_is_refused(at_run_time):
        segments = data.draw(st.one_of(st.none(), SEGMENTS))
        ops.pairwise_combine(data.draw(ROWS), data.draw(ROWS), segments)


COMPILED = {}


@cases(80)
@hypothesis.given(data=st.data())
def test_segments_that_are_known_at_run_time_only(backend, data):
    """The op itself has to refuse offsets that would lead out of the memory."""
    offsets = st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**62, -(2**63)]))
    segments = tf.constant(data.draw(st.lists(offsets, max_size=5)), tf.int64)
    rows = tf.ones([2, data.draw(st.integers(0, 5))])
    run = COMPILED.setdefault(
        backend,
        tf.function(
            lambda rows, segments: (
                ops.segment_gram(rows, segments),
                ops.pairwise_combine(rows[0], rows[1], segments),
            ),
            input_signature=[tf.TensorSpec([2, None]), tf.TensorSpec([None], tf.int64)],
        ),
    )
    is_table = len(segments) > 0 and segments[0] == 0 and segments[-1] == rows.shape[1]
    is_table = is_table and bool(tf.reduce_all(segments[1:] >= segments[:-1]))
    try:
        gram, _ = run(rows, segments)
        assert is_table and gram.shape == [len(segments) - 1, 2, 2]
    except (*REFUSED, tf.errors.InvalidArgumentError):
        assert not is_table


@cases(60)
@hypothesis.given(data=st.data())
def test_schemes(data):
    replicas = data.draw(st.integers(1, 9))
    divisors = [number for number in range(1, replicas + 1) if replicas % number == 0]
    with works_or_is_refused():
        Scheme.checked(
            data.draw(
                st.sampled_from([rules.Adasum(), rules.AdaCons(), rules.Sum(), rules.Mean()])
            ),
            replicas,
            averaged=data.draw(st.sampled_from(divisors)),
            radix_plan=data.draw(st.one_of(ANYTHING, st.lists(st.integers(0, 5), max_size=3))),
            wire_dtype=data.draw(ANYTHING),
        )


# ---- what comes from outside ---------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
ADDRESSES = st.sampled_from(
    ["a:1", "b:2", "[::1]:3", "a", ":1", "a:0", "a:99999", "a:٣", "a:1:2", ""]
)
JOBS = st.dictionaries(
    st.sampled_from(["worker", "chief", "ps", "evaluator", ""]),
    st.one_of(st.lists(ADDRESSES, max_size=3), JSON),
    max_size=3,
)
TASKS = st.fixed_dictionaries(
    {
        "type": st.one_of(st.sampled_from(["worker", "chief", "ps"]), JSON),
        "index": st.one_of(st.integers(-1, 3), st.sampled_from(["0", "x", "٣", 1e400]), JSON),
    }
)
TF_CONFIG = st.one_of(
    st.text(max_size=8),
    JSON.map(json.dumps),
    st.fixed_dictionaries({"cluster": JOBS, "task": st.one_of(TASKS, JSON)}).map(json.dumps),
    st.just("[" * 100_000),
    st.just("1" * 5000),
)


@cases(150)
@hypothesis.given(text=TF_CONFIG)
def test_tf_config(text):
    hypothesis.assume("\0" not in text and text.isprintable())
    had = os.environ.get("TF_CONFIG")
    os.environ["TF_CONFIG"] = text
    try:
        with works_or_is_refused():
            _, tasks = resolver.resolve()
            assert tasks == tf_config.parse(text)
            assert tasks is None or 0 <= tasks.rank < len(tasks.addresses)
            if tasks:
                tasks.workers_per_host()
    finally:
        os.environ.pop("TF_CONFIG")
        if had is not None:
            os.environ["TF_CONFIG"] = had


WORDS = st.one_of(
    st.sampled_from(
        [
            *("-n", "--workers", "--devices-per-worker", "--timeout", "-m", "--", "-h", "--help"),
            *("-n2", "-np", "auto", "--nnodes", "--node-rank", "--coordinator", "--verbose", "a:1"),
        ]
    ),
    st.sampled_from(["1", "0", "-1", "2", "1e400", "nan", "inf", "99999999999999999999", __file__]),
    st.text(max_size=4),
)


@cases(150)
@hypothesis.given(words=st.lists(WORDS, max_size=6))
def test_command_line_of_the_launcher(words):
    """It starts workers, which it must not here, or ends with code 2 and says why."""
    hypothesis.assume(all(word.isprintable() for word in words))
    started = []

    def run_group(command, crew, environments_of, timeout, grace, max_restarts):
        assert len(command) > 2 and all(isinstance(word, str) for word in command)
        assert timeout is None or timeout > 0
        assert max_restarts >= 0
        with environments_of(0) as environments:
            assert len(environments) == len(crew.ranks) <= crew.num_workers
            started.append(environments)
        return processes.RunResult(0)

    original, jobs.run_group = jobs.run_group, run_group
    errors, output = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            assert launch.main(words) == 0 and started
    except SystemExit as ended:
        assert not started
        assert (ended.code == 0 and output.getvalue()) or (ended.code == 2 and errors.getvalue())
    finally:
        jobs.run_group = original


@cases(40)
@hypothesis.given(data=st.data())
def test_shared_variables_of_anything(data):
    """The digest takes every dtype, and tells every two different arrays apart."""
    dtype = data.draw(st.sampled_from(["float16", "bfloat16", "float64", "int8", "bool", "<U3"]))
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    if dtype == "<U3":
        value = random.integers(0, 9, shape).astype(dtype).astype(object)
    else:
        value = random.integers(0, 2, shape).astype(tf.as_dtype(dtype).as_numpy_dtype)
    digest = equal_variables._digest(value)
    assert digest == equal_variables._digest(value.copy()) != equal_variables.NOT_HERE
    if value.size:
        other = value.copy()
        other.flat[-1] = "z" if dtype == "<U3" else not other.flat[-1]
        assert equal_variables._digest(other) != digest


# ---- what was found ---------------------------------------------------------------------------

TOO_LARGE = 10**400  # for a float


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.LinearScalingWarmup(0.1, scale=TOO_LARGE, total_steps=9),
        pytest.param(
            lambda: optimizers.LAMB(epsilon=TOO_LARGE),
            marks=pytest.mark.keras3_only("LAMB of Keras 2 is TensorFlow Addons'"),
        ),
        lambda: optimizers.AdaScale(keras.optimizers.SGD(0.1), scale=TOO_LARGE),
        lambda: callbacks.StopAtScaleInvariantStep(TOO_LARGE),
    ],
    ids=["LinearScalingWarmup", "LAMB", "AdaScale", "StopAtScaleInvariantStep"],
)
def test_numbers_too_large_for_a_float_are_refused(make):
    with pytest.raises(ValueError, match="Received"):
        make()


def test_a_cluster_nested_too_deeply_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "[" * 100_000)
    with pytest.raises(ValueError, match="is not valid JSON"):
        resolver.resolve()


def test_a_reduction_of_what_is_no_variable_is_refused():
    with pytest.raises(ValueError, match="must be a list of Keras variables"):
        tf_adasum.AdasumMirroredStrategy(["CPU:0"]).gradient_reduction_of(["kernel"])
