"""The data sets of the experiments: those that are read, and those that are generated."""

import gzip
import itertools
import struct

import numpy as np
import pytest

pytestmark = [
    pytest.mark.version_independent,
    pytest.mark.keras3_only("the experiments run on TensorFlow 2.21"),
]


def test_pairs_are_the_words_within_windows(load):
    """Against a loop over all pairs of places."""

    class Widths:
        def integers(self, low, high, count):
            return np.resize([1, 3, 2], count)

    read, widths = np.arange(10, 18), np.resize([1, 3, 2], 8)
    places = itertools.permutations(range(len(read)), 2)
    expected = [(read[i], read[j]) for i, j in places if abs(i - j) <= widths[i]]
    found = load("experiments.word2vec.text")._near(read, Widths())
    assert sorted(map(tuple, found.tolist())) == sorted(expected)


def test_the_clicks_are_those_of_the_stated_model(load):
    clicks = load("experiments.data").clicks()
    train, held, test = clicks.train, clicks.validation, clicks.test
    assert [len(own[1]) for own in (train, held, test)] == [163_840, 8192, 8192]
    x, y = train
    assert (x >= 0).all() and (x[:, 4:].max(0) == [511, 255, 127, 63, 31]).all()
    # Zipf's law: twice as often as the next value, four times as often as the fourth.
    counts = np.bincount(x[:, 4])
    assert counts[0] / counts[[1, 3]] == pytest.approx([2, 4], rel=0.1)
    assert 0.2 < y.mean() < 0.3
    # ⌊exp(1 + z)⌋ ≤ 1 where z < log 2 - 1.
    assert (x[:, 0] <= 1).mean() == pytest.approx(0.3795, abs=0.01)


@pytest.fixture
def fashion_mnist(load, monkeypatch, tmp_path):
    """The module `data`, and the folder that it reads Fashion-MNIST from, with invented files."""
    data = load("experiments.data")
    monkeypatch.setattr(data, "fashion_mnist", data.fashion_mnist.__wrapped__)
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(tmp_path))
    for number, name in enumerate(data.SHA256_OF_FILE):
        count, images = (60_000, 10_000)[number // 2], "images" in name
        head = (
            struct.pack(">4I", 2051, count, 28, 28) if images else struct.pack(">2I", 2049, count)
        )
        content = np.resize(np.arange(251, dtype=np.uint8), count * (784 if images else 1))
        path = tmp_path / (f"{name}.gz" if images else name)
        whole = head + content.tobytes()
        path.write_bytes(gzip.compress(whole, 0) if images else whole)
        monkeypatch.setitem(data.SHA256_OF_FILE, name, data.hashlib.sha256(whole).hexdigest())
    return data, tmp_path


def test_fashion_mnist_is_split_into_three(fashion_mnist):
    data, _ = fashion_mnist
    splits = data.fashion_mnist()
    for name, count in (("train", 54_000), ("validation", 6_000), ("test", 10_000)):
        x, y = getattr(splits, name)
        assert x.shape == (count, 28, 28, 1) and y.shape == (count,)
        assert x.dtype == np.float32 and 0 <= x.min() and x.max() <= 1
    x, y = splits.test  # in the order of the file: pixel k is k % 251
    np.testing.assert_array_equal(y, np.arange(10_000) % 251)
    np.testing.assert_allclose(x[3].ravel(), (3 * 784 + np.arange(784)) % 251 / 255, rtol=1e-6)


def test_clothes_are_drawn_in_one_color_over_squares(load, monkeypatch):
    data = load("experiments.data")
    white = np.zeros([3, 28, 28, 1], np.float32)
    white[:, 8:20, 8:20] = 1
    splits = data.Splits(*[(white, np.arange(3))] * 3)
    monkeypatch.setattr(data, "fashion_mnist", lambda: splits)
    x, y = data.clothes_on_clutter.__wrapped__().train
    assert x.shape == (3, 32, 32, 3) and x.dtype == np.float32 and 0 <= x.min() <= x.max() <= 1
    np.testing.assert_array_equal(y, np.arange(3))
    for image in x:  # moved by at most two pixels from the center
        assert np.ptp(image[12:20, 12:20].reshape(-1, 3), axis=0).max() == 0
        squares = image[:8].reshape(2, 4, 8, 4, 3)
        assert np.ptp(squares, axis=(1, 3)).max() == 0
        assert len(np.unique(squares.mean((1, 3)))) == 2 * 8 * 3


def test_fashion_mnist_is_refused_if_a_file_is_absent_or_damaged(fashion_mnist):
    data, folder = fashion_mnist
    images = folder / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is damaged: "):
        data.fashion_mnist()
    images.write_bytes(whole)
    labels = folder / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is damaged"):
        data.fashion_mnist()
    labels.unlink()
    with pytest.raises(FileNotFoundError, match="Debian's package dataset-fashion-mnist, or set"):
        data.fashion_mnist()
