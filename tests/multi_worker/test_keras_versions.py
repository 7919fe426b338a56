"""The same model, data and weights give the same combined gradients under Keras 3 and Keras 2."""

import contextlib
import functools
import pathlib
import sys

import numpy as np
import pytest
from scenarios import keras_versions as scenarios
from scenarios import on
from support.worker_group import WorkerGroup

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "combined_gradients.npz"
# From the name in the golden file to the name of the rule.
RULES = {"adasum": "adasum", "adacons": "adacons of the paper", "mean": "mean"}


@on("2x2")
@pytest.mark.parametrize("rule", RULES)
def test_combined_gradients_are_those_of_the_other_keras(group, rule):
    """Against the gradients with TensorFlow 2.21, see tests/golden/README.md."""
    results = group.run(scenarios.combined_gradients, rule=RULES[rule])
    with np.load(GOLDEN) as golden:
        expected = {f"gradient{index}": golden[f"{rule} gradient{index}"] for index in range(4)}
    for actual in results:
        assert actual.keys() == expected.keys()
        for name, gradient in expected.items():
            # Weights of about 1/8 have an ulp of 1e-8, which the difference of two of them keeps.
            largest = np.abs(gradient).max()
            assert largest > 1e-3
            np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=1e-5 * largest)


def main():
    """Write the golden file, with TensorFlow 2.21."""
    with contextlib.closing(WorkerGroup(2, 2, sys.argv[1])) as group:
        run = functools.partial(group.run, scenarios.combined_gradients)
        golden = {name: run(rule=rule)[0] for name, rule in RULES.items()}
    numbers = {f"{r} {name}": value for r, own in golden.items() for name, value in own.items()}
    np.savez(GOLDEN, **numbers)


if __name__ == "__main__":
    main()
