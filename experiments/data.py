"""The data of the experiments, in fixed splits: training, validation, test.

What is generated is kept in build/experiments.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build" / "experiments"


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
    """Inputs and labels of three splits."""

    train: tuple[Any, Any]
    validation: tuple[Any, Any]
    test: tuple[Any, Any]


def split(x, y, validation, test):
    """Return the first rows for the test, the next for validation, the rest for training."""
    cuts = (slice(test + validation, None), slice(test, test + validation), slice(test))
    return Splits(*((x[cut], y[cut]) for cut in cuts))


@functools.cache
def digits():
    """Return scikit-learn's 1797 8×8 digits in [0, 1]: 1197, 300 and 300 of them."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    order = np.random.default_rng(0).permutation(len(loaded.target))
    images = (loaded.images[order, ..., None] / 16).astype(np.float32)
    return split(images, loaded.target[order].astype(np.int32), 300, 300)


@functools.cache
def mnist1d():
    """Return MNIST-1D, generated as its paper does: 3200, 800 and 1000 signals of 40 samples.

    Reference: Greydanus and Kobak, "Scaling Down Deep Learning with MNIST-1D", ICML 2024.
    """
    path = BUILD / "mnist1d.npz"
    if not path.exists():
        from mnist1d.data import get_dataset_args, make_dataset

        made = make_dataset(get_dataset_args())
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: made[name] for name in ("x", "y", "x_test", "y_test")})
    with np.load(path) as made:
        x = np.concatenate([made["x_test"], made["x"]])[:, None, :, None].astype(np.float32)
        y = np.concatenate([made["y_test"], made["y"]]).astype(np.int32)
    return split(x, y, 800, 1000)
