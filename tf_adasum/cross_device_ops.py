"""AdasumCrossDeviceOps: apply a rule to gradients, and leave other reductions to TensorFlow."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation import aggregate, row_weights, rules
from tf_adasum.aggregation.groups import MOST_NEIGHBOURS, CollectiveGroup
from tf_adasum.aggregation.partial_results import first_of_blocks
from tf_adasum.aggregation.reduction_planner import (
    CollectiveReductionPlanner,
    LocalReductionPlanner,
)
from tf_adasum.aggregation.rule_application import RuleApplication
from tf_adasum.aggregation.rules.adasum import AdasumOfNodes
from tf_adasum.aggregation.rules.checks import is_built_in
from tf_adasum.aggregation.scheme import Scheme
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import deprecated, see
from tf_adasum.transport.collectives import UcxTransport

# If a bucket has at most this many bytes on all replicas together, it is gathered and combined on
# each replica, in one round instead of three. The additional bytes take less time than the
# additional rounds. With 4 MiB, a step with 1 MB of gradients on four workers, bound to two cores,
# took 8.7 instead of 6.5 ms over UCX, and 18 instead of 14.6 ms over TensorFlow's collectives.
GATHERED_BYTES = 2 * 2**20


class AdasumCrossDeviceOps(tensorflow_compat.GradientCrossDeviceOps):
    """The `tf.distribute.CrossDeviceOps` that `AdasumMirroredStrategy` installs.

    A reduction that is marked as a reduction of gradients returns ``Σ_i c_i g_i``, where ``g_i`` is
    the gradient of replica i, and ``c_i`` is the coefficient that the rule gives it. Any other
    reduction (metrics, moments of a synchronized BatchNormalization, your own `all_reduce`) works
    as in `tf.distribute.MultiWorkerMirroredStrategy`.

    If all replicas are in this process, gradients are combined in the graph, on the first device
    and without collectives. Otherwise the replicas exchange them over TensorFlow's collectives, or
    over UCX.

    Args:
        scheme: a `tf_adasum.rules.AggregationRule`, or the strategy's `aggregation.Scheme`.
        devices: list of str, this worker's devices.
        group_size: int, the number of replicas on all workers.
        options: the default `tf.distribute.experimental.CommunicationOptions` of reductions.
            `bytes_per_pack` is the size of a bucket.
        collective_keys: the collective keys of the strategy. Defaults to new keys.

    Attributes:
        transport: the `UcxTransport` that sends gradients; None if TensorFlow's collectives do.
        transport_summary: the text that worker 0 logs at the start about the choice of the
            transport; "" if no choice was made.
        rows_of: function that returns the number of rows of a local replica, or None if it is not
            known. With None, the rule mean weights all replicas equally.

    Example:
        >>> strategy = tf.distribute.MirroredStrategy(
        ...     ["CPU:0"],
        ...     cross_device_ops=tf_adasum.AdasumCrossDeviceOps(
        ...         tf_adasum.rules.Adasum(),
        ...         devices=["CPU:0"],
        ...         group_size=1,
        ...         options=tf.distribute.experimental.CommunicationOptions(),
        ...     ),
        ... )
    """

    def __init__(
        self,
        scheme: Scheme | rules.AggregationRule,
        devices: Sequence[str],
        group_size: int,
        options: tf.distribute.experimental.CommunicationOptions,
        collective_keys: object | None = None,
    ):
        super().__init__(devices, group_size, options, collective_keys)
        self.scheme = scheme if isinstance(scheme, Scheme) else Scheme(scheme, group_size)
        self.transport: UcxTransport | None = None
        self.transport_summary = ""
        self._members: dict[tuple[int, int], list] = {}
        self._last_totals: dict[int, tf.Variable] = {}
        self.rows_of: Callable[[int], int | tf.Tensor | None] | None = None
        self._replica_of_rank = np.arange(group_size)
        self._first_replica = 0

    def exchange_ranks(
        self, first_replica: int, options: tf.distribute.experimental.CommunicationOptions
    ) -> None:
        """Find out which replica has which rank in the collectives.

        Every worker has to call this method.

        Args:
            first_replica: id of this worker's first replica.
            options: `CommunicationOptions`, whose timeout limits the wait for the other workers.
        """
        local_replicas = range(first_replica, first_replica + len(self.local_devices))
        gathered = self.gather([np.array([replica]) for replica in local_replicas], options)
        self._first_replica = first_replica
        self._replica_of_rank = gathered[:, 0]

    def gather_from_workers(
        self, vector: np.ndarray, options: tf.distribute.experimental.CommunicationOptions
    ) -> np.ndarray:
        """Gather a small vector from each worker.

        All workers have to call this method, and each worker gets all vectors.

        Args:
            vector: int64 or float64 array ``[k]``.
            options: `CommunicationOptions`.

        Returns:
            NumPy array ``[workers, k]``, in the order of the workers' ranks.
        """
        devices = len(self.local_devices)
        of_ranks = self.gather([np.asarray(vector)] * devices, options)
        return of_ranks[np.argsort(self._replica_of_rank)][::devices]

    def transport_group(self) -> CollectiveGroup | None:
        """Return the group of the workers' first replicas over UCX; None without UCX."""
        if self.transport is None:
            return None
        return self.transport.group_of_workers(self.replicas // len(self.local_devices))

    @property
    def carrier(self) -> str:
        """Deprecated: the old name of `transport_summary`."""
        deprecated("The attribute `carrier`", "`transport_summary`")
        return self.transport_summary

    def rows_of_replicas(self) -> list[int | tf.Tensor] | None:
        """Return the rows of each local replica with the rule mean, unless they need no weights."""
        if not self.scheme.rule.is_mean or self.rows_of is None:
            return None
        devices = len(self.local_devices)
        rows = [self.rows_of(self._first_replica + local) for local in range(devices)]
        if None in rows:
            return None
        are_known = all(isinstance(own, int) for own in rows)
        return None if self.all_local and are_known and len(set(rows)) == 1 else rows

    def combine_gradients(
        self,
        gradients: list[list[tf.Tensor | tf.IndexedSlices]],
        options: tensorflow_compat.GradientOptions,
        rows: list[int | tf.Tensor] | None = None,
    ) -> list[list[tf.Tensor | tf.IndexedSlices]]:
        """Combine the gradients of the local replicas with the gradients of all other replicas.

        Args:
            gradients: one list of gradients for each local replica.
            options: the merged `GradientOptions`.
            rows: the result of `rows_of_replicas`. Defaults to `None`: no weights.

        Returns:
            One list of combined gradients for each local replica, on its device.

        Raises:
            ValueError: if gradients are integers or complex numbers; raised before any collective.
        """
        if self.all_local:
            return self._combine_locally(gradients, options, rows)
        return self._combine_collectively(gradients, options, rows)

    def is_identity_for_one_replica(self, options: tensorflow_compat.GradientOptions) -> bool:
        """Return whether combining the gradients of a single replica changes nothing."""
        state = options.state
        is_measured = state is not None and state.measures_orthogonality
        rule = self.scheme.rule
        return is_built_in(rule) and rule.works_in_levels and not is_measured

    def _combine_locally(self, gradients, options, rows):
        with tf.device(self.local_devices[0]):
            if rows is not None:
                gradients = _weighted(gradients, rows, self.local_devices)
            scheme, parts = self._scheme_of(options), options.parts
            gradients = [part for own in gradients for part in _parts(own, parts)]
            planner = LocalReductionPlanner(scheme)
            application = self._application(options, 0)
            combined = aggregate(gradients, planner, options.bytes_per_pack, application)
        for local in range(len(self.local_devices)):
            _keep(options, application, local)
        return [_copy_to(device, combined) for device in self.local_devices]

    def _combine_collectively(self, gradients, options, rows):
        combined = []
        for local, device in enumerate(self.local_devices):
            same_bits = ops.same_bits_everywhere(device)
            planner = CollectiveReductionPlanner(
                self._scheme_of(options),
                functools.partial(self._group, local, options),
                all_gather_threshold_bytes=GATHERED_BYTES if same_bits else 0,
                parts=options.parts,
            )
            with tf.device(device):
                own, application = gradients[local], self._application(options, local)
                sent = rows and self._sent_rows(rows[local], local, planner.group)
                if sent:
                    own = sent.added(own, self.scheme.wire_dtype)
                own = _parts(own, options.parts)
                results = aggregate(own, planner, options.bytes_per_pack, application, bool(sent))
                combined.append(sent.corrected(results) if sent else results)
                _keep(options, application, local)
        return combined

    def _scheme_of(self, options):
        """Return the scheme, whose rows are the nodes of virtual replicas if there are several."""
        if options.parts == 1:
            return self.scheme
        per_device = tf.distribute.get_strategy()._virtual_replicas.per_device
        nodes, virtual = first_of_blocks(self.replicas, per_device), self.replicas * per_device
        rule = AdasumOfNodes(nodes, virtual, self.scheme.rule.granularity)
        return dataclasses.replace(self.scheme, rule=rule, replicas=len(nodes), radix_plan=None)

    def _sent_rows(self, rows, local, group):
        """Return the `SentRows` of a local replica, whose variable is on the CPU."""
        device = self.local_devices[local]
        cpu = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
        if local not in self._last_totals:
            own_variables = tensorflow_compat.making_own_variables()
            with tf.init_scope(), tf.device(cpu.to_string()), own_variables:
                total = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._last_totals[local] = total
        total = self._last_totals[local]
        return row_weights.SentRows(
            rows, self.replicas, total, lambda own: group.all_reduce(own[None])[0], device
        )

    def _application(
        self, options: tensorflow_compat.GradientOptions, local: int
    ) -> RuleApplication | None:
        if options.state is not None:
            return options.state.application(options.indices, local)
        if self.scheme.single_level_rule.initial_state(1, self.replicas):
            raise ValueError(
                f"The rule {self.scheme.rule!r} has a state, so it needs the list of variables. "
                "Use a Keras optimizer, or call strategy.gradient_reduction_of(variables) before "
                "the loop and pass its result as `options` to all_reduce. "
                f"{see('TFA-306')}"
            )
        return None

    def _group(self, local, options, stride, radix):
        """Return the `CollectiveGroup` of a replica: `radix` replicas with ids `stride` apart."""
        if self.transport is not None:
            return self.transport.group(local, stride, radix)
        replica = self._first_replica + local
        member = replica // stride % radix
        if (stride, radix) == (1, self.replicas):
            collectives = self.collectives(options)[local]
            member_of_rank = self._replica_of_rank
        else:
            collectives, member_of_rank = self._parts_and_members(options, stride, radix)[local]
        first, _ = self._first_and_key(local, stride, radix)
        workers = (first + stride * np.arange(radix)) // len(self.local_devices)
        sends_all = max(np.bincount(workers)) > MOST_NEIGHBOURS
        return CollectiveGroup(collectives, member_of_rank, member, sends_all=sends_all)

    def _first_and_key(self, local, stride, radix):
        """Return the first replica of a local replica's group, and a key of this group only."""
        replica = self._first_replica + local
        first = replica - replica // stride % radix * stride
        # Stride and radix are factors of the number of replicas N, and fewer than N groups have
        # this stride and this radix.
        factors = [factor for factor in range(1, self.replicas + 1) if self.replicas % factor == 0]
        kind = factors.index(stride) * len(factors) + factors.index(radix)
        return first, kind * self.replicas + first

    def _parts_and_members(self, options, stride, radix):
        """Return, for each local replica, its part of the group, and the member at each rank.

        All workers exchange ranks at the same time, when they trace the first exchange that needs
        the ranks.
        """
        local = range(len(self.local_devices))
        keys = [self._first_and_key(each, stride, radix)[1] for each in local]
        parts = [self.part(each, keys[each], radix, options) for each in local]
        if (stride, radix) not in self._members:
            with tf.init_scope():
                own = [self._first_replica + each for each in local]
                found = self.gather_in_subgroups(own, parts)
            self._members[stride, radix] = [each // stride % radix for each in found]
        return list(zip(parts, self._members[stride, radix], strict=True))


def _parts(gradients, parts):
    count = len(gradients) // parts
    return [gradients[part * count : (part + 1) * count] for part in range(parts)]


def _keep(options, application, local):
    if options.state is not None:
        options.state.keep(application, options.indices, local)


def _weighted(gradients, rows, devices):
    """Return the gradients of all replicas, weighted by their rows."""
    rows = [tf.cast(own, tf.int64) for own in rows]
    total = tf.add_n(rows)
    return [
        row_weights.times(own, row_weights.relative(count, len(rows), total), devices[0])
        for own, count in zip(gradients, rows, strict=True)
    ]


def _copy_to(device, tensors):
    with tf.device(device):
        return [tf.identity(tensor) for tensor in tensors]
