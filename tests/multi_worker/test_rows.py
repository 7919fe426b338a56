"""A replica without rows contributes nothing, and nothing becomes NaN."""

import keras
import numpy as np
import pytest
from scenarios import rows as scenarios
from scenarios.basics import random_data
from support import stacks

EMPTY = pytest.mark.feature("a last batch that leaves replicas without rows: they add nothing")


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_finite_and_alike(results):
    for actual in results:
        for name, value in actual.items():
            assert np.isfinite(value).all(), name
            if name.startswith(("log", "weight", "evaluated")):
                np.testing.assert_array_equal(value, results[0][name], name)


CASES = [
    ("adasum", "momentum", "fit"),
    ("adacons", "momentum", "executions"),
    ("sum", "momentum", "own step"),
    ("mean", "momentum", "fit"),
    ("adasum", "scaled", "fit"),
    ("adasum", "delta", "fit"),
    ("adasum", "delta of 2", "fit"),
    ("mean", "adascale", "fit"),
    ("adasum", "momentum", "eagerly"),
]


@on("1x2", "2x1")
@EMPTY
class TestFit:
    @pytest.mark.parametrize(("rule", "optimizer", "way"), CASES, ids=lambda name: name)
    def test_nothing_becomes_nan(self, group, rule, optimizer, way):
        arguments = {"rule": rule, "optimizer": optimizer, "way": way}
        results = group.run(scenarios.fit, **arguments)
        assert_finite_and_alike(results)
        assert results[0]["iterations"] == 6

    def test_logs_are_those_of_all_rows(self, group):
        """Without learning, so that one process can tell the loss of all rows."""
        results = group.run(scenarios.logs)
        x, y = random_data(2 * 8 * group.replicas + 1)
        keras.utils.set_random_seed(4)
        model = scenarios.build(normalization=False)
        difference = model(x).numpy() - y
        penalty = 0.1 * np.sum(np.square(model.layers[0].kernel.numpy()))
        for actual in results:
            mse = np.mean(difference**2)
            np.testing.assert_allclose(actual["loss"], mse + penalty, rtol=1e-5)
            np.testing.assert_allclose(actual["mae"], np.abs(difference).mean(), rtol=1e-5)


@on("1x2", "2x1")
@pytest.mark.keras3_only("a tracker of Keras 2 takes the NaN")
@EMPTY
def test_a_tracker_leaves_out_replicas_without_rows(group):
    """It has a number of each replica for two batches, and one for the single row of the last."""
    for actual in group.run(scenarios.tracked):
        squares = np.square(actual["errors"])
        expected = (2 * group.replicas * squares[:-1].mean() + squares[-1]) / (
            2 * group.replicas + 1
        )
        np.testing.assert_allclose(actual["tracked"], expected.item(), rtol=1e-5)


def weights(results, step, kind="weight"):
    """For each replica dict of what it has after a step."""
    found = []
    for actual in results:
        replicas = {name.rpartition(".")[2] for name in actual if f"{step} {kind}" in name}
        for replica in sorted(replicas):
            found.append(
                {
                    name.rpartition(".")[0].partition(f"{kind} ")[2]: value
                    for name, value in actual.items()
                    if name.startswith(f"{step} {kind}") and name.endswith(f".{replica}")
                }
            )
    return found


@on("1x2", "2x1")
@EMPTY
class TestCustomLoop:
    def run(self, group, **arguments):
        rows = [8] + [0] * (group.replicas - 1)
        return group.run(scenarios.one_step, rows=rows, **arguments)

    @pytest.mark.parametrize("function", [False, True], ids=["in a function", "of a function"])
    @pytest.mark.parametrize(("rule", "share"), [("adasum", 1), ("sum", 1), ("mean", 1)])
    def test_the_step_is_that_of_the_others(self, group, rule, share, function):
        """Momentum: v <- 0.9 v - 0.05 g, w <- w + v, with g of replica 0 alone."""
        results = self.run(group, rule=rule, function=function)
        before, after = weights(results, 0), weights(results, 1)
        slots, slots_after = weights(results, 0, "slot"), weights(results, 1, "slot")
        gradient = self.gradient_of_first(group, before[0])
        trainable = [name for name in before[0] if "moving" not in name and "seed" not in name]
        momenta = [name for name in slots[0] if stacks.is_slot(name)]
        for replica in range(group.replicas):
            for name, slot, own in zip(trainable, momenta, gradient, strict=True):
                v = 0.9 * slots[replica][slot] - 0.05 * share * own
                # Float32 gradients, in another order of operations.
                np.testing.assert_allclose(
                    slots_after[replica][slot], v, rtol=1e-4, atol=1e-6, err_msg=slot
                )
                np.testing.assert_allclose(
                    after[replica][name], before[replica][name] + v, rtol=1e-4, atol=1e-6
                )
        for name in before[0]:
            if "moving" in name:  # those of the empty replica stay, up to one rounding
                for replica in range(1, group.replicas):
                    np.testing.assert_allclose(
                        after[replica][name], before[replica][name], rtol=3e-7
                    )

    def gradient_of_first(self, group, values):
        """By a single process, from the weights of replica 0 and its rows."""
        import tensorflow as tf

        x, y = (part[:8] for part in random_data(8 * group.replicas))
        model = scenarios.build()
        for variable, value in zip(model.variables, values.values(), strict=True):
            variable.assign(value)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) + sum(model.losses)
        return [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]

    @pytest.mark.parametrize("optimizer", ["delta", "delta of 2"])
    def test_local_optimizers_rest(self, group, optimizer):
        results = self.run(group, rule="adasum", optimizer=optimizer)
        before, after = weights(results, 0, "slot"), weights(results, 1, "slot")
        moved = [name for name in before[0] if stacks.is_slot(name)]
        assert moved
        for name in moved:
            assert (after[0][name] != before[0][name]).any()
            for replica in range(1, group.replicas):
                np.testing.assert_array_equal(after[replica][name], before[replica][name])
        assert_finite_and_alike(results)


@on("1x3")
@pytest.mark.slow
@EMPTY
def test_four_rows_on_three_devices(group):
    for rule in ("adasum", "adacons", "mean"):
        arguments = {"rule": rule, "rows": [2, 2, 0], "normalization": True}
        assert_finite_and_alike(group.run(scenarios.one_step, **arguments))


@on("1x2", "2x1", "2x2")
@EMPTY
@pytest.mark.keras3_only("TensorFlow's kernels fail there")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_convolutions_and_pooling_without_rows(group, jit_compile):
    """As one process, up to rounding: TensorFlow's kernels for CPUs would end the process."""
    results = group.run(scenarios.train_convolutions, jit_compile=jit_compile)
    for name, expected in scenarios.train_convolutions(None).items():
        for actual in results:
            np.testing.assert_allclose(actual[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
