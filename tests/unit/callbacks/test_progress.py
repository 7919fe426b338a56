"""The progress of a step, against the tree on the expected Gram matrix in plain formulas."""

import numpy as np
import pytest

from tf_adasum.callbacks import progress


def sum_of_coefficients(square, inner, replicas):
    """Of exchangeable replicas: a node has a sum of coefficients and a squared norm."""
    nodes = [(1.0, square)] * replicas
    while len(nodes) > 1:
        merged = []
        for (c, p), (d, q) in zip(nodes[0::2], nodes[1::2], strict=False):
            product = inner * c * d
            a, b = 1 - product / (2 * p), 1 - product / (2 * q)
            merged.append((a * c + b * d, a * a * p + b * b * q + 2 * a * b * product))
        nodes = merged + nodes[len(merged) * 2 :]
    return nodes[0][0]


@pytest.mark.parametrize("replicas", [1, 2, 3, 8, 12, 64])
def test_progress_of_a_step(replicas):
    squares, inner = np.array([4.0, 3.0, 1.0]), np.array([0.5, 2.0, 0.0])
    sums = [sum_of_coefficients(s, i, replicas) for s, i in zip(squares, inner, strict=True)]
    expected = np.sum(inner * sums) / np.sum(inner)
    actual = progress.of_step(np.stack([squares, inner]), replicas)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)


EQUAL, ORTHOGONAL = np.array([[2.0], [2.0]]), np.array([[2.0], [1e-12]])


def test_limits():
    np.testing.assert_allclose(progress.of_step(EQUAL, 16), 1)
    np.testing.assert_allclose(progress.of_step(ORTHOGONAL, 16), 16)
    assert progress.of_step(np.array([[2.0], [-1.0]]), 16) == 1, "no estimate: as averaging"


def test_a_ratio_adds_up_the_parts_of_a_training():
    steps = [EQUAL] * 30 + [ORTHOGONAL] * 10  # 4 replicas: worth 1 and 4 steps of one
    np.testing.assert_allclose(progress.ratio(steps, 4, 8), (30 + 10 / 2) / 40, rtol=1e-6)
    np.testing.assert_allclose(progress.ratio(steps, 4, 4), 1)
