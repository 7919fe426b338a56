"""DeltaAdasum: every replica's own optimizer, and Adasum of the steps."""

import numpy as np
import pytest
from scenarios import delta_adasum as scenarios
from scenarios import on
from support import keras_versions

# The way gone is a difference of float32 weights near 1, whose direction Adasum takes.
TOLERANCE = {"rtol": 2e-5, "atol": 5e-6}

STATISTICS = slice(12, 24)  # in `fit_and_evaluate`

ACCUMULATED = {"options": {"gradient_accumulation_steps": 2}}

CASES = [
    *(("1x2", name, {}) for name in scenarios.OPTIMIZERS if name != "nadam"),
    pytest.param("1x2", "nadam", {}, marks=keras_versions.needs_nadam),
    ("1x2", "adam", {"options": {"clipnorm": 0.5}}),
    ("1x2", "adam", {"options": {"global_clipnorm": 0.5}, "local_steps": 2}),
    ("1x2", "adam", {"options": {"weight_decay": 0.1}, "local_steps": 2}),
    pytest.param("1x2", "adam", ACCUMULATED, marks=keras_versions.needs_accumulation),
    pytest.param(
        "1x2", "adam", ACCUMULATED | {"local_steps": 2}, marks=keras_versions.needs_accumulation
    ),
    ("1x2", "lamb", {"local_steps": 4}),
    # The weights differ at the end.
    pytest.param("1x2", "adam", {"local_steps": 3, "steps": 5}, marks=pytest.mark.always),
    ("1x2", "adam", {"local_steps": 3, "steps": 5, "end": True}),
    pytest.param("2x2", "adam", {}, marks=pytest.mark.always),
    ("2x2", "adam", {"local_steps": 4}),
    pytest.param(
        "3x1",
        "lamb",
        {"local_steps": 2},
        marks=[pytest.mark.version_independent, pytest.mark.always, pytest.mark.slow],
    ),
]


@pytest.mark.parametrize(("group", "name", "arguments"), CASES, ids=str, indirect=["group"])
def test_each_replica_has_an_optimizer_and_their_steps_are_combined(group, name, arguments):
    """As one optimizer per replica, in NumPy between the combinations."""
    weights, slots = scenarios.reference(group.replicas, name, **arguments)
    results = group.run(scenarios.steps, name=name, **arguments)
    accumulated = arguments.get("options", {}).get("gradient_accumulation_steps", 1)
    steps = arguments.get("steps", scenarios.STEPS)
    full, rest = divmod(steps, arguments.get("local_steps", 1) * accumulated)
    for worker, result in enumerate(results):
        assert result["reductions"] == full + arguments.get("end", False)
        assert result["iterations"] == steps // accumulated
        for local in range(group.devices):
            replica = worker * group.devices + local
            for kind, expected in (("weight", weights), ("slot", slots)):
                for index, value in enumerate(expected[replica]):
                    actual = result[f"{kind}{index}.{local}"]
                    np.testing.assert_allclose(actual, value, **TOLERANCE, err_msg=f"{kind}{index}")
    first, last = results[0], {key[:-2]: value for key, value in results[-1].items()}
    if rest and "end" not in arguments:
        assert np.abs(first["weight0.0"] - last["weight0"]).max() > 1e-3
    else:
        np.testing.assert_array_equal(first["weight0.0"], last["weight0"])
    if name != "sgd":
        assert np.abs(first["slot0.0"] - last["slot0"]).max() > 1e-3


@on("2x1", "1x2")
def test_local_steps_end_before_evaluation_and_statistics_are_averaged(group):
    results = group.run(scenarios.fit_and_evaluate)
    for point in results[0]:
        if point.startswith(("validation", "before", "after")):
            replicas = np.concatenate([actual[point] for actual in results])
            assert (np.ptp(replicas, axis=0).max() > 0) == point.startswith("before"), point
            if point.startswith("before"):
                own = replicas[:, STATISTICS]
                after = results[0][point.replace("before", "after")][0, STATISTICS]
                assert np.ptp(own, axis=0).min() > 0
                np.testing.assert_allclose(own.mean(axis=0), after, rtol=1e-5, atol=1e-6)
    for actual in results:
        for name in ("evaluate", "predict"):
            np.testing.assert_array_equal(actual[name], results[0][name], err_msg=name)
            # Other batches, another order of summation.
            np.testing.assert_allclose(actual[name], actual[f"{name} alone"], rtol=1e-5, atol=1e-6)
