"""A replica whose gradients are not finite: all leave the step out, or all raise the same error."""

import numpy as np
import pytest
from scenarios import nonfinite as scenarios
from support import stacks

EVERY_RULE = ["adasum", "adasum of the model", "adacons", "sum", "mean"]
CASES = [
    *((rule, "momentum") for rule in EVERY_RULE),
    ("adasum", "adam"),
    ("adacons", "ema"),
    ("mean", "ema"),
    pytest.param("adasum", "accumulate", marks=stacks.needs_accumulation),
    ("adasum", "lamb"),
    ("mean", "adascale"),
    pytest.param("mean", "adascale accumulate", marks=stacks.needs_accumulation),
    ("adasum", "delta"),
    ("adasum", "delta of 2"),
    ("adasum of the model", "delta of 2"),
]


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_left_out(group, poisoned, **arguments):
    """As if the step had not been: bit for bit, at once and after three more steps."""
    results = group.run(scenarios.left_out, poisoned=poisoned % group.replicas, **arguments)
    for actual in results:
        names = [name.removeprefix("without ") for name in actual if name.startswith("without ")]
        assert len(names) > 2
        for name in names:
            np.testing.assert_array_equal(actual[f"after {name}"], actual[f"before {name}"], name)
            np.testing.assert_array_equal(actual[f"with {name}"], actual[f"without {name}"], name)
            assert np.isfinite(actual[f"with {name}"]).all(), name
        changed = [n for n in names if (actual[f"with {n}"] != actual[f"before {n}"]).any()]
        assert changed, "and the other steps are taken"
        assert actual["scale"] == 512 and actual["skipped"] == 1


@pytest.mark.parametrize(
    "group",
    ["1x2", pytest.param("2x1", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)
class TestLeftOut:
    @pytest.mark.feature("`LossScaleOptimizer` around every rule and wrapper: one overflow")
    @pytest.mark.parametrize(("rule", "optimizer"), CASES, ids=lambda name: name)
    def test_loss_scaling(self, group, rule, optimizer):
        assert_left_out(group, -1, rule=rule, optimizer=optimizer, guard="loss scaling")

    @pytest.mark.feature("`on_nonfinite='skip'`")
    @pytest.mark.parametrize(("rule", "optimizer"), CASES, ids=lambda name: name)
    def test_skip(self, group, rule, optimizer):
        assert_left_out(group, -1, rule=rule, optimizer=optimizer, guard="skip", poison="nan")

    @pytest.mark.feature("`on_nonfinite='skip'`")
    @pytest.mark.parametrize("rule", ["adasum", "mean"])
    def test_sparse_gradients(self, group, rule):
        for guard in ("loss scaling", "skip"):
            assert_left_out(group, 0, rule=rule, optimizer="momentum", guard=guard, sparse=True)

    @pytest.mark.feature("`on_nonfinite='skip'`")
    @pytest.mark.parametrize(("rule", "make"), [("adasum", "momentum"), ("mean", "adascale")])
    def test_fit_with_an_embedding(self, group, rule, make):
        arguments = {"rule": rule, "make": make}
        for actual in group.run(scenarios.skipped_in_fit, **arguments):
            assert actual["equal"].all()
            assert actual["iterations"].tolist() == [6, 6]
            assert actual["skipped"] == 2
            assert len(actual["warnings"]) == 1, "once, after the first epoch"
            assert actual["warnings"][0].startswith("1 steps were skipped")


@on("2x2")
class TestOnSeveralWorkersWithSeveralDevices:
    @pytest.mark.feature("`LossScaleOptimizer` around every rule and wrapper: one overflow")
    @pytest.mark.parametrize("poisoned", [0, -1])
    @pytest.mark.parametrize(
        ("rule", "optimizer"), [("adacons", "momentum"), ("mean", "adascale")], ids=lambda n: n
    )
    def test_loss_scaling(self, group, rule, optimizer, poisoned):
        assert_left_out(group, poisoned, rule=rule, optimizer=optimizer, guard="loss scaling")

    @pytest.mark.feature("`on_nonfinite='skip'`")
    def test_skip(self, group):
        assert_left_out(group, 1, rule="adasum", optimizer="delta of 2", guard="skip")


@on("1x2", "2x1", "2x2")
class TestRaised:
    @pytest.mark.feature("`on_nonfinite='raise'`: worker, replica, variable")
    @pytest.mark.parametrize("way", ["fit", "executions", "eagerly"])
    def test_fit(self, group, way):
        rule = "mean" if way == "executions" else "adasum"
        for actual in group.run(scenarios.raised, rule=rule, way=way):
            assert actual["type"] == "FloatingPointError"
            where = f"worker {group.workers - 1}, its replica {group.devices - 1}: "
            assert str(actual["message"]).startswith("Gradients are not finite")
            assert where + stacks.in_model("dense/kernel") in str(actual["message"])
            assert actual["finite"] and actual["unchanged"]

    @pytest.mark.feature("`on_nonfinite='raise'`: worker, replica, variable")
    def test_custom_loop(self, group):
        for actual in group.run(scenarios.raised, rule="adacons", way="loop"):
            assert actual["type"] == "InvalidArgumentError"
            where = f"worker {group.workers - 1}, its replica {group.devices - 1}: v0."
            assert where in str(actual["message"])
            assert actual["unchanged"]

    def test_loss_scaling_comes_first(self, group):
        for actual in group.run(scenarios.raised, rule="adasum", way="scaled loop"):
            assert actual["type"] == "none"
