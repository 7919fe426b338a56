"""A replica whose gradients are not finite: all leave the step out, or all raise the same error."""

import numpy as np
import pytest
from scenarios import nonfinite as scenarios
from scenarios import on
from support import keras_versions

CASES = [
    *((rule, "momentum") for rule in ["adasum", "adasum of the model", "adacons", "sum", "mean"]),
    ("adasum", "adam"),
    ("adacons", "ema"),
    ("mean", "ema"),
    pytest.param("adasum", "accumulate", marks=keras_versions.needs_accumulation),
    ("adasum", "lamb"),
    ("mean", "adascale"),
    pytest.param("mean", "adascale accumulate", marks=keras_versions.needs_accumulation),
    ("adasum", "delta"),
    ("adasum", "delta of 2"),
    ("adasum of the model", "delta of 2"),
]


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


@on("1x2", pytest.param("2x1", marks=pytest.mark.slow))
class TestLeftOut:
    @pytest.mark.parametrize(("rule", "optimizer"), CASES, ids=lambda name: name)
    def test_every_optimizer(self, group, rule, optimizer):
        for guard in ("loss scaling", "skip"):
            assert_left_out(group, -1, rule=rule, optimizer=optimizer, guard=guard)

    @pytest.mark.parametrize("rule", ["adasum", "mean"])
    def test_sparse_gradients(self, group, rule):
        for guard in ("loss scaling", "skip"):
            assert_left_out(group, 0, rule=rule, optimizer="momentum", guard=guard, sparse=True)

    @pytest.mark.parametrize(("rule", "optimizer"), [("adasum", "momentum"), ("mean", "adascale")])
    def test_fit_with_an_embedding(self, group, rule, optimizer):
        for actual in group.run(scenarios.fit, rule=rule, action="skip", optimizer=optimizer):
            assert actual["finite"].all()
            assert actual["counts"].tolist() == [6, 2]  # steps, and those that were skipped
            (warning,) = actual["warnings"]  # once, after the first epoch
            assert warning.startswith("1 steps were skipped")


@on("1x2", "2x2")
@pytest.mark.parametrize(
    ("rule", "options"),
    [("adasum", {}), ("mean", {"steps_per_execution": 3}), ("adasum", {"run_eagerly": True})],
    ids=["fit", "executions", "eagerly"],
)
def test_the_error_names_the_replica_and_the_variable(group, rule, options):
    where = f"worker {group.workers - 1}, its replica {group.devices - 1}: "
    for actual in group.run(scenarios.fit, rule=rule, action="raise", **options):
        message = str(actual["message"])
        assert message.startswith("FloatingPointError: Gradients are not finite")
        assert where + keras_versions.in_model("embedding/embeddings") in message
        assert actual["finite"].all() and actual["counts"].tolist() == [1, 0]
