"""Split the all-to-all of a group with many replicas on one worker into several all-to-alls.

TensorFlow's CollectiveAllToAllV2 names its buffers by source and destination rank without a
separator, so the ranks (1, 11) and (11, 1) of one process collide (observed with TensorFlow 2.21).
Ranks of a process are consecutive, so up to eleven ranks do not collide. If a worker has more than
eleven replicas in the group, they are divided into classes of at most five, and each pair of
classes has a separate all-to-all:

    classes            0 1 2 of 4 replicas each, on a worker with 12
    all-to-all among   {0, 1}   {0, 2}   {1, 2}, of all workers, in this order

Rows between two replicas of one class are sent in every all-to-all that has this class. With K
classes, a replica sends 2 (K - 1) / K times as many rows as in a single all-to-all: 4/3 times with
12 devices, 3/2 times with 16.

Shape legend: R members, W elements of a row.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_adasum.aggregation.groups import CollectiveGroup, Collectives

# The largest number of replicas of one worker in an all-to-all, and the largest number in a class.
MOST_NEIGHBOURS, LARGEST_CLASS = 11, 5


def classes_of(workers: npt.ArrayLike) -> np.ndarray | None:
    """Return the class of each member of a group; None if one all-to-all is enough.

    Args:
        workers: for each member, the number of its worker.
    """
    worker_of_member = np.asarray(workers)
    most = int(np.bincount(worker_of_member).max())
    if most <= MOST_NEIGHBOURS:
        return None
    size = -(-most // -(-most // LARGEST_CLASS))  # for the fewest classes, of about equal size
    neighbours = [
        np.count_nonzero(worker_of_member[:i] == worker)
        for i, worker in enumerate(worker_of_member)
    ]
    return np.array(neighbours) // size


def pairs_of(classes: np.ndarray) -> list[np.ndarray]:
    """Return the members of each pair of classes, in the order of the pairs' all-to-alls."""
    pairs = itertools.combinations(range(classes.max() + 1), 2)
    return [np.flatnonzero(np.isin(classes, pair)) for pair in pairs]


class DividedGroup(CollectiveGroup):
    """A `CollectiveGroup` that divides its all-to-all into one for each pair of classes.

    Args:
        collectives: as for `CollectiveGroup`.
        member_of_rank: as for `CollectiveGroup`.
        member: this replica's number in the group.
        pairs: the pairs of classes of replicas (see above) that contain this replica, in the order
            in which their all-to-alls run.
            For each pair: the numbers of its members, and the `CollectiveGroup` of these members.
    """

    def __init__(
        self,
        collectives: Collectives,
        member_of_rank: npt.ArrayLike,
        member: int,
        pairs: Sequence[tuple[np.ndarray, CollectiveGroup]],
    ):
        super().__init__(collectives, member_of_rank, member)
        self._pairs = pairs

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to member i; return ``[R, W]``, row i from member i."""
        received = [pair.all_to_all(tf.gather(shards, members)) for members, pair in self._pairs]
        senders = np.concatenate([members for members, _ in self._pairs])
        _, first = np.unique(senders, return_index=True)
        return tf.ensure_shape(tf.gather(tf.concat(received, axis=0), first), shards.shape)
