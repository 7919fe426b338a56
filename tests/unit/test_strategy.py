"""Wrong arguments of AdasumMirroredStrategy are refused on all workers before TensorFlow starts."""

import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum import errors, rules, startup
from tf_adasum.cluster import tasks as cluster_tasks
from tf_adasum.compat import base_strategy
from tf_adasum.compat import tensorflow as tensorflow_compat

Options = tf.distribute.experimental.CommunicationOptions


@pytest.fixture
def no_start(monkeypatch):
    """Let no strategy start TensorFlow's collectives."""
    name = "GradientAggregatingExtended"
    monkeypatch.setattr(tensorflow_compat, name, lambda *_, **__: pytest.fail("it starts"))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TF_ADASUM_DEVICES_PER_WORKER", raising=False)


def make(**arguments):
    return tf_adasum.AdasumMirroredStrategy(**{"devices": ["CPU:0"], **arguments})


WRONG = [
    ({"start_timeout": 0}, r"`start_timeout` must be .* Received: start_timeout=0"),
    ({"aggregation": "adasun"}, r"one of \['adacons', 'adasum', 'mean', 'sum'\]"),
    ({"aggregation": rules.Mean}, r"Pass an instance: Mean\(\)"),
    ({"aggregation": None}, "aggregation=None"),
    ({"on_nonfinite": "ignore"}, "`on_nonfinite` must be 'propagate' .* on_nonfinite='ignore'"),
    ({"communication_options": Options}, "`communication_options` must be"),
    ({"cluster_resolver": "worker:0"}, "cluster_resolver='worker:0'"),
    ({"radix_plan": [3]}, r"`radix_plan` must be .* Received: radix_plan=\[3\]"),
    ({"local_reduction": "sum"}, "`local_reduction` must be .*'sum'"),
    ({"wire_dtype": "int8"}, "`wire_dtype` must be .*'int8'"),
    ({"devices": []}, "different devices"),
    ({"transport": "tcp"}, "transport='tcp'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[str(each) for each, _ in WRONG])
def test_wrong_arguments_are_refused(no_start, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("addresses", "averaged"), [(("a:1", "b:1"), 2), (("a:1", "a:2", "b:1", "b:2"), 4)]
)
def test_workers_of_one_address_share_a_host(addresses, averaged):
    tasks = cluster_tasks.Cluster(addresses, addresses, 0)
    assert startup.reduction_size("mean", tasks, devices=2) == averaged
    assert startup.reduction_size(None, tasks, devices=2) == 1
    assert startup.replicas_per_host(tasks, devices=2) == averaged


def test_hosts_with_different_numbers_of_workers():
    tasks = cluster_tasks.Cluster(("a:1", "a:2", "b:1"), ("worker",) * 3, 0)
    assert startup.replicas_per_host(tasks, devices=2) is None
    with pytest.raises(ValueError, match=r"the same number of workers on every host.*a:1, "):
        startup.reduction_size("mean", tasks, devices=2)


def test_devices_by_position_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"devices=\[...\]") as caught:
        made = tf_adasum.AdasumMirroredStrategy(["CPU:0"])
    assert made.extended.worker_devices[0].endswith("CPU:0") and caught[0].filename == __file__


def test_former_names_work_with_a_warning():
    strategy = make()
    for name in base_strategy.FORMERLY_PUBLIC:
        with pytest.warns(DeprecationWarning, match=f"strategy.{name} is deprecated") as caught:
            assert getattr(strategy, name) == getattr(strategy, f"_{name}")
        assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'worker'"):
        _ = strategy.worker


# ---- what the arguments set, on one device -----------------------------------------------------


@pytest.mark.parametrize("rule", ["sum", rules.Adasum()], ids=repr)
def test_one_device(rule, capfd):
    errors.hint.cache_clear()
    made = make(aggregation=rule, radix_plan=[1])
    line = (
        f"tf_adasum: 1 worker, 1 replica, rule {type(made.aggregation).__name__}; "
        "to use more, start it with tf-adasum-launch\n"
    )
    assert len(line) <= 100
    assert capfd.readouterr().err.count(line) == 1
    assert isinstance(made, tf.distribute.MultiWorkerMirroredStrategy)
    assert (made.rank, made.num_workers, made.is_first_worker) == (0, 1, True)
    assert repr(made.aggregation) == repr(rules.get(rule))
    assert isinstance(made.extended._cross_device_ops, tf_adasum.AdasumCrossDeviceOps)
    assert made.extended._cross_device_ops.scheme.rule is made.aggregation
    with pytest.raises(AttributeError):
        made.is_first_worker = False


def test_the_gradient_of_one_replica_may_be_an_argument_of_a_function():
    made = make()

    @tf.function
    def combine(gradient):
        reduce = tf.distribute.get_replica_context().all_reduce
        return reduce("SUM", gradient, options=made.gradient_reduction)

    combined = tf.function(lambda gradient: made.run(combine, [gradient]))(tf.constant([1.0, 2.0]))
    assert combined.numpy().tolist() == [1.0, 2.0]


def test_scalars_are_reduced_over_replicas_whatever_the_axis():
    made = make()
    value = made.run(lambda: tf.constant(3.0))
    assert made.reduce("MEAN", value, axis=None).numpy() == 3.0
    assert made.reduce("MEAN", value, axis=0).numpy() == 3.0
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


def test_processes_that_were_started_together_do_not_train_alone(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ValueError, match="PMI_SIZE='2'"):
        make()
