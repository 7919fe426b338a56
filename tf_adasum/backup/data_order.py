"""DataOrder: where a training is in its data, and in which order arrays are shuffled.

A pass is one run through the data: an epoch, or several where `steps_per_epoch` is less than all.
Arrays are shuffled by a seed that depends on the epoch in which the pass began, so that a training
that is resumed sees the rows in the order of the one that was interrupted.
"""

import random


class DataOrder:
    """The order of one `fit`.

    Args:
        seed: int; the same on all workers, and in a resumed training.
        batch: how many batches of the first epoch are done already.
        position: how many batches of the pass in which it begins.
        began: the epoch in which that pass has begun; None for one that begins.

    Attributes:
        epoch: the current one.
        began: the epoch in which the current pass has begun.
    """

    def __init__(self, seed, batch=0, position=0, began=None):
        self.seed, self.epoch, self.began = seed, 0, began or 0
        self._start = (batch, position)
        self._resumes = began is not None

    def seed_of_pass(self, has_ended):
        """Returns the seed of a pass that begins now.

        Args:
            has_ended: whether it is because another one has ended in this epoch.
        """
        if self._resumes:
            self._resumes = False
        else:
            self.began = self.epoch + 1 if has_ended else self.epoch
        return random.Random(f"{self.seed} {self.began}").getrandbits(31)

    def take_start(self):
        """Returns how many batches of the epoch and of the pass are done; (0, 0) from then on."""
        start, self._start = self._start, (0, 0)
        return start
