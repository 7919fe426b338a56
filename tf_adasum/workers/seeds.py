"""Draws seeds for shuffles, for one worker or for all, without the user's random generators."""

import random

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.workers.workers import Workers


class Seeds:
    """A generator of seeds, separate from Python's global generator, which belongs to the user.

    Args:
        workers: the strategy's `Workers`.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        # The result of `global_seed_token()` when the generator was created.
        self._seeding: object = None
        self._generator: random.Random | None = None

    def draw(self) -> int:
        """Return the next seed, of 31 bits, for this worker only.

        The generator is reset whenever TensorFlow's global seed is set, so that a run with the same
        global seed draws the same seeds.
        """
        seeding = tensorflow_compat.global_seed_token()
        if self._generator is None or seeding is not self._seeding:
            own = tensorflow_compat.global_seed()
            self._seeding = seeding
            self._generator = random.Random(None if own is None else int(own))
        return self._generator.getrandbits(31)

    def shared_if_needed(self) -> int | None:
        """Return a seed that worker 0 has drawn; all workers have to call this method.

        Each call returns another seed. Seeds are reproducible if worker 0 has a global seed.

        Returns:
            An int of 31 bits. None if no seed is needed, because there is one process, or because
            all workers have the same global seed, for example after `keras.utils.set_random_seed`.
        """
        own = tensorflow_compat.global_seed()
        seeds = self._workers.gather([own or 0, own is not None, self.draw()])
        if len(seeds) == 1 or (seeds[:, :2] == [seeds[0, 0], True]).all():
            return None
        return int(seeds[0, 2])

    def shared(self) -> int:
        """Return a seed that worker 0 has drawn, like `shared_if_needed`, but never None."""
        return self._workers.broadcast(self.draw())
