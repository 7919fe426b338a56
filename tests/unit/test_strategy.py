"""Wrong arguments of AdasumMirroredStrategy are refused on all workers before TensorFlow starts."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum import ops, rules, startup
from tf_adasum.cluster import administration, rendezvous, start_timeout
from tf_adasum.cluster import tasks as cluster_tasks
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.workers import agreement


class Talked(Exception):
    """Raised where the strategy would begin to talk to other workers."""


@pytest.fixture
def two_workers(monkeypatch):
    """A cluster of two workers, whose addresses nobody may use."""

    def talk(*arguments, **options):
        raise Talked

    def meet(tasks, terms, *others):
        if terms[agreement.ARGUMENTS] == "accepted":
            raise Talked
        assert terms[agreement.ARGUMENTS].startswith("refused (ValueError: ")

    task = {"type": "worker", "index": 0}
    jobs = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    monkeypatch.setattr(rendezvous, "meet", meet)
    monkeypatch.setattr(tensorflow_compat.GradientAggregatingExtended, "__init__", talk)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TF_ADASUM_DEVICES_PER_WORKER", raising=False)


def make(**arguments):
    return tf_adasum.AdasumMirroredStrategy(**{"devices": ["CPU:0"], **arguments})


WRONG = {
    "unknown rule": ({"aggregation": "adasun"}, r"one of \['adacons', 'adasum', 'mean', 'sum'\]"),
    "rule class": ({"aggregation": rules.Sum}, r"Pass an instance: Sum\(\)"),
    "unknown action": (
        {"on_nonfinite": "ignore"},
        "`on_nonfinite` must be 'propagate' .* Received: on_nonfinite='ignore'",
    ),
    "no rule": ({"aggregation": None}, "aggregation=None"),
    "function as rule": ({"aggregation": np.mean}, "instance of tf_adasum.rules.AggregationRule"),
    "options of another type": (
        {"communication_options": {"timeout_seconds": 3}},
        r"`communication_options` must be .*Received: communication_options=\{'timeout_seconds': 3",
    ),
    "options class": (
        {"communication_options": tf.distribute.experimental.CommunicationOptions},
        "`communication_options` must be",
    ),
    "no resolver": ({"cluster_resolver": "worker:0"}, "cluster_resolver='worker:0'"),
    "more levels": ({"radix_plan": [2, 2]}, r"\[2, 2\]"),
    "wrong number": ({"radix_plan": [3]}, r"`radix_plan` must be .* Received: radix_plan=\[3\]"),
    "empty plan": ({"radix_plan": []}, r"radix_plan=\[\]"),
    "plan as text": ({"radix_plan": "2"}, "radix_plan='2'"),
    "local sum": ({"local_reduction": "sum"}, "`local_reduction` must be .*'sum'"),
    "local reduction as bool": ({"local_reduction": True}, "`local_reduction` must be .*True"),
    "wire of ints": ({"wire_dtype": "int8"}, "`wire_dtype` must be .*'int8'"),
    "wire as wide": ({"wire_dtype": "float32"}, "`wire_dtype` must be .*'float32'"),
    "wire of the mean": (
        {"aggregation": "mean", "wire_dtype": "float16"},
        "has no .*`wire_dtype`",
    ),
    "plan as number": ({"radix_plan": 2}, "radix_plan=2"),
    "no devices": ({"devices": []}, "at least one device"),
    "device as text": ({"devices": "CPU:0"}, "devices='CPU:0'"),
    "devices as number": ({"devices": 1}, "devices=1"),
    "missing device": ({"devices": ["CPU:0", "CPU:99"]}, "do not exist: CPU:99"),
    "repeated device": ({"devices": ["CPU:0", "/cpu:0"]}, "must not repeat"),
    "nonsense device": ({"devices": ["processor"]}, "'processor' in `devices`"),
    "mixed devices": ({"devices": ["CPU:0", "GPU:0"]}, "of one type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_on_all_workers(two_workers, case):
    arguments, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize("case", [case for case in WRONG if case != "no resolver"])
def test_refused_without_a_cluster_too(case, monkeypatch):
    def build(*arguments, **options):
        raise Talked

    monkeypatch.setattr(tensorflow_compat.GradientAggregatingExtended, "__init__", build)
    arguments, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_wrong_clusters_are_refused(two_workers, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{'cluster': 1}")
    with pytest.raises(ValueError, match="TF_CONFIG is not valid JSON"):
        make()


def test_wrong_environment_is_refused(two_workers, monkeypatch):
    monkeypatch.setenv("TF_ADASUM_DEVICES_PER_WORKER", "some")
    with pytest.raises(ValueError, match="TF_ADASUM_DEVICES_PER_WORKER='some'"):
        make(devices=None)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"radix_plan": [2]},
        {"radix_plan": (2,)},
        {"aggregation": rules.Sum()},
        pytest.param(
            {"communication_options": tf.distribute.experimental.CommunicationOptions(0, 3.0)},
            id="communication_options",
        ),
        {"devices": ["/device:CPU:0"]},
    ],
    ids=str,
)
def test_good_arguments_reach_the_other_workers(two_workers, arguments):
    # The tests above would pass, too, if everything were refused.
    with pytest.raises(Talked):
        make(**arguments)


def test_the_workers_are_asked_for_what_they_have_to_share(two_workers, monkeypatch):
    met = []
    monkeypatch.setattr(rendezvous, "meet", lambda *arguments: met.append(arguments))
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=7.0)
    with pytest.raises(Talked):
        make(aggregation="sum", communication_options=options)
    ((tasks, terms, timeout, _),) = met
    assert tasks.addresses == ("127.0.0.1:1", "127.0.0.1:2") and timeout == 7.0
    assert terms == {
        agreement.ARGUMENTS: "accepted",
        "tf_adasum": tf_adasum.__version__,
        "TensorFlow": ".".join(tf.__version__.split(".")[:2]),
        "Keras": ".".join(keras.__version__.split(".")[:2]),
        "rule": "Sum()",
        "radix_plan": None,
        "local_reduction (replicas averaged)": 1,
        "wire_dtype": None,
        "TF_ADASUM_COST_MODEL": None,
        "devices per worker": 1,
        "communication_options.bytes_per_pack": 0,
        "communication_options.implementation": "AUTO",
        "backend of the op (TF_ADASUM_OPS)": ops.backend(),
        "on_nonfinite": "propagate",
        "transport": "tensorflow",
        **{f"environment variable {name}": "not set" for name in agreement.ENVIRONMENT},
    }
    with pytest.raises(Talked):
        make()  # once more, as nothing has started
    assert met[1][2] == administration.DEFAULT_START_TIMEOUT


def tasks_at(*addresses, rank=0):
    names = tuple(f"worker {number}" for number in range(len(addresses)))
    return cluster_tasks.Cluster(addresses, names, rank)


@pytest.mark.parametrize(
    ("addresses", "averaged"),
    [
        (("a:1", "b:1"), 2),
        (("a:1", "a:2", "b:1", "b:2"), 4),
        (("a:1", "a:2", "a:3"), 6),
        (("[::1]:1", "[::2]:1"), 2),
    ],
)
def test_workers_of_one_address_share_a_host(addresses, averaged):
    assert startup.averaged("mean", tasks_at(*addresses), devices=2) == averaged
    assert startup.averaged(None, tasks_at(*addresses), devices=2) == 1


@pytest.mark.parametrize("addresses", [("a:1", "a:2", "b:1"), ("a:1", "b:1", "a:2", "b:2")])
def test_hosts_of_different_size_are_refused(addresses):
    with pytest.raises(ValueError, match=r"local_reduction='mean' needs .* Received: a:1, "):
        startup.averaged("mean", tasks_at(*addresses), devices=1)


def test_only_the_first_three_arguments_are_positional():
    with pytest.raises(TypeError):
        tf_adasum.AdasumMirroredStrategy(["CPU:0"], None, None, "sum")


# ---- what the arguments set, on one device -----------------------------------------------------


@pytest.mark.parametrize("rule", ["adasum", "sum", "mean", rules.Adasum()], ids=repr)
def test_one_device(rule):
    made = make(aggregation=rule, radix_plan=[1])
    assert isinstance(made, tf.distribute.MultiWorkerMirroredStrategy)
    assert made.num_replicas_in_sync == 1
    assert repr(made.aggregation) == repr(rules.get(rule))
    assert isinstance(made.extended._cross_device_ops, tf_adasum.AdasumCrossDeviceOps)
    assert made.extended._cross_device_ops.scheme.rule is made.aggregation


def test_every_rule_but_mean_marks_the_reduction_of_gradients():
    for rule in ("adasum", "sum"):
        assert isinstance(
            make(aggregation=rule).gradient_reduction, tensorflow_compat.GradientReduction
        )
    assert make(aggregation="mean").gradient_reduction is None


@pytest.mark.parametrize("axis", [None, 0])
def test_scalars_are_reduced_over_replicas_whatever_the_axis(axis):
    made = make()
    value = made.run(lambda: tf.constant(3.0))
    assert made.reduce("MEAN", value, axis=axis).numpy() == 3.0
    vector = made.run(lambda: tf.constant([1.0, 3.0]))
    assert made.reduce("MEAN", vector, axis=0).numpy() == 2.0


@pytest.mark.parametrize("asked_for", [None, True])
def test_autotuning_is_off_unless_it_is_asked_for(asked_for):
    dataset = tf.data.Dataset.range(8).batch(2)
    if asked_for is not None:
        options = tf.data.Options()
        options.autotune.enabled = asked_for
        dataset = dataset.with_options(options)
    strategy = tf_adasum.AdasumMirroredStrategy()
    distributed = strategy.experimental_distribute_dataset(dataset)
    from_function = strategy.distribute_datasets_from_function(lambda context: dataset)
    for (own,) in (distributed._cloned_datasets, from_function._datasets):
        assert own.options().autotune.enabled is (asked_for or False)


def test_progress_bars_stay_without_the_launcher(monkeypatch):
    called = []
    monkeypatch.setattr(
        startup.keras.utils, "disable_interactive_logging", lambda: called.append(1)
    )
    first, second = (tasks_at("a:1", "b:2", rank=rank) for rank in (0, 1))
    monkeypatch.delenv(start_timeout.LAUNCHER, raising=False)
    startup._leave_progress_bars_to_the_first_worker(second)
    monkeypatch.setenv(start_timeout.LAUNCHER, "1")
    startup._leave_progress_bars_to_the_first_worker(first)
    assert not called
    startup._leave_progress_bars_to_the_first_worker(second)
    assert called


def test_one_process_is_the_first_worker_of_one():
    made = make()
    assert (made.rank, made.num_workers, made.is_first_worker) == (0, 1, True)
    for name in ("rank", "num_workers", "is_first_worker"):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)


def test_one_line_is_printed(tmp_path):
    # A process of its own: everything that it prints, TensorFlow's words included.
    script = "import tf_adasum as a; [a.AdasumMirroredStrategy(devices=['CPU:0']) for _ in '12']"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, "")
    said = [line for line in ran.stderr.splitlines() if line.startswith("tf_adasum")]
    assert said == ["tf_adasum: 1 worker, 1 replica, rule Adasum"]


def test_processes_that_were_started_together_do_not_train_alone(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ValueError, match="PMI_SIZE='2'"):
        make()
