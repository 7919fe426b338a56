"""Random arguments of everything public: it works, or says in a ValueError or TypeError why not."""

import contextlib
import inspect
import json

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fuzzing import fuzz_settings
from support.keras_versions import LossScaleOptimizer, Variable

import tf_adasum
from tf_adasum import callbacks, launch, ops, optimizers, rules, schedules
from tf_adasum.cluster import resolver, tf_config
from tf_adasum.launch import elastic, jobs, processes

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
        len,
        b"bytes",
        1j,
        np.zeros([0]),
        np.ones([2, 2]),
        np.float32(0.5),
        np.array("text"),
        np.array([None]),
        keras.optimizers.SGD,
        tf.float16,
        range(3),
    ]
)
MADE = st.sampled_from(
    [
        lambda: tf.constant([1.0, 2.0]),
        lambda: keras.optimizers.Adam(1e-3, clipnorm=2.0),
        lambda: optimizers.LAMB(),
        lambda: optimizers.AdaScale(keras.optimizers.SGD(0.1)),
        lambda: LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5),
        lambda: schedules.LinearScalingWarmup(0.1, scale=2, total_steps=9),
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
ROWS = st.one_of(
    st.sampled_from([np.ones([2, 4], "float32"), np.ones([2, 4], "float16"), np.ones([0, 4])]),
    st.sampled_from([np.ones([2, 4], "int32"), np.ones([4]), np.ones([1, 2, 2])]),
)
GOOD = {
    "optimizer": st.builds(keras.optimizers.Adam, st.just(1e-3)),
    "learning_rate": st.floats(0, 1),
    "scale": st.integers(1, 9),
    "total_steps": st.integers(1, 99),
    "schedule": st.sampled_from([{0: 2}, {1: 2}, {"one": 2}]),  # one that is good
    "rule": st.sampled_from(["adasum", "mean"]),
    "total": st.integers(1, 99),
    "values": st.lists(st.just([1.0, 2.0]), max_size=3),
    "rows": ROWS,
    "coefficients": ROWS,
    "a": ROWS,
    "b": ROWS,
    "segments": st.one_of(st.lists(st.integers(-1, 5), max_size=4), st.just([0, 2, 4])),
}
MADE_HERE = [
    *(optimizers.LAMB, optimizers.AdaScale, optimizers.DeltaAdasum, rules.Adasum, rules.AdaCons),
    *(schedules.LinearScalingWarmup, rules.get, callbacks.ElasticScale, callbacks.GainTracker),
    *(callbacks.OrthogonalityTracker, callbacks.ReplicaCheck, callbacks.StopAtScaleInvariantStep),
]
OPERATIONS = [ops.segment_gram, ops.segment_weighted_sum, ops.pairwise_combine, tf_adasum.adasum]
REFUSED = (ValueError, TypeError)
# What only the values at run time can tell, TensorFlow reports in its own way.
REFUSED_AT_RUN_TIME = (*REFUSED, tf.errors.InvalidArgumentError)


@contextlib.contextmanager
def works_or_is_refused(refused=REFUSED):
    """Lets through no other exception than one with a message that says why not."""
    try:
        yield
        hypothesis.event("works")
    except refused as error:
        hypothesis.event("refused")
        assert str(error).strip(), f"{type(error).__name__} without a message"


def arguments_of(function, data):
    """Draw arguments of a function; a required one is good or anything."""
    first = [*inspect.signature(function).parameters][:8]  # of LAMB, the others are Keras's
    arguments = {}
    for name in first:
        good = GOOD.get(name)
        if name in ("self", "name", "device"):
            continue
        if good is not None and data.draw(st.booleans(), label=f"{name} is good"):
            arguments[name] = data.draw(good, label=name)
        elif good is not None or data.draw(st.booleans(), label=f"{name} is given"):
            arguments[name] = data.draw(ANYTHING, label=name)
    return arguments


@pytest.mark.parametrize("made", MADE_HERE, ids=lambda made: made.__name__)
@pytest.mark.filterwarnings("ignore")
@fuzz_settings(40)
@hypothesis.given(data=st.data())
def test_what_can_be_made(made, data):
    function = made.__init__ if isinstance(made, type) else made
    with works_or_is_refused():
        result = made(**arguments_of(function, data))
        if hasattr(result, "get_config") and made is not rules.get:
            type(result).from_config(result.get_config())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@fuzz_settings(100)
@hypothesis.given(data=st.data())
def test_operations(backend, operation, data):
    with works_or_is_refused(REFUSED_AT_RUN_TIME):
        operation(**arguments_of(operation, data))


@fuzz_settings(60)
@hypothesis.given(data=st.data())
def test_schedules_and_scales_in_use(data):
    numbers = {
        name: data.draw(NUMBERS) for name in ("learning_rate", "scale", "total_steps", "warmup")
    }
    with works_or_is_refused():
        schedule = schedules.LinearScalingWarmup(**numbers)
        assert np.isfinite([schedule(step) for step in (0, 1, 7)]).all()
    with works_or_is_refused():
        optimizer = optimizers.AdaScale(keras.optimizers.SGD(0.1), scale=data.draw(NUMBERS))
        optimizer.set_scale(data.draw(ANYTHING))


@fuzz_settings(60)
@hypothesis.given(data=st.data())
def test_strategy(data):
    names = [*inspect.signature(tf_adasum.AdasumMirroredStrategy.__init__).parameters][1:]
    arguments = {
        name: data.draw(ANYTHING, label=name) for name in names if data.draw(st.integers(0, 2)) == 0
    }
    with works_or_is_refused():
        tf_adasum.AdasumMirroredStrategy(**{"devices": ["CPU:0"], **arguments})


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


@fuzz_settings(40)
@hypothesis.given(data=st.data())
def test_methods_of_the_strategy(strategy, data):
    with works_or_is_refused():
        strategy.check_replicas(data.draw(ANYTHING))
    with works_or_is_refused():
        strategy._split_batch(data.draw(ANYTHING))
    with works_or_is_refused():
        strategy.gradient_reduction_of(data.draw(st.lists(st.one_of(MADE, TEXTS), max_size=2)))


AT_RUN_TIME = {
    "gram": ops.segment_gram,
    "pairwise": lambda rows, segments: ops.pairwise_combine(rows[0], rows[1], segments),
    "weighted sum": lambda rows, segments: ops.segment_weighted_sum(
        rows, tf.ones([tf.size(segments) - 1, 2]), segments
    ),
}


@pytest.fixture(params=AT_RUN_TIME.values(), ids=AT_RUN_TIME)
def compiled(backend, request):
    """An operation whose segments are known at run time only."""
    signature = [tf.TensorSpec([2, None]), tf.TensorSpec([None], tf.int64)]
    return tf.function(request.param, input_signature=signature, autograph=False)


@fuzz_settings(80)
@hypothesis.given(
    segments=st.lists(
        st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**62, -(2**63)])),
        max_size=5,
    ),
    size=st.integers(0, 5),
)
@hypothesis.example([0, 2, 6], 6)
@hypothesis.example([1, 6], 6)
@hypothesis.example([0, 5], 6)
@hypothesis.example([0, 7], 6)
@hypothesis.example([0, 4, 3, 6], 6)
@hypothesis.example([0, -1, 6], 6)
@hypothesis.example([], 0)
def test_segments_that_are_known_at_run_time_only(compiled, segments, size):
    """The op itself has to refuse offsets that would lead out of the memory."""
    is_table = segments[:1] == [0] and segments[-1] == size and segments == sorted(segments)
    try:
        result = compiled(tf.ones([2, size]), tf.constant(segments, tf.int64))
        assert is_table and np.isfinite(result).all()
    except REFUSED_AT_RUN_TIME:
        assert not is_table


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


@fuzz_settings(150)
@hypothesis.given(text=TF_CONFIG)
def test_tf_config(monkeypatch, text):
    hypothesis.assume("\0" not in text and text.isprintable())
    monkeypatch.setenv("TF_CONFIG", text)
    with works_or_is_refused():
        _, tasks, _ = resolver.resolve()
        assert tasks == tf_config.parse(text)
        assert tasks is None or 0 <= tasks.rank < len(tasks.addresses)
        if tasks:
            tasks.workers_per_host()


WORDS = st.one_of(
    st.sampled_from(
        [
            *("-n", "--workers", "--devices-per-worker", "--timeout", "-m", "--", "-h", "--help"),
            *("-n2", "-np", "auto", "--nnodes", "--node-rank", "--coordinator", "--verbose", "a:1"),
            *("1:2", "1:auto", "2:1", "0:1"),
        ]
    ),
    st.sampled_from(["1", "0", "-1", "2", "1e400", "nan", "inf", "99999999999999999999", __file__]),
    st.text(max_size=4),
)


@fuzz_settings(150)
@hypothesis.given(words=st.lists(WORDS, max_size=6))
@hypothesis.example(words=["--nnodes", "1:2", "--coordinator", "a:1", __file__])
def test_command_line_of_the_launcher(monkeypatch, capsys, words):
    """It starts workers, which it must not here, or ends with code 2 and says why."""
    hypothesis.assume(all(word.isprintable() for word in words))
    started = []

    def run_group(command, crew, environments_of, timeout, grace, max_restarts, control):
        assert len(command) > 2 and all(isinstance(word, str) for word in command)
        assert timeout is None or timeout > 0
        assert max_restarts >= 0
        with environments_of(0) as environments:
            assert len(environments) == len(crew.ranks) <= crew.num_workers
            started.append(environments)
        return processes.RunResult(0)

    class ElasticJob(contextlib.nullcontext):
        def __init__(self, host, nnodes, *others):
            super().__init__()
            assert host.workers >= 1 and 1 <= nnodes[0] <= nnodes[1]
            started.append(others)

        def run(self, deadline):
            return 0

    monkeypatch.setattr(jobs, "run_group", run_group)
    monkeypatch.setattr(elastic, "_ElasticJob", ElasticJob)
    capsys.readouterr()
    try:
        assert launch.main(words) == 0 and started
    except SystemExit as ended:
        output, errors = capsys.readouterr()
        assert not started and (output if ended.code == 0 else ended.code == 2 and errors)
