"""A replica without rows contributes nothing, and nothing becomes NaN."""

import keras
import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import empty_replicas as scenarios
from support import keras_versions

import tf_adasum

KERAS_3 = pytest.mark.keras3_only("a tracker of Keras 2 takes the NaN")
ACCUMULATE = keras_versions.needs_accumulation
# Every rule, optimizer and way to train once.
CASES = [
    ("adasum", "momentum", "fit"),
    ("adasum of the model", "momentum", "fit"),
    ("adacons of the paper", "momentum", "executions"),
    ("adacons", "momentum", "fit"),
    pytest.param("sum", "momentum", "own step", marks=KERAS_3),
    ("mean", "momentum", "unbuilt"),
    ("adasum", "momentum", "eagerly"),
    ("adasum", "adam", "fit"),
    ("adasum", "ema", "fit"),
    pytest.param("adasum", "accumulate", "fit", marks=ACCUMULATE),
    ("adasum", "scaled", "fit"),
    ("adasum", "lamb", "fit"),
    ("mean", "adascale", "fit"),
    pytest.param("mean", "adascale accumulate", "fit", marks=ACCUMULATE),
    ("adasum", "delta", "fit"),
    ("adasum", "delta of nadam", "fit"),
    ("adasum", "delta of 2", "fit"),
]


@on("1x2", "2x2")
@pytest.mark.parametrize(("rule", "optimizer", "fit_mode"), CASES, ids=lambda name: name)
def test_replicas_stay_the_same_and_nothing_becomes_nan(group, rule, optimizer, fit_mode):
    results = group.run(scenarios.fit, rule=rule, optimizer=optimizer, fit_mode=fit_mode)
    # After each step, or the two executions of each epoch, and of several workers at the start.
    assert results[0]["checks"] == (4 if fit_mode == "executions" else 6) + (group.workers > 1)
    for actual in results:
        for name, value in actual.items():
            assert np.isfinite(value).all(), name
            if not name.startswith("slot"):
                np.testing.assert_array_equal(value, results[0][name], name)


@on("1x2", "2x1")
class TestCustomLoop:
    @pytest.mark.parametrize("function", [False, True], ids=["in a function", "of a function"])
    @pytest.mark.parametrize("rule", ["adasum", "mean"])
    def test_the_step_is_that_of_the_replica_with_rows(self, group, rule, function):
        arguments = {"rule": rule, "function": function}
        keras.backend.clear_session()  # numbers the layers anew
        alone = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
        expected = scenarios.steps_of_loop(alone, **arguments)
        results = group.run(scenarios.steps_of_loop, **arguments)
        for name, (value,) in expected.items():
            copies = np.concatenate([actual[name] for actual in results])
            if "moving" in name and (rule == "mean" or name.startswith("1 ")):
                # Those of replicas without rows stay, up to one rounding.
                before = np.concatenate([actual[f"0 {name[2:]}"] for actual in results])
                np.testing.assert_allclose(copies[1:], before[1:], rtol=3e-7)
                copies = copies[:1]
            # Float32 gradients, in another order of operations.
            np.testing.assert_allclose(
                copies, [value] * len(copies), rtol=1e-4, atol=1e-6, err_msg=name
            )

    @pytest.mark.parametrize("optimizer", ["delta", "delta of 2"])
    @pytest.mark.slow
    def test_local_optimizers_rest(self, group, optimizer):
        results = group.run(scenarios.steps_of_loop, rule="adasum", optimizer=optimizer)
        slots = [n[2:] for n in results[0] if n.startswith("0 ") and keras_versions.is_slot(n)]
        assert slots
        for name in slots:
            before, after = (
                np.concatenate([actual[f"{step} {name}"] for actual in results]) for step in (0, 1)
            )
            assert (after[0] != before[0]).any()
            np.testing.assert_array_equal(after[1:], before[1:])


@on("1x2", "2x2")
@pytest.mark.keras3_only("TensorFlow's kernels fail there")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.slow
def test_convolutions_and_pooling_without_rows(group, jit_compile):
    """As one process, up to rounding: TensorFlow's kernels for CPUs would end the process."""
    results = group.run(scenarios.train_convolutions, jit_compile=jit_compile)
    assert_close(results, scenarios.train_convolutions(None), rtol=1e-4, atol=1e-6)


@on("1x2")
@pytest.mark.parametrize("edges", ["edges", "x_edges"])
def test_a_graph_without_edges_is_a_batch_with_rows(group, edges):
    """Whatever the name of the input, which decides the order of the tensors; against NumPy."""
    kernel, bias, gradients = np.ones([3, 1]), np.zeros(1), []
    for inputs, targets in scenarios.graphs(edges):
        x = np.float64(inputs["nodes"])
        np.add.at(x, inputs[edges][:, 1], np.float64(inputs["nodes"])[inputs[edges][:, 0]])
        error = 2 / 4 * (x @ kernel + bias - targets)
        gradients.append((x.T @ error, error.sum(0)))
        if len(gradients) == 2:
            for_kernel, for_bias = (sum(pair) / 2 for pair in zip(*gradients, strict=True))
            kernel, bias, gradients = kernel - 0.05 * for_kernel, bias - 0.05 * for_bias, []
    results = group.run(scenarios.train_on_graphs, edges=edges)
    assert_close(results, {"weight0": kernel, "weight1": bias}, rtol=1e-5, atol=1e-6)
