"""Keeps the position of a training in its data, and the order in which arrays are shuffled.

A pass reads the data once, from the beginning to the end. It takes one epoch, or several
epochs if `steps_per_epoch` is less than the number of batches in the data. The seed of a shuffle
depends on the epoch in which the pass began. So a resumed training reads the rows in the same order
as the interrupted training.

The order of a `tf.data.Dataset` depends on its seeds and on the number of earlier passes. So a
resumed training first begins as many passes as the interrupted training, without reading them.
"""

import random


class DataOrder:
    """The position of one `fit` in its data, and the seeds for shuffling the data.

    Args:
        seed: int, from which the seeds for shuffling are derived; the same on all workers, and in a
            resumed training.
        batch: int, how many batches are already done in the epoch that `fit` begins with. Defaults
            to 0.
        position: int, how many batches of the current pass are already done. Defaults to 0.
        began: int, the epoch in which the current pass began. Defaults to `None`, which means that
            a new pass begins.
        is_validating: whether the epoch that `fit` begins with has no steps left, only its
            validation. If so, `position` and `began` describe the pass after the validation.
            Defaults to `False`.
        passes: int, how many passes of the interrupted training have ended. Defaults to `None`,
            which means that no training was interrupted.
        first_epoch: int, the first epoch of the interrupted training. Defaults to `None`, which
            means the epoch that `fit` begins with.

    Attributes:
        epoch: the current epoch.
        began: the epoch in which the current pass began.
        has_metrics: whether the metrics of the batches already done in the epoch were restored.
    """

    def __init__(
        self,
        seed,
        batch=0,
        position=0,
        began=None,
        is_validating=False,
        *,
        passes=None,
        first_epoch=None,
    ):
        self.seed, self.epoch, self.began = seed, 0, began or 0
        self.passes_ahead, self.first_epoch = passes, first_epoch
        self._start, self.has_metrics = (batch, position), False
        self._resumes, self._is_validating = began is not None, is_validating

    def seed_of_pass(self, has_ended):
        """Return the seed of a pass that begins now.

        Args:
            has_ended: bool, whether an earlier pass has already ended in this epoch.
        """
        if self._resumes:
            self._resumes = False
        else:
            self.began = self.epoch + 1 if has_ended else self.epoch
        return self.seed_of_epoch(self.began)

    def seed_of_epoch(self, epoch):
        """Return the seed of a pass that begins in an epoch."""
        return random.Random(f"{self.seed} {epoch}").getrandbits(31)

    def take_passes(self):
        """Return how many passes of the interrupted training have ended; None in later calls."""
        passes, self.passes_ahead = self.passes_ahead, None
        return passes

    @property
    def position_ahead(self):
        """How many batches of the pass were done when `fit` began; 0 after `take_start`."""
        return self._start[1]

    @property
    def continues_pass(self):
        """Whether `fit` begins within a pass that began in an earlier epoch."""
        batch, position = self._start
        return position > batch

    def take_validation(self):
        """Return whether the first epoch has only its validation left; False in later calls."""
        is_validating, self._is_validating = self._is_validating, False
        return is_validating

    def take_start(self):
        """Return how many batches of the epoch and of the pass are done; (0, 0) in later calls."""
        start, self._start = self._start, (0, 0)
        return start
