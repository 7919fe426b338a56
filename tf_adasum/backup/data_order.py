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
        facts: the facts of the `Backup` that the training resumes from. Defaults to `None`: no
            training was interrupted.

    Attributes:
        epoch: the current epoch.
        began: the epoch in which the current pass began.
        passes_ahead: how many passes of the interrupted training have ended; None without one.
        first_epoch: the first epoch of the training; None before it has begun.
        has_metrics: whether the metrics of the batches already done in the epoch were restored.
    """

    def __init__(self, seed, facts=None):
        self._resumes = facts is not None
        facts = facts or {}
        self.seed, self.epoch, self.has_metrics = seed, 0, False
        # After the steps of an epoch, "position" and "pass" describe the pass after its validation.
        self._is_validating = bool(facts.get("validating", 0))
        batch = 0 if self._is_validating else facts.get("batch", 0)
        self._start, self.began = (batch, facts.get("position", 0)), facts.get("pass", 0)
        self.passes_ahead = facts.get("passes", 0) if self._resumes else None
        self.first_epoch = facts.get("first")

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
