"""How workers start: one that is missing, by IPv6, several strategies in one process."""

import re
import subprocess
import sys
import time

import pytest
from scenarios import aggregation, assert_close, basics
from support.pace import PACE
from support.rendezvous_tasks import needs_ipv6
from support.worker_group import WorkerGroup, free_ports, worker_environment

START = """
import tensorflow as tf, tf_adasum
options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=3)
tf_adasum.AdasumMirroredStrategy(communication_options=options)
"""


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.version_independent
def test_a_missing_worker_is_named(index):
    ports, begin = free_ports(2), time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", START],
        env=worker_environment(ports, index, devices=1),
        capture_output=True,
        text=True,
        timeout=60 * PACE,
    )
    assert ended.returncode == 1
    message = ended.stderr.strip().splitlines()[-1]
    assert re.search(f"TimeoutError.*worker {1 - index} .*{ports[1 - index]}.*did not", message)
    # 3 s of it waiting, the rest importing TensorFlow
    assert time.monotonic() - begin < 40 * PACE


@needs_ipv6
def test_workers_train_by_ipv6(tmp_path):
    """They share a secret, too: one worker has it from a variable, the other one from a file."""
    (tmp_path / "secret").write_text("s3cret\n")
    secrets = [{"TF_ADASUM_SECRET": "s3cret"}, {"TF_ADASUM_SECRET_FILE": str(tmp_path / "secret")}]
    with WorkerGroup(2, 1, tmp_path, hosts=["[::1]"] * 2, environments=secrets) as group:
        results = group.run(basics.train_on_identical_data, replicas=2, loss="mean")
    expected = basics.train_on_identical_data(None, replicas=1, loss="mean")
    assert_close(results, expected, rtol=2e-5, atol=2e-6)


def test_the_plan_follows_the_hosts(tmp_path):
    """Two workers with two devices each, on two addresses, which count as two hosts."""
    with WorkerGroup(2, 2, tmp_path, hosts=["127.0.0.1", "127.0.0.2"]) as group:
        results = group.run(aggregation.plan_of_a_large_bucket)
    assert [tuple(result["plan"]) for result in results] == [(2, 2)] * 2


STRATEGIES = """
import sys, time
import keras, numpy as np, tensorflow as tf, tf_adasum

def made(rule):
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rule)

    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        marker = strategy.gradient_reduction
        return context.all_reduce("SUM", [tf.constant([3.0])], options=marker)

    return strategy, lambda: strategy.experimental_local_results(strategy.run(step)[0])[0].numpy()

def fit(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=8, verbose=0)

first, of_first = made("adasum")
rank, rules = first.rank, ["adasum", "sum"]
assert rank == first.cluster_resolver.task_id
assert (first.num_workers, first.is_first_worker) == (2, rank == 0)
expected = {"adasum": 3.0, "sum": 3.0 * first.num_replicas_in_sync}  # of equal gradients
fit(first)
for number in range(1, 20):
    time.sleep(0.5 * (number < 5 and number % 2 == rank))  # the other one is ahead
    strategy, combined = made(rules[number % 2])
    assert combined() == expected[rules[number % 2]], number
fit(strategy)
assert of_first() == expected["adasum"], "the first one still works"

try:
    made(rules[rank])
except ValueError as error:
    assert "same settings" in str(error) and "worker 1" in str(error), error
else:
    raise AssertionError("different settings")
assert of_first() == expected["adasum"]

print("as expected", flush=True)
if rank == 1:
    sys.exit()
try:
    made("adasum")
except tf_adasum.WorkerLostError as error:
    assert "worker 1" in str(error) and "has ended" in str(error), error
    print("as expected", flush=True)
"""


@pytest.mark.slow
def test_many_strategies_in_the_same_processes(tmp_path):
    """Each worker is the later one at times; they differ at last, and one does not come."""
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    ended = subprocess.run(
        [sys.executable, "-m", "tf_adasum.launch", "-n", "2", tmp_path / "strategies.py"],
        env=worker_environment([], 0, devices=1),
        capture_output=True,
        text=True,
        timeout=120 * PACE,
    )
    assert ended.stdout.count("as expected") == 3, ended.stderr[-3000:]
    assert ended.returncode == 1
    assert "worker 0 ended with exit status 0 although it had lost a worker" in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "tf_adasum: 2 workers, " in line]
    assert len(lines) == 2, "one line for each rule"
    assert all(line.startswith("[worker 0]") for line in lines)
