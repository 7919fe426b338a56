"""The best learning rate of each rule: one grid for all rules that are compared, no edge wins.

Rates are ``base · 2^k``. All rules of a comparison are tried at the same rates with the same seeds,
on the validation split. If the best learning rate of one of them is the lowest or the highest, the
grid grows by one for all, up to a limit, which the report names. Then the best learning rate of
each is run with other seeds, on the test split.
"""

import dataclasses
import statistics


def by_loss(result):
    """Return the score of a result; it is larger if the loss is smaller."""
    return (-1e9 if result["loss"] is None else -result["loss"],)


@dataclasses.dataclass(frozen=True)
class Search:
    """A grid of learning rates.

    Attributes:
        base: the rate at k = 0.
        exponents: the k at the beginning, without gaps.
        widenings: how often the grid may grow at either end.
        seeds: of the search.
        final_seeds: of the runs at the rates that are compared.
    """

    base: float
    exponents: tuple[int, ...]
    widenings: int = 6
    seeds: tuple[int, ...] = (100, 101, 102)
    final_seeds: tuple[int, ...] = tuple(range(10))

    def rate(self, k):
        """Return ``base · 2^k``, exactly twice that of k - 1."""
        return self.base * 2.0**k

    def grid(self, results, settings, score, *, also=()):
        """Return the `Grid` of a comparison as far as the results tell.

        Args:
            results: the `Results`.
            settings: the cases without "rate", "seed" and "split" that are compared.
            score: a function from a result to a tuple, the larger the better.
            also: exponents that have to be tried, too, and all between.
        """
        low = min((*self.exponents, *also))
        high = max((*self.exponents, *also))
        lowest, highest = low - self.widenings, high + self.widenings
        while True:
            grid = Grid(self, settings, range(low, high + 1), score)
            if any(case not in results for case in grid.cases()):
                return grid
            best = [grid.best(results, setting) for setting in settings]
            if low in best and low > lowest:
                low -= 1
            elif high in best and high < highest:
                high += 1
            else:
                grid.is_complete = True
                grid.limited = [
                    setting for setting, k in zip(settings, best, strict=True) if k in (low, high)
                ]
                return grid


class Grid:
    """The learning rates of a comparison so far.

    Attributes:
        exponents: the k that are tried, a range.
        is_complete: whether all have been run, and no edge wins that could move.
        limited: the settings whose best rate is an edge all the same.
    """

    def __init__(self, search, settings, exponents, score):
        self.search, self.settings, self.exponents, self.score = search, settings, exponents, score
        self.is_complete = False
        self.limited = []

    def cases(self):
        """Return the cases of the search."""
        return [
            case
            for setting in self.settings
            for k in self.exponents
            for case in self.runs(setting, k, "validation")
        ]

    def runs(self, setting, k, split):
        """Return the cases of one setting and rate: of the search, or those on the test split."""
        seeds = self.search.seeds if split == "validation" else self.search.final_seeds
        own = dict(setting, rate=self.search.rate(k), split=split)
        return [dict(own, seed=seed) for seed in seeds]

    def best(self, results, setting):
        """Return the k with the best median score; the lower of two."""
        return max(self.exponents, key=lambda k: (self.median(results, setting, k), -k))

    def median(self, results, setting, k):
        """Return the median of each component of the score."""
        scores = [self.score(results[case]) for case in self.runs(setting, k, "validation")]
        return tuple(map(statistics.median, zip(*scores, strict=True)))
