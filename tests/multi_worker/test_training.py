"""Training on every topology, against one process and against the oracle."""

import functools

import numpy as np
import pytest
from scenarios import assert_close, basics, on, several_strategies
from support import oracle
from test_aggregation import assert_combined

# The same sums in another order: a few float32 roundings a step, over 30 steps.
FLOAT32_STEPS = {"rtol": 2e-5, "atol": 2e-6}


# One rounding to the gradient's dtype, and for float32 sums of 1801 elements in between.
ROUNDING = {"float64": 1e-12, "float32": 2e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}


# What does not depend on the topology is tested on one local and one distributed topology only:
# tracing a step for several replicas takes seconds.
@on("1x1", "1x4", "2x1", "3x1", "2x2")
class TestTraining:
    def test_identical_data_equals_one_replica(self, group):
        for options in [
            {"loss": "mean", "l2": 0.5, "clipnorm": 0.1},
            {"loss": "sum", "l2": 0.5},
            {"loss": "function", "run_eagerly": True},
        ]:
            results = [basics.train_on_identical_data(None, replicas=1, **options)]
            results += group.run(basics.train_on_identical_data, replicas=group.replicas, **options)
            for each in results:
                del each["loss"]  # it sums over all rows if the user's loss is a sum
            assert_close(results[1:], results[0], **FLOAT32_STEPS)

    def test_gradients_are_combined_as_by_the_oracle(self, group):
        """In one bucket and in several, in a function and eagerly; a NaN spoils its variable."""
        last = group.replicas - 1
        for rule, options in [
            ("adasum", {"not_finite": [last, "nan"]}),
            ("adasum", {"bytes_per_pack": 100, "not_finite": [0, "inf"]}),
            ("adasum", {"eager": True}),
            ("sum", {}),
        ]:
            results = group.run(basics.reduce_gradients, rule=rule, **options)
            combine = oracle.adasum if rule == "adasum" else functools.partial(np.sum, axis=0)
            assert_combined(results, group, combine, ROUNDING, options.get("not_finite"))


@on(
    *("1x1", "1x4", "3x1", "2x2"),
    pytest.param("2x1", marks=pytest.mark.always),
    # As many replicas as one process can have.
    pytest.param("1x16", marks=[pytest.mark.always, pytest.mark.version_independent]),
    pytest.param("1x32", marks=[pytest.mark.slow, pytest.mark.version_independent]),
)
def test_disjoint_features_give_the_sum(group):
    # Replica r's loss is the mean of (w_r - y)² over its four rows, from w = 0.
    y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
    expected = {"weight0": 2 * y.mean(axis=1, keepdims=True)}
    results = group.run(basics.train_on_disjoint_features, timeout=240)
    assert_close(results, expected, rtol=1e-6)


@on("1x4", "2x1", "2x2")
def test_communication_options_reach_every_collective(group):
    """Local replicas need no collectives."""
    ops = ["CollectiveAllToAllV2"] + ["CollectiveGatherV2"] * 3 if group.workers > 1 else []
    options = {"timeout_seconds": 77, "implementation": "RING"}
    for actual in group.run(basics.collective_attributes, **options):
        assert actual["ops"].tolist() == sorted(ops * group.devices)
        assert actual["timeouts"].tolist() == [77.0] * len(ops) * group.devices
        assert actual["hints"].tolist() == ["ring"] * len(ops) * group.devices


@on("1x2", "2x1")
def test_own_reductions(group):
    numbers = np.arange(group.replicas) + 1.0
    expected = {"sum": numbers.sum(), "mean": numbers.mean(), "list": numbers}
    for actual in group.run(basics.own_reductions):
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], [value] * group.devices, err_msg=name)


@on("2x1", "2x2")
def test_other_reductions_open_no_files(group):
    for own in group.run(basics.reduce_without_descriptors):
        assert own["sum"] == own["expected"]


@on("2x1")
@pytest.mark.slow
def test_many_strategies_in_the_same_processes(group):
    """Each worker is the later one at times; at last their rules differ."""
    for actual in group.run(several_strategies.made_in_turns):
        assert actual["combined"].tolist() == actual["expected"].tolist()
        message = str(actual["message"])
        assert "same settings" in message and "worker 1" in message
