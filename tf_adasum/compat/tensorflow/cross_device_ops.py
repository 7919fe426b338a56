"""Reduces gradients with our own operations, and other values with TensorFlow's operations."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.compat import one_worker
from tf_adasum.compat.tensorflow import dtype_encoding, prediction_gather, runtime
from tf_adasum.compat.tensorflow.collective_counters import CollectiveCounters
from tf_adasum.compat.tensorflow.collective_keys import (
    FIRST_SUBGROUP,
    GROUPS_OF_A_STRATEGY,
    KeyReuse,
    ReusingLauncher,
)
from tf_adasum.compat.tensorflow.collectives import ReplicaCollectives, gather_on_each
from tf_adasum.compat.tensorflow.gradient_options import GradientOptions
from tf_adasum.compat.tensorflow.private_names import (
    CollectiveAllReduce,
    CommunicationOptions,
    DistributedValues,
    Mirrored,
    hooks,
    regroup,
)
from tf_adasum.compat.thread_flag import ThreadFlag

# The maximum number of functions that are cached for one `AggregationState` in eager code. Each
# function reduces the gradients of one subset of the variables.
MOST_FUNCTIONS = 32

# In a graph without XLA, dense values of at most this many bytes are sent over the transport of the
# gradients. There, each worker sends its value to all other workers.
SMALL_BYTES = 2**16

_COLLECTIVE = "a collective, such as reading a metric,"


@hooks.overrides(
    "batch_reduce", "_all_reduce_per_replica_values", "_all_reduce", "_gather_implementation"
)
class GradientCrossDeviceOps(CollectiveAllReduce):
    """TensorFlow's `CollectiveAllReduce`, but `combine_gradients` reduces gradients.

    Subclasses define three methods. Two of them get the merged `GradientOptions`: In a graph,
    `combine_gradients(gradients, options, rows)` gets a list of gradients for each local replica,
    and the result of `rows_of_replicas`. It returns the combined gradients of each local replica,
    on its device. `is_identity_for_one_replica(options)` returns whether the rule does not change
    the gradients of a single replica. `transport_group()` returns the group of all workers on the
    transport of the gradients, whose `all_reduce` returns the sum of a tensor over the workers, or
    None if gradients are sent over TensorFlow's collectives.

    Args: the arguments of `CollectiveAllReduce`, which are the local devices, the number of
        replicas on all workers, the default options, and the collective keys shared with the
        strategy.

    Attributes:
        local_devices: the devices of this worker, in the order of its replicas.
        replicas: the number of replicas on all workers.
        all_local: whether this worker holds all replicas.
        key_reuse: the `KeyReuse` of all collectives.
        counters: the `CollectiveCounters`; None if this worker holds all replicas.
        wait_context: function that returns a context manager, which is entered while Python waits
            for a collective. Defaults to `contextlib.nullcontext`.
        check_exchange: function that raises an error if a replica's step may not exchange values.
        check_same_gradients: function of names and shapes, see
            `workers.agreement.SameGradients.check`. With None, nothing is checked.
    """

    _launchers: list[ReusingLauncher]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.local_devices, self.replicas = self._devices, self._group_size
        self.all_local = len(self.local_devices) == self.replicas
        self._gathers: dict[tuple, Callable] = {}
        self._parts: dict[tuple[int, int], ReusingLauncher] = {}
        # The functions for gradients without a state. An `AggregationState` has its own.
        self._functions: dict[tuple, Callable] = {}
        self.key_reuse = KeyReuse()
        keys = self._collective_keys
        self._launchers = [
            ReusingLauncher(
                self.key_reuse, one._group_key, one._group_size, keys, one._device, one._options
            )
            for one in self._launchers
        ]
        self.counters = None if self.all_local else CollectiveCounters()
        self.wait_context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
        self.check_exchange: Callable[[], None] = lambda: None
        self.check_same_gradients: Callable[[list[str], list[str]], None] | None = None

    def rows_of_replicas(self) -> list[int | tf.Tensor] | None:
        """Return the number of rows of each local replica; None if the rule does not need it."""
        return None

    def collectives(self, options: CommunicationOptions) -> list[ReplicaCollectives]:
        """Return `ReplicaCollectives` for each local replica."""
        return [ReplicaCollectives(launcher, options) for launcher in self._launchers]

    def part(
        self, local: int, key: int, size: int, options: CommunicationOptions
    ) -> ReplicaCollectives:
        """Return `ReplicaCollectives` of a local replica for a group of some replicas.

        TensorFlow's `CollectiveKeys.get_group_key` counts groups on each worker separately. This
        method gives a group the same group key on all members.

        Args:
            local: the index of the local replica.
            key: int from 0 that identifies the group. All members pass the same key.
            size: the number of members of the group.
            options: `CommunicationOptions`.
        """
        if FIRST_SUBGROUP + key >= GROUPS_OF_A_STRATEGY:
            raise ValueError(
                f"There are too many groups of {self._group_size} replicas. Use fewer devices per "
                "worker, or radix_plan=[N]."
            )
        if (local, key) not in self._parts:
            launcher = self._launchers[local]
            group_key = launcher._group_key + FIRST_SUBGROUP + key
            keys = self._collective_keys
            keys._instance_key_table.setdefault(group_key, {})[launcher._device] = 0
            part = ReusingLauncher(
                self.key_reuse, group_key, size, keys, launcher._device, launcher._options
            )
            # All collectives of a device have one order, whatever their group.
            part._ordering_token = launcher._ordering_token
            self._parts[local, key] = part
        return ReplicaCollectives(self._parts[local, key], options)

    def gather(self, vectors: list[np.ndarray], options: CommunicationOptions) -> np.ndarray:
        """Gather a small vector from each replica. All workers call this, and all get every vector.

        Args:
            vectors: for each local replica an int64 or float64 array ``[k]``.
            options: `CommunicationOptions`; its timeout bounds the wait for the other workers.

        Returns:
            NumPy array ``[replicas, k]``, in the order of the ranks.
        """
        if self.all_local:
            return np.stack(vectors)

        # Pad to few different lengths, so that few functions are traced.
        length = len(vectors[0])
        padding = [0, 2 ** max(2, (length - 1).bit_length()) - length]
        tensors = [tf.constant(np.pad(vector, padding)) for vector in vectors]
        key = (tensors[0].dtype, tensors[0].shape[0], options.timeout_seconds)
        if key not in self._gathers:
            self._gathers[key] = runtime.function_without_retrace_warning(
                lambda tensors: gather_on_each(tensors, self.collectives(options))
            )
        gather = self._gathers[key]
        return self._counted(tensors, lambda: gather(tensors)[0].numpy()[:, :length])

    def gather_in_subgroups(
        self, numbers: Sequence[int], parts: list[ReplicaCollectives]
    ) -> list[np.ndarray]:
        """Gather a number from each replica of a group on all members. All workers have to call it.

        Args:
            numbers: for each local replica, the int that it contributes.
            parts: for each local replica the `ReplicaCollectives` of its group.

        Returns:
            For each local replica the numbers of its group, in the order of the ranks.
        """
        gather = runtime.function_without_retrace_warning(lambda own: gather_on_each(own, parts))
        tensors = [tf.constant([number], tf.int64) for number in numbers]
        return self._counted(tensors, lambda: [all_[:, 0].numpy() for all_ in gather(tensors)])

    def batch_reduce(self, reduce_op, value_destination_pairs, options=None):
        """Reduce a list of values. Gradients are reduced together, to every local replica.

        TensorFlow would reduce values with different destinations separately, and sparse gradients
        can have different destinations. It raises an error if a destination is an argument of a
        `tf.function`.
        """
        if not isinstance(options, GradientOptions):
            return super().batch_reduce(reduce_op, value_destination_pairs, options)
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise ValueError(
                "A reduction of gradients must be a SUM; the aggregation rule computes the "
                f"coefficients. Received: {reduce_op}"
            )
        by_variable = [_of_local_replicas(value) for value, _ in value_destination_pairs]
        if self.replicas == 1 and options.parts == 1 and self.is_identity_for_one_replica(options):
            return [regroup(own, wrap_class=Mirrored) for own in by_variable]
        gradients = [list(own) for own in zip(*by_variable, strict=True)]
        # Optimizers have already checked gradients with a state. Check other gradients now, because
        # padding may hide that shapes differ.
        if options.state is None and self.check_same_gradients is not None:
            shapes = list(map(_kinds, gradients))
            self.check_same_gradients(shapes, shapes)
        rows = None if options.is_weighted else self.rows_of_replicas()
        if tf.executing_eagerly():
            # Collectives block, so eager code could not start them on all local devices at once.
            rows = rows and [tf.constant(own, tf.int64) for own in rows]
            combined = self._function_for(gradients, options)(gradients, rows)
        else:
            if runtime.compiles_with_xla():
                raise ValueError(runtime.NO_XLA)
            with self._lock:  # no other collective may run within one reduction
                combined = self._combine_gradients(gradients, options, rows)
        # With several parts there are fewer results than values, and TensorFlow needs as many.
        combined = [[*own, *gradients[0][len(own) :]] for own in combined]
        return [regroup(own, wrap_class=Mirrored) for own in zip(*combined, strict=True)]

    def _combine_gradients(self, gradients, options, rows):
        return self._counted(gradients, lambda: self.combine_gradients(gradients, options, rows))

    def _counted(self, inputs, collectives):
        if self.counters is None or runtime.compiles_with_xla():
            return collectives()
        one_worker.refuse(_COLLECTIVE)
        with self.wait_context() if tf.executing_eagerly() else contextlib.nullcontext():
            return self.counters.around(inputs, collectives)

    def _function_for(self, gradients, options):
        """Return a `tf.function` that combines gradients with these dtypes and shapes."""
        key = (options.bytes_per_pack, options.timeout_seconds, options.implementation)
        key += (options.is_weighted, options.parts, options.indices, *map(_kinds, gradients))
        functions = self._functions if options.state is None else options.state.functions
        function = functions.pop(key, None)
        if function is None:
            function = runtime.function_without_retrace_warning(
                lambda gradients, rows: self._combine_gradients(gradients, options, rows),
                reduce_retracing=True,  # sparse gradients have another length in each step
            )
        functions[key] = function  # moved to the end, because it was used last
        if len(functions) > MOST_FUNCTIONS:
            del functions[next(iter(functions))]
        return function

    def _all_reduce_per_replica_values(self, reduce_op, per_replica_values, options):
        """Reduce values other than gradients, as TensorFlow does.

        If all replicas are logical CPUs of one process, reduce on one device, as `MirroredStrategy`
        does: a collective of 32 devices would need hundreds of threads. Also do so within
        `reading_alone`, and while worker 0's callbacks read moving statistics. Small values in a
        graph use the transport of gradients. A reduction among workers opens no files, because
        unauthenticated clients at TensorFlow's port may have used up all file descriptors.
        """
        self.check_exchange()
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        reads_alone = _reads_alone.value or (is_mean and one_worker.is_alone())
        if (self.all_local and "CPU" in self._devices[0]) or reads_alone:
            reduction = tf.distribute.ReductionToOneDevice(reduce_to_device=self._devices[0])
            return [
                reduction.reduce(reduce_op, value, destinations=value)
                for value in per_replica_values
            ]
        one_worker.refuse(_COLLECTIVE)  # the next calls are made in other threads
        if not tf.executing_eagerly():
            is_small = all(map(_is_small, per_replica_values))
            group = None if runtime.compiles_with_xla() or not is_small else self.transport_group()
            if group is not None:
                return [self._reduce_over(group, reduce_op, each) for each in per_replica_values]
            return super()._all_reduce_per_replica_values(reduce_op, per_replica_values, options)
        own = [
            [value.values[number] for value in per_replica_values]
            for number in range(len(self._devices))
        ]

        def reduce_on(number):
            return self._all_reduce(reduce_op, own[number], number, options)

        # These threads need no file descriptors, unlike a pool of `multiprocessing`. But TensorFlow
        # opens /dev/urandom in every new thread. In the calling thread, it is already open.
        with self._lock, concurrent.futures.ThreadPoolExecutor(len(own)) as threads:
            others = threads.map(reduce_on, range(1, len(own)))
            reduced = [reduce_on(0), *others]
        return [regroup(each, wrap_class=Mirrored) for each in zip(*reduced, strict=True)]

    def _all_reduce(self, reduce_op, value, replica_id, options):
        """Count the collective. Refuse gradients, which only come from XLA-compiled code."""
        if isinstance(options, GradientOptions):
            raise ValueError(runtime.NO_XLA)
        reduce = super()._all_reduce
        return self._counted(value, lambda: reduce(reduce_op, value, replica_id, options))

    def _reduce_over(self, group, reduce_op, value):
        """Reduce a small value: over this worker's replicas, and then over the workers of `group`.

        One operation per worker gives its result to all local replicas. With one per replica,
        TensorFlow could remove those whose results are not used, and the others would wait.
        """
        own = value.values
        with tf.device(self._devices[0]):
            local = tf.add_n([dtype_encoding.encoded_for_sum(each) for each in own])
            total = self._counted(local, lambda: group.all_reduce(local))
            total = dtype_encoding.decoded_sum(total, own[0].dtype)
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                total /= self._group_size
        copies = []
        for device in self._devices:
            with tf.device(device):
                copies.append(tf.identity(total))
        return regroup(copies, wrap_class=Mirrored)

    def gather_rows(self, values: Sequence[Any]) -> list[tf.Tensor] | None:
        """Gather the rows of all replicas, see `prediction_gather`; None if it is not possible."""
        by_value = [_of_local_replicas(value) for value in values]
        is_in_graph = not tf.executing_eagerly() and not runtime.compiles_with_xla()
        is_possible = is_in_graph and prediction_gather.can_be_gathered(by_value)
        group = self.transport_group() if is_possible else None
        if group is None:
            return None
        with tf.device(self._devices[0]):
            return self._counted(
                by_value, lambda: prediction_gather.gather_predictions(group, by_value)
            )

    def _gather_implementation(self, per_replica_value, *arguments):
        """Count the collective, so that other workers can detect that this worker waits in it."""
        gather = super()._gather_implementation
        own = list(_of_local_replicas(per_replica_value))
        return self._counted(own, lambda: gather(per_replica_value, *arguments))


def _of_local_replicas(value):
    return value.values if isinstance(value, DistributedValues) else (value,)


def _is_small(value):
    """Return whether the replicas' values are dense tensors of at most `SMALL_BYTES` each."""
    for own in _of_local_replicas(value):
        elements = own.shape.num_elements() if isinstance(own, tf.Tensor) else None
        if elements is None or elements * own.dtype.size > SMALL_BYTES:
            return False
    return True


def _kinds(gradients):
    """Return dtypes and shapes of gradients as text, without the number of rows of sparse ones."""
    return ", ".join(
        f"sparse {each.values.dtype.name}{each.values.shape[1:]}"
        if isinstance(each, tf.IndexedSlices)
        else f"{each.dtype.name}{each.shape}"
        for each in gradients
    )


def per_replica(values: Sequence[tf.Tensor]) -> Any:
    """Return one distributed value that consists of a tensor for each local replica."""
    return regroup(tuple(values))


def cross_device_ops(extended: tf.distribute.StrategyExtended) -> GradientCrossDeviceOps:
    """Return the strategy's `GradientCrossDeviceOps`."""
    return extended._cross_device_ops


# A context manager in which this worker reads variables without the other workers. If each replica
# updates its own value of a variable, TensorFlow reads the mean or sum over all replicas. Within
# the context, it reads the mean or sum over this worker's replicas only.
_reads_alone = ThreadFlag()
reading_alone = _reads_alone.within


def reads_without_others() -> bool:
    """Return whether this worker reads for itself only, or is not allowed to call the others."""
    return _reads_alone.value or one_worker.is_alone()
