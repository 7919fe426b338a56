"""Training on every topology, against one process and against the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from scenarios import basics
from support import oracle
from support.worker_group import WorkerFailed

# Workers x devices of each. What does not depend on the topology is tried on one local and one
# distributed topology only: tracing a step for several replicas takes seconds.
TOPOLOGIES = ["1x1", "1x4", "2x1", "3x1", "2x2"]
LOCAL_AND_DISTRIBUTED = ["1x4", "2x1"]

# The same sums in another order: a few float32 roundings a step, over 30 steps.
FLOAT32_STEPS = {"rtol": 2e-5, "atol": 2e-6}

# One rounding to the gradient's dtype, and for float32 sums of 1801 elements in between.
ROUNDING = {"float64": 1e-12, "float32": 2e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def everywhere(topologies=TOPOLOGIES):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_close(actual, expected, **tolerances):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], err_msg=name, **tolerances)


def assert_equals_one_replica(group, options):
    expected = basics.train_on_identical_data(None, replicas=1, **options)
    del expected["loss"]  # the logged loss sums over all rows where the user's loss is a sum
    for actual in group.run(basics.train_on_identical_data, replicas=group.replicas, **options):
        del actual["loss"]
        assert_close(actual, expected, **FLOAT32_STEPS)


@everywhere(LOCAL_AND_DISTRIBUTED)
@pytest.mark.parametrize(
    "options",
    [
        {"loss": "function"},
        {"loss": "mean", "l2": 0.5},
        {"loss": "sum", "l2": 0.5},
        {"loss": "mean", "clipnorm": 0.1},
        {"loss": "mean", "run_eagerly": True},
    ],
    ids=lambda options: ",".join(f"{key}={value}" for key, value in options.items()),
)
def test_identical_data_equals_one_replica_with(group, options):
    assert_equals_one_replica(group, options)


def assert_combined(group, results, rule):
    combine = oracle.adasum if rule == "adasum" else lambda vectors: np.sum(vectors, axis=0)
    for number, gradient in enumerate(basics.known_gradients(group.replicas)):
        vectors = tf.cast(gradient, tf.float64).numpy().reshape(group.replicas, -1)
        expected = combine(vectors).reshape(gradient.shape[1:])
        scale = np.abs(expected).max(initial=1e-300)
        for copies in results:
            for local in range(group.devices):
                error = np.abs(copies[f"{number}.{local}"] - expected).max(initial=0) / scale
                assert error <= ROUNDING[gradient.dtype.name], (number, gradient.dtype, error)


@everywhere(LOCAL_AND_DISTRIBUTED)
def test_identical_data_is_scaled_up_by_the_sum(group):
    """The negative case: with "sum" the same data does *not* equal one replica."""
    expected = basics.train_on_identical_data(None, replicas=1, loss="mean")
    actual = group.run(
        basics.train_on_identical_data, replicas=group.replicas, loss="mean", rule="sum"
    )[0]
    assert np.abs(actual["weight0"] - expected["weight0"]).max() > 1e-3


@everywhere(LOCAL_AND_DISTRIBUTED)
def test_gradients_are_combined_in_eager_mode(group):
    assert_combined(group, group.run(basics.reduce_gradients, rule="adasum", eager=True), "adasum")


@everywhere(LOCAL_AND_DISTRIBUTED)
@pytest.mark.parametrize("dtype", ["int32", "complex64"])
@pytest.mark.one_stack
def test_unusable_gradients_are_refused_on_all_workers(group, dtype):
    for actual in group.run(basics.apply_unusable_gradient, dtype=dtype):
        assert dtype in str(actual["message"])
    # No collective had started: the group still works.
    group.run(basics.reduce_gradients, rule="adasum")


@everywhere()
class TestTraining:
    def test_mean_equals_one_process(self, group):
        expected = basics.train_on_global_batches(None, "mean")
        for actual in group.run(basics.train_on_global_batches, rule="mean"):
            assert_close(actual, expected, **FLOAT32_STEPS)

    @pytest.mark.feature("`fit`: losses reduced by mean or sum")
    @pytest.mark.parametrize("loss", ["mean", "sum"])
    def test_identical_data_equals_one_replica(self, group, loss):
        assert_equals_one_replica(group, {"loss": loss})

    def test_disjoint_features_give_the_sum(self, group):
        # Replica r's loss is the mean of (w_r - y)² over its four rows, from w = 0.
        y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
        expected = 2 * y.mean(axis=1, keepdims=True)
        for actual in group.run(basics.train_on_disjoint_features):
            np.testing.assert_allclose(actual["weight0"], expected, rtol=1e-6)

    @pytest.mark.feature("replicas stay bit-identical")
    def test_replicas_are_bit_identical(self, group):
        results = group.run(basics.train_with_adam, rule="adasum")
        for number in {name.split(".")[0] for name in results[0]}:
            first = results[0][f"{number}.0"]
            for copies in results:
                for local in range(group.devices):
                    np.testing.assert_array_equal(copies[f"{number}.{local}"], first)

    @pytest.mark.feature("custom loops with `strategy.run`, `all_reduce` of gradients")
    @pytest.mark.parametrize("rule, bytes_per_pack", [("adasum", 0), ("adasum", 100), ("sum", 0)])
    def test_gradients_are_combined_as_by_the_oracle(self, group, rule, bytes_per_pack):
        results = group.run(basics.reduce_gradients, rule=rule, bytes_per_pack=bytes_per_pack)
        assert_combined(group, results, rule)

    @pytest.mark.feature("a NaN or Inf in one gradient is detected on all workers")
    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_a_non_finite_gradient_is_seen_by_all(self, group, value):
        not_finite = [group.replicas - 1, value]
        for copies in group.run(basics.reduce_gradients, rule="adasum", not_finite=not_finite):
            for local in range(group.devices):
                if group.replicas > 1:  # the whole variable, not one element
                    assert not np.isfinite(copies[f"7.{local}"]).any()
                assert not np.isfinite(copies[f"7.{local}"]).all()
                assert np.isfinite(copies[f"0.{local}"]).all()

    @pytest.mark.feature("`fit`, `evaluate`, `predict` with NumPy data, metrics")
    def test_losses_metrics_and_predictions_equal_one_process(self, group):
        expected = basics.evaluate_and_predict(None)
        for actual in group.run(basics.evaluate_and_predict):
            assert_close(actual, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.feature("a model without `Input`; last batches that leave replicas without rows")
    def test_unbuilt_model_trains(self, group):
        """33 rows in batches of 32: the last batch leaves replicas with one row or with none."""
        results = group.run(basics.train_unbuilt_model, rows=33)
        for actual in results:
            assert np.isfinite(actual["loss"]).all() and np.isfinite(actual["weight0"]).all()
            np.testing.assert_array_equal(actual["weight0"], results[0]["weight0"])


@everywhere(["2x1", "3x1"])
@pytest.mark.one_stack
def test_a_large_gradient_travels_in_pieces(group):
    for actual in group.run(basics.reduce_large_gradient, size=12_000_017):
        assert max(actual["errors"]) <= ROUNDING["float32"]


@everywhere(["2x1", "2x2"])
def test_communication_options_reach_every_collective(group):
    for actual in group.run(
        basics.collective_attributes, timeout_seconds=77, implementation="RING"
    ):
        small, large = ["CollectiveGatherV2"], ["CollectiveAllToAllV2", *["CollectiveGatherV2"] * 2]
        assert list(actual["ops"]) == sorted([*small, *large] * group.devices)
        assert set(actual["timeouts"]) == {77.0}
        assert set(actual["hints"]) == {"RING"}


@everywhere(["1x4"])
@pytest.mark.one_stack
def test_local_replicas_need_no_collectives(group):
    assert len(group.run(basics.collective_attributes)[0]["ops"]) == 0


@everywhere(["2x1"])
@pytest.mark.one_stack
def test_an_exception_on_the_workers_is_reported(group):
    with pytest.raises(WorkerFailed, match="`aggregation` must be one of"):
        group.run(basics.train_with_adam, rule="no such rule")
