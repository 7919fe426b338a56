"""The same model, data and weights give the same combined gradients in both stacks."""

import pathlib
import sys

import numpy as np
import pytest
from scenarios import stacks as scenarios

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "combined_gradients.npz"
RULES = ["adasum", "adacons", "mean"]


def run(group, rule):
    return group.run(scenarios.combined_gradients, rule=rule)


@pytest.mark.parametrize("group", ["2x2"], indirect=True, scope="module")
@pytest.mark.parametrize("rule", RULES)
def test_combined_gradients_are_those_of_the_other_stack(group, rule):
    """Against what the stack of TensorFlow 2.21 gave, see tests/golden/README.md."""
    with np.load(GOLDEN) as golden:
        names = [f"gradient{index}" for index in range(4)]
        expected = {name: golden[f"{rule} {name}"] for name in names}
    for actual in run(group, rule):
        assert sorted(actual) == sorted(expected)
        for name, gradient in expected.items():
            # Weights of about 1/8 have an ulp of 1e-8, which the difference of two of them keeps.
            largest = np.abs(gradient).max()
            assert largest > 1e-3
            np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("group", ["2x1", "2x2"], indirect=True, scope="module")
@pytest.mark.feature("worker 0 alone saves: `.keras`, `.h5`, weights, `tf.train.Checkpoint`")
def test_worker_0_alone_saves(group, tmp_path):
    """A model with BatchNormalization and metrics; the others go on, and all train again."""
    first, *others = group.run(scenarios.save_alone, folder=str(tmp_path))
    for kind in (".keras", ".h5", ".weights.h5", "checkpoint"):
        for index in range(scenarios.WEIGHTS):
            value, expected = first[f"{kind} {index}"], first[f"weights {index}"]
            np.testing.assert_array_equal(value, expected, err_msg=f"{kind} {index}")
    for other in others:
        assert len(other) == scenarios.WEIGHTS
        for name, value in other.items():
            np.testing.assert_array_equal(value, first[name], err_msg=name)


def main():
    """Write the golden file; in the stack of TensorFlow 2.21."""
    from support.worker_group import WorkerGroup

    folder = pathlib.Path(sys.argv[1])
    group = WorkerGroup(2, 2, folder, "adasum")
    try:
        golden = {rule: run(group, rule)[0] for rule in RULES}
    finally:
        group.close()
    numbers = {f"{r} {name}": value for r, own in golden.items() for name, value in own.items()}
    np.savez(GOLDEN, **numbers)


if __name__ == "__main__":
    main()
