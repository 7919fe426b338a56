"""DeltaAdasum: every replica's own optimizer, and Adasum of the steps."""

import re

import numpy as np
import pytest
from scenarios import delta_adasum as scenarios
from support import stacks

pytestmark = pytest.mark.feature(
    "`optimizers.DeltaAdasum` around SGD, Momentum, Adam, Nadam, AdamW, LAMB; local steps"
)

# The way gone is a difference of float32 weights near 1, whose direction Adasum takes.
TOLERANCE = {"rtol": 2e-5, "atol": 5e-6}

OPTIMIZERS = stacks.marked(scenarios.OPTIMIZERS, {"nadam": stacks.needs_nadam})


def check(group, name, first=0, **arguments):
    """Compare weights and slots with one optimizer per replica."""
    weights, slots = scenarios.reference(group.replicas, name, **arguments)
    results = group.run(scenarios.steps, name=name, **arguments)
    for worker, result in enumerate(results):
        for local in range(group.devices):
            replica = worker * group.devices + local
            for kind, expected in (("weight", weights), ("slot", slots)):
                for index, value in enumerate(expected[replica]):
                    actual = result[f"{kind}{index}.{local}"]
                    np.testing.assert_allclose(actual, value, **TOLERANCE, err_msg=f"{kind}{index}")
    return results


@pytest.mark.parametrize("group", ["1x2"], indirect=True, scope="module")
class TestOnLocalReplicas:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_one_optimizer_per_replica(self, group, name):
        (result,) = check(group, name)
        assert result["reductions"] == scenarios.STEPS
        np.testing.assert_array_equal(result["weight0.0"], result["weight0.1"])
        if name != "sgd":
            assert np.abs(result["slot0.0"] - result["slot0.1"]).max() > 1e-3

    @pytest.mark.parametrize(
        "options",
        [
            {"clipnorm": 0.5},
            {"global_clipnorm": 0.5},
            pytest.param({"gradient_accumulation_steps": 2}, marks=stacks.needs_accumulation),
            {"weight_decay": 0.1},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("local_steps", [1, 2])
    def test_options_of_the_inner_optimizer(self, group, options, local_steps):
        check(group, "adam", options=options, local_steps=local_steps)

    def test_sgd_is_adasum_of_the_gradients(self, group):
        (delta,) = group.run(scenarios.steps, name="sgd")
        (gradient,) = group.run(scenarios.steps, name="sgd", wrapped=False)
        for index in range(len(scenarios.SHAPES)):
            weight = f"weight{index}.0"
            np.testing.assert_allclose(delta[weight], gradient[weight], **TOLERANCE)

    @pytest.mark.parametrize("name", ["momentum", "adam", "lamb"])
    def test_local_steps(self, group, name):
        (result,) = check(group, name, local_steps=4)
        assert result["reductions"] == scenarios.STEPS // 4
        assert result["iterations"] == scenarios.STEPS

    def test_ends_ahead_of_time(self, group):
        (result,) = check(group, "adam", local_steps=3, steps=5, end=True)
        assert result["reductions"] == 2
        np.testing.assert_array_equal(result["weight0.0"], result["weight0.1"])

    def test_weights_differ_between_combinations(self, group):
        (result,) = check(group, "adam", local_steps=3, steps=5)
        assert result["reductions"] == 1
        assert np.abs(result["weight0.0"] - result["weight0.1"]).max() > 1e-3


@pytest.mark.parametrize("group", ["1x1"], indirect=True, scope="module")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("local_steps", [1, 4])
def test_one_replica_is_the_plain_optimizer(group, name, local_steps):
    (wrapped,) = group.run(scenarios.steps, name=name, local_steps=local_steps)
    (plain,) = group.run(scenarios.steps, name=name, wrapped=False)
    assert len(plain) > 3
    for key in set(plain) - {"reductions"}:
        np.testing.assert_array_equal(wrapped[key], plain[key], err_msg=key)


@pytest.mark.parametrize("group", ["2x2"], indirect=True, scope="module")
@pytest.mark.parametrize("local_steps", [1, 4])
def test_workers_with_devices(group, local_steps):
    results = check(group, "adam", local_steps=local_steps)
    assert [result["reductions"] for result in results] == [8 // local_steps] * 2
    np.testing.assert_array_equal(results[0]["weight0.0"], results[1]["weight0.1"])


@pytest.mark.parametrize("group", ["3x1"], indirect=True, scope="module")
@pytest.mark.one_stack
def test_three_workers(group):
    results = check(group, "lamb", local_steps=2)
    np.testing.assert_array_equal(results[0]["weight0.0"], results[2]["weight0.0"])


@pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")
@pytest.mark.parametrize("wrapper", ["AdaScale", "DeltaAdasum"])
@pytest.mark.feature("workers whose wrapped optimizers differ: refused on all of them")
def test_settings_that_differ_are_refused(group, wrapper):
    check_refused(group.run(scenarios.different_settings, wrapper=wrapper), wrapper)


@pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")
def test_scales_that_differ_are_refused(group):
    check_refused(group.run(scenarios.different_scales), "AdaScale")


def check_refused(results, wrapper):
    """All workers refuse, and say what each of them has."""
    (message,) = {str(result["message"]) for result in results}
    what, first, second = re.split("Received: worker 0: |; worker 1: ", message)
    assert "same settings" in what
    assert first.startswith(wrapper) and second.startswith(wrapper) and first != second
