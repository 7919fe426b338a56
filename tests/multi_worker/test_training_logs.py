"""What user code may return from a step or a metric: logs are means over all replicas."""

import numpy as np
import pytest
from scenarios import training_logs as scenarios

pytestmark = pytest.mark.keras3_only(
    "Keras 2 averages what a step returns as stock TensorFlow does"
)


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@pytest.mark.feature("a metric whose `result()` returns its variable")
@on("1x2", "2x1", "2x2")
@pytest.mark.parametrize("run_eagerly, steps", [(False, 1), (False, 2), (True, 1)])
def test_metric_that_returns_its_variable(group, run_eagerly, steps):
    expected = scenarios.random_data(48)[1]
    results = group.run(
        scenarios.count_positives, run_eagerly=run_eagerly, steps_per_execution=steps
    )
    for result in results:
        for name, value in result.items():
            np.testing.assert_array_equal(value, (expected > 0).sum(), err_msg=name)


@pytest.mark.feature("steps that return vectors, whole numbers, truth values, variables")
@on("1x2", "2x1", "2x2")
def test_logs_are_means_over_all_replicas(group):
    replicas = np.arange(group.replicas)
    mean = replicas.mean()
    for logs in group.run(scenarios.return_all_sorts):
        for name in ("scalar", "half", "double", "bfloat16"):
            np.testing.assert_array_equal(logs[name], mean, err_msg=name)
        np.testing.assert_array_equal(logs["vector"], [mean, 2 * mean, 1.0])
        np.testing.assert_array_equal(logs["matrix"], np.full([2, 3], mean))
        for name in ("int32", "int64"):
            np.testing.assert_array_equal(logs[name], 10 * mean, err_msg=name)
        np.testing.assert_array_equal(logs["bool"], 1 / group.replicas)
        np.testing.assert_array_equal(logs["python_float"], 0.25)
        np.testing.assert_array_equal(logs["python_int"], 3)
        np.testing.assert_array_equal(logs["numpy"], [1.5, 2.5])
        np.testing.assert_array_equal(logs["variable"], 1.0)


@on("1x2", "2x1", "2x2")
def test_replicas_without_rows_have_no_part_in_logs(group):
    for result in group.run(scenarios.return_plain_loss):
        np.testing.assert_array_equal(result["error"], [2.0])


@on("2x1", "2x2")
def test_logs_are_averaged_only_if_a_callback_reads_them(group):
    unread = group.run(scenarios.read_logs_on_last_worker, reads=False)
    averaged = group.run(scenarios.read_logs_on_last_worker, reads=True)
    for without, with_callback in zip(unread, averaged, strict=True):
        # One in the step of `fit`, one in the step of `evaluate`.
        assert with_callback.pop("reductions") == without.pop("reductions") + 2
        assert without.pop("same with a late metric")
        for name, value in without.items():
            np.testing.assert_array_equal(with_callback[name], value, err_msg=name)
            read = averaged[-1][f"read in {name}"]
            np.testing.assert_allclose(read, value, rtol=1e-6, err_msg=name)
