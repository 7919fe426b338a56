"""The seam to TensorFlow: every private TensorFlow name this package touches is in this file.

What is hooked, and why there is no public way:

* `CollectiveAllReduce._all_reduce_per_replica_values`: what every other reduction over all replicas
  goes through. Gradients, which carry the `GradientReduction` marker, are caught before that, in
  `batch_reduce`, and handed to `combine_gradients`.
* `CollectiveAllReduceExtended._initialize_local`, `._initialize_multi_worker`: create the
  CrossDeviceOps; there is no argument for another one.
* `CollectiveAllReduceExtended._initialize_local_devices`: knows one CPU per worker only.
* `CollectiveAllReduceStrategy._collective_key_base`: keeps the strategies of a process apart.
* `MirroredExtended._batch_reduce_to`: merges options, and would drop the marker.
* `MirroredExtended._create_variable`: sees every variable of the strategy when it is made.
* `CollectiveReplicaLauncher._next_instance_key`, `._get_ordering_token`: collectives of one group
  need common keys, and one ordering token, or several devices in one graph deadlock.
* `CollectiveReplicaLauncher.all_reduce`, `._all_gather`: see `ReusingLauncher`.
* `CollectiveKeys._instance_key_table`: groups of some of the replicas need keys that all their
  members know; `get_group_key` counts on each worker by itself.
* `Context.configure_coordination_service`: the time a worker waits for the others to register, and
  for their heartbeats.
* `Context.abort_collective_ops`: ends what waits for a worker that is lost.
* `CollectiveAllReduceExtended._create_variable`: new values are broadcast, and may wait.
* `multi_device_iterator_ops._create_device_dataset`: see `stop_autotuning_device_datasets`.
* `FuncGraph.capture_call_time_value`: see `let_collectives_run_in_loops`.
* `DistributedDatasetsFromFunction._cardinality`: what Keras believes the length of an epoch is.
* `Function._clone`: how TensorFlow itself gives a tf.function of the user's another body.

`tests/unit/seams/test_seam_names.py` fails with the name of what a new TensorFlow has moved.
"""

import collections
import contextlib
import functools
import itertools
import signal
import threading
import weakref
import zlib

import numpy as np
import tensorflow as tf

from tf_adasum.seams.tensorflow.collective_counters import CollectiveMarks

try:
    try:
        from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    except ImportError:  # in TensorFlow 2.15
        from tensorflow.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.autograph.impl import api
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.distribute import (
        collective_util,
        distribute_utils,
        multi_worker_util,
        values,
    )
    from tensorflow.python.distribute.collective_all_reduce_strategy import (
        CollectiveAllReduceExtended,
    )
    from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.framework import func_graph
    from tensorflow.python.ops import control_flow_util, resource_variable_ops
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with TensorFlow 2.21; TensorFlow {tf.__version__} has moved something it "
        f"builds on: {error}. Install a supported one: pip install 'tf-adasum[cpu]' or "
        "'tf-adasum[cuda]'."
    ) from error

CommunicationOptions = collective_util.Options

NO_XLA = (
    "Gradients cannot be aggregated inside XLA-compiled code: TensorFlow's collectives have no XLA "
    "kernels on this device. Compile the model with jit_compile=False (or 'auto')."
)


# The keys that `ReusingLauncher` gives away, far above those that TensorFlow counts up from 100.
FIRST_KEY_BY_TURNS = 2**24
KEYS_BY_TURNS = 8
FIRST_COUNTED_KEY, COUNTED_KEYS = 2**30 + 2**25, 2**30 - 2**26
_COUNTED = object()

# Up to so many bytes from all replicas together, a sum is gathered.
GATHERED_SUM_BYTES = 2**20


class GradientReduction(CommunicationOptions):
    """Communication options that mark a reduction as one of gradients.

    The marker travels with the call, because merge functions run on other threads: thread-locals
    and context managers do not reach them.

    Attributes:
        reductions: the `AggregationState` of the gradients' variables, or None.
        indices: which of these variables the gradients belong to.
    """

    reductions = None
    indices = ()

    def of(self, reductions, indices):
        """Returns this marker for the gradients of some variables."""
        marker = self.with_options(self)
        marker.reductions, marker.indices = reductions, tuple(indices)
        return marker

    def with_options(self, options):
        """Returns this marker with the settings of `options`."""
        marker = type(self)(options.bytes_per_pack, options.timeout_seconds, options.implementation)
        marker.reductions, marker.indices = self.reductions, self.indices
        return marker

    def merge(self, options):
        """Merges as `CommunicationOptions` do, and stays a marker."""
        return self.with_options(super().merge(options))


class KeyTurns:
    """When keys of collectives are used again: in calls that all workers make together.

    An error can cut a collective off, and TensorFlow does not forget what it had of it: that key
    must not come again. So the workers agree, when such a call begins, on a new generation of keys
    if an error has left one before.

    Attributes:
        are_on: whether keys are used again.
        generation: how many times an error has left such a call.
        is_broken_off: whether one has, on this worker, since they last agreed.
    """

    def __init__(self):
        self.are_on, self.generation, self.is_broken_off = False, 0, False

    @contextlib.contextmanager
    def within(self, agree):
        """Around such a call.

        Args:
            agree: function of this worker's generation and `is_broken_off` that returns those of
                all workers, ``[workers, 2]``.
        """
        if self.are_on:
            yield
            return
        of_all = agree(self.generation, self.is_broken_off)
        self.generation = int(of_all[:, 0].max() + of_all[:, 1].max())
        self.are_on, self.is_broken_off = True, False
        try:
            yield
        except BaseException:
            self.is_broken_off = True
            raise
        finally:
            self.are_on = False


class ReusingLauncher(CollectiveReplicaLauncher):
    """TensorFlow's launcher of a replica's collectives, with keys that are used again.

    TensorFlow takes a new instance key for every collective, and never forgets one: 1.6 kB of every
    worker's memory each (seen with TensorFlow 2.21). A device's collectives run one after the
    other, and none ends before all have taken what it sent. So those of one kind, dtype and shape
    take the same few keys by turns; all workers count them alike, however often each of them traces
    a function. Where a shape is not known beforehand, as of sparse gradients, keys are counted when
    the function runs: a key cannot change its shape, so every iteration of a loop needs its own. In
    eager code, and where it is not the turn of `KeyTurns`, they are TensorFlow's.

    Args:
        turns: the `KeyTurns`.
        args: TensorFlow's.
    """

    def __init__(self, turns, *args):
        super().__init__(*args)
        self._turns = turns
        self._signature = None
        self._made = collections.Counter()
        with tf.init_scope(), tf.device("CPU:0"):
            self._counted = resource_variable_ops.ResourceVariable(0, dtype=tf.int32)

    @contextlib.contextmanager
    def of(self, kind, value):
        """Around what makes one collective.

        Args:
            kind: name of the operation.
            value: tensor that it sends.
        """
        if not tf.executing_eagerly():
            is_known = value.shape.is_fully_defined()
            self._signature = (kind, value.dtype.name, *value.shape) if is_known else _COUNTED
        try:
            yield
        finally:
            self._signature = None

    def all_reduce(self, input_tensor, *args, **kwargs):
        """As TensorFlow's."""
        with self.of("reduce", input_tensor):
            return super().all_reduce(input_tensor, *args, **kwargs)

    def _all_gather(self, input_tensor, options):
        with self.of("gather", input_tensor):
            return super()._all_gather(input_tensor, options)

    def _next_instance_key(self):
        if self._signature is None:
            return super()._next_instance_key()
        if self._signature is _COUNTED:
            with tf.device("CPU:0"):
                return FIRST_COUNTED_KEY + self._counted.assign_add(1) % COUNTED_KEYS
        return self._key_of(self._signature)

    def _key_of(self, signature):
        if not tf.executing_eagerly():  # asked again when the function is called
            graph = tf.compat.v1.get_default_graph()
            ask = functools.partial(self._key_of, signature)
            return graph.capture_call_time_value(ask, tf.TensorSpec([], tf.int32))
        if not self._turns.are_on:
            return super()._next_instance_key()
        signature = (self._turns.generation, *signature)
        turn = self._made[signature] % KEYS_BY_TURNS
        self._made[signature] += 1
        place = zlib.crc32(repr(signature).encode()) % 2**27
        with tf.device("CPU:0"):
            return tf.constant(FIRST_KEY_BY_TURNS + KEYS_BY_TURNS * place + turn, tf.int32)


class ReplicaCollectives:
    """The three collectives of one replica, over all replicas of the strategy.

    Args:
        launcher: TensorFlow's launcher of the replica: its group, keys and ordering token.
        options: `CommunicationOptions`: timeout in seconds and implementation.
    """

    def __init__(self, launcher, options):
        self._launcher = launcher
        self._options = options

    @property
    def device(self):
        """The replica's device."""
        return self._launcher._device

    def all_to_all(self, shards):
        """Sends row i of ``[R, W]`` to rank i; returns ``[R, W]``, row i from rank i."""
        return tf.raw_ops.CollectiveAllToAllV2(input=shards, **self._arguments("to all", shards))

    def all_reduce(self, value):
        """Returns the sum of `value` over all replicas, the same bits on each.

        A ring needs 2 (R - 1) rounds. Where latency is all, everybody gathers everything and adds
        it up, in R - 1 rounds.
        """
        replicas = self._launcher._group_size
        elements = value.shape.num_elements()
        if elements is not None and replicas * elements * value.dtype.size <= GATHERED_SUM_BYTES:
            return tf.reduce_sum(self.all_gather(value[None]), axis=0)
        return tf.raw_ops.CollectiveReduceV2(
            input=value, merge_op="Add", final_op="Id", **self._arguments("reduce", value)
        )

    def all_gather(self, value):
        """Concatenates the replicas' `value` along the first axis, in the order of the ranks."""
        dtype = value.dtype
        if dtype == tf.bfloat16:  # the one dtype CollectiveGatherV2 lacks; only bits travel
            value = tf.bitcast(value, tf.float16)
        arguments = self._arguments("gather", value)
        gathered = tf.raw_ops.CollectiveGatherV2(input=value, **arguments)
        return tf.bitcast(gathered, dtype) if dtype == tf.bfloat16 else gathered

    def _arguments(self, kind, value):
        launcher = self._launcher
        token = launcher._get_ordering_token()
        with launcher.of(kind, value):
            instance_key = launcher._next_instance_key()
        return {
            "group_size": launcher._group_size,
            "group_key": launcher._group_key,
            "instance_key": instance_key,
            "ordering_token": [] if token is None else [token],
            "communication_hint": self._options.implementation.value,
            "timeout_seconds": float(self._options.timeout_seconds or 0),
            "is_stateless": False,
        }


class GradientCrossDeviceOps(CollectiveAllReduce):
    """TensorFlow's `CollectiveAllReduce`, with gradients going to `combine_gradients`.

    Args: as `CollectiveAllReduce`: the local devices, the number of replicas on all workers, the
        default options, and the collective keys shared with the strategy.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._graphs = {}
        self._gathers = {}
        self._parts = {}
        self.key_turns = KeyTurns()
        keys = self._collective_keys
        self._launchers = [
            ReusingLauncher(
                self.key_turns, one._group_key, one._group_size, keys, one._device, one._options
            )
            for one in self._launchers
        ]
        self.marks = None if self.all_local else CollectiveMarks()

    def combine_gradients(self, gradients, options):
        """Combines gradients; called in a graph.

        Args:
            gradients: for each local replica the list of its gradients.
            options: the merged `CommunicationOptions`.

        Returns:
            For each local replica the list of combined gradients, on its device.
        """
        raise NotImplementedError

    @property
    def local_devices(self):
        """The devices of this worker, in the order of its replicas."""
        return self._devices

    @property
    def replicas(self):
        """The number of replicas on all workers."""
        return self._group_size

    @property
    def all_local(self):
        """Whether this worker holds all replicas."""
        return len(self._devices) == self._group_size

    def collectives(self, options):
        """Returns `ReplicaCollectives` for each local replica."""
        return [ReplicaCollectives(launcher, options) for launcher in self._launchers]

    def part(self, local, key, size, options):
        """Returns `ReplicaCollectives` of a local replica for a group of fewer replicas.

        Args:
            local: number of the local replica.
            key: an int from 0 that names the group, the same for all its members and no others.
            size: number of its members.
            options: `CommunicationOptions`.
        """
        if (local, key) not in self._parts:
            launcher = self._launchers[local]
            group_key = launcher._group_key + FIRST_PART + key
            keys = self._collective_keys
            keys._instance_key_table.setdefault(group_key, {})[launcher._device] = 0
            part = ReusingLauncher(
                self.key_turns, group_key, size, keys, launcher._device, launcher._options
            )
            # One order for all collectives of a device, whatever their group.
            part._ordering_token = launcher._ordering_token
            self._parts[local, key] = part
        return ReplicaCollectives(self._parts[local, key], options)

    def gather(self, vectors, options):
        """Brings small vectors of all replicas to all workers; every worker has to call it.

        Args:
            vectors: for each local replica an int64 or float64 array ``[k]``.
            options: `CommunicationOptions`; its timeout bounds the wait for the other workers.

        Returns:
            NumPy array ``[replicas, k]``, in the order of the ranks.
        """
        if self.all_local:
            return np.stack(vectors)

        # Few lengths, so that there is little to trace.
        length = len(vectors[0])
        padding = [0, 2 ** max(2, (length - 1).bit_length()) - length]
        tensors = [tf.constant(np.pad(vector, padding)) for vector in vectors]
        key = (tensors[0].dtype, tensors[0].shape[0], options.timeout_seconds)
        if key not in self._gathers:
            self._gathers[key] = tf.function(
                lambda tensors: _gather_on_each(tensors, self.collectives(options))
            )
        return self.marks.during(lambda: self._gathers[key](tensors)[0].numpy()[:, :length])

    def gather_in_parts(self, numbers, parts):
        """Brings a number of each replica to all in its part; every worker has to call it.

        Args:
            numbers: for each local replica an int.
            parts: for each local replica its `ReplicaCollectives`.

        Returns:
            For each local replica the numbers of its part, in the order of the ranks.
        """
        gather = tf.function(lambda tensors: _gather_on_each(tensors, parts))
        tensors = [tf.constant([number], tf.int64) for number in numbers]
        return self.marks.during(lambda: [all_[:, 0].numpy() for all_ in gather(tensors)])

    def batch_reduce(self, reduce_op, value_destination_pairs, options=None):
        """Reduces a list of values; gradients go to every local replica, together.

        TensorFlow would take values apart whose destinations differ, as those of sparse gradients
        can, and would leave those of a single replica as they are.
        """
        is_gradient = isinstance(options, GradientReduction)
        if not is_gradient or (self.replicas == 1 and self.leaves_one_gradient_alone(options)):
            return super().batch_reduce(reduce_op, value_destination_pairs, options)
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise ValueError(
                "A reduction of gradients is a SUM, of which the aggregation rule gives the "
                f"coefficients. Received: {reduce_op}"
            )
        by_variable = [_of_local_replicas(value) for value, _ in value_destination_pairs]
        gradients = [list(own) for own in zip(*by_variable, strict=True)]
        if tf.executing_eagerly():
            # Collectives block, and eager code would launch one local device after the other.
            combined = self._graph_of(options)(gradients)
        else:
            refuse_xla()
            with self._lock:  # no other collective may come between those of one reduction
                combined = self._combine(gradients, options)
        return [
            distribute_utils.regroup(own, wrap_class=values.Mirrored)
            for own in zip(*combined, strict=True)
        ]

    def _combine(self, gradients, options):
        return self._marked(gradients, lambda: self.combine_gradients(gradients, options))

    def _marked(self, inputs, collectives):
        if self.marks is None or compiles_with_xla():
            return collectives()
        return self.marks.around(inputs, collectives)

    def leaves_one_gradient_alone(self, options):
        """Whether combining the gradients of a single replica changes nothing."""
        raise NotImplementedError

    def _all_reduce_per_replica_values(self, reduce_op, per_replica_values, options):
        """Reduces what is no gradient, as TensorFlow does it.

        Among logical CPUs of one process: as `MirroredStrategy`, on one device. A collective among
        them takes threads by the hundred for 32 devices, and gains nothing. And while one worker
        reads alone, see `reading_alone`.
        """
        if (self.all_local and "CPU" in self._devices[0]) or _reads_alone:
            reduction = tf.distribute.ReductionToOneDevice(reduce_to_device=self._devices[0])
            return [
                reduction.reduce(reduce_op, value, destinations=value)
                for value in per_replica_values
            ]
        return super()._all_reduce_per_replica_values(reduce_op, per_replica_values, options)

    def _all_reduce(self, reduce_op, value, replica_id, options):
        if isinstance(options, GradientReduction):  # only where XLA compiles each replica alone
            raise ValueError(NO_XLA)
        reduce = super()._all_reduce
        return self._marked(value, lambda: reduce(reduce_op, value, replica_id, options))

    def _gather_implementation(self, per_replica_value, *arguments):
        gather = super()._gather_implementation
        own = list(_of_local_replicas(per_replica_value))
        return self._marked(own, lambda: gather(per_replica_value, *arguments))

    def _graph_of(self, options):
        key = (options.bytes_per_pack, options.timeout_seconds, options.implementation)
        key += (options.reductions, options.indices, getattr(options.reductions, "version", None))
        if key not in self._graphs:
            self._graphs[key] = tf.function(
                lambda gradients: self._combine(gradients, options),
                reduce_retracing=True,  # sparse gradients have another length in each step
            )
        return self._graphs[key]


def _of_local_replicas(value):
    return value.values if isinstance(value, values.DistributedValues) else (value,)


def _gather_on_each(tensors, collectives):
    gathered = []
    for tensor, own in zip(tensors, collectives, strict=True):
        with tf.device(own.device):
            gathered.append(own.all_gather(tensor[None]))
    return gathered


def refuse_xla():
    """Raises where the gradients would be aggregated inside code that XLA compiles."""
    if compiles_with_xla():
        raise ValueError(NO_XLA)


def compiles_with_xla():
    """Whether the function that is being traced will be compiled by XLA."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


# TensorFlow numbers the groups of every strategy from 1: two strategies in one process would take
# each other's collectives for their own. Each gets a million numbers; the groups of some of its
# replicas start at the thousandth.
_key_bases = itertools.count(10**6, 10**6)
FIRST_PART = 1000


class GradientAggregatingExtended(CollectiveAllReduceExtended):
    """What `MultiWorkerMirroredStrategy` does behind its public face, with three hooks.

    Args:
        strategy: the strategy this belongs to.
        cluster_resolver: a `ClusterResolver`; without a cluster all replicas are local.
        communication_options: `CommunicationOptions` of every reduction.
        local_devices: names of this worker's devices, such as ``("CPU:0", "CPU:1")``.
        cross_device_ops: class or function that makes the `GradientCrossDeviceOps`.
        register_timeout: seconds to wait for the other workers to register, at the start.
        heartbeat_timeout: seconds after which TensorFlow takes a silent worker for lost.
    """

    def __init__(
        self,
        strategy,
        cluster_resolver,
        communication_options,
        *,
        local_devices,
        cross_device_ops,
        register_timeout,
        heartbeat_timeout,
    ):
        self._local_device_names = local_devices
        self._make_cross_device_ops = cross_device_ops
        self._register_timeout, self._heartbeat_timeout = register_timeout, heartbeat_timeout
        self._created = weakref.WeakValueDictionary()
        self._created_count = 0
        strategy._collective_key_base = next(_key_bases)
        super().__init__(strategy, cluster_resolver, communication_options)

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        del cluster_resolver
        devices = tuple(f"{worker_device}/device:{name}" for name in self._local_device_names)
        return devices, self._local_device_names[0].split(":")[0]

    def _initialize_local(self, *args, **kwargs):
        super()._initialize_local(*args, **kwargs)
        self._install_cross_device_ops()

    def _initialize_multi_worker(self, cluster_resolver):
        self._bound_registration(cluster_resolver)
        with _handlers_kept(signal.SIGTERM):
            super()._initialize_multi_worker(cluster_resolver)
        self._install_cross_device_ops()

    def _install_cross_device_ops(self):
        stock = self._cross_device_ops
        self._cross_device_ops = self._make_cross_device_ops(
            devices=stock._devices,
            group_size=stock._group_size,
            options=stock._options,
            collective_keys=self._collective_keys,
        )

    def _bound_registration(self, cluster_resolver):
        """Configures the coordination service as `CollectiveAllReduceExtended` would, but bounded.

        Left alone, a worker waits without a word and without end for one that dies between meeting
        the others and registering. (The leader, worker 0, still does.)
        """
        if context.context().coordination_service is not None:
            return
        cluster = multi_worker_util.normalize_cluster_spec(cluster_resolver.cluster_spec())
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=multi_worker_util.coordination_leader(cluster),
            cluster_register_timeout_in_ms=int(1000 * self._register_timeout),
            heartbeat_timeout_in_ms=int(1000 * self._heartbeat_timeout),
            coordinated_jobs=[
                coordination_config_pb2.CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
                for job in ("chief", "worker")
                if job in cluster.jobs
            ],
        )

    def _create_variable(self, next_creator, **kwargs):
        create = super()._create_variable
        marks = self._cross_device_ops.marks
        if marks is None or not tf.executing_eagerly():
            variable = create(next_creator, **kwargs)
        else:
            variable = marks.during(lambda: create(next_creator, **kwargs))
        # All workers make variables in step: on several workers TensorFlow sends the initial value.
        self._created[self._created_count] = variable
        self._created_count += 1
        return variable

    def created_variables(self):
        """Returns all variables ever made under this strategy, None for those that are gone."""
        return [self._created.get(number) for number in range(self._created_count)]

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        if not isinstance(options, GradientReduction):
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)
        marked = options.with_options(self._communication_options.merge(options))
        return self._cross_device_ops.batch_reduce(
            reduce_op, value_destination_pairs, options=marked
        )


@contextlib.contextmanager
def _handlers_kept(number):
    """Gives a signal the handler back that it had before.

    TensorFlow's server takes SIGTERM for a notice that this machine will go, notes it, and goes on:
    nothing less than SIGKILL would end a worker (seen with TensorFlow 2.21).
    """
    handler = signal.getsignal(number)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def cross_device_ops(extended):
    """Returns the strategy's `GradientCrossDeviceOps`."""
    return extended._cross_device_ops


_reads_alone = False  # while a `reading_alone` lasts


@contextlib.contextmanager
def reading_alone():
    """Returns a context manager in which no other worker is asked for what its replicas have.

    A variable that each replica moves on its own is read as the mean, or the sum, of the replicas'
    values; in here of those of this worker.
    """
    global _reads_alone
    had, _reads_alone = _reads_alone, True
    try:
        yield
    finally:
        _reads_alone = had


def abort_collectives(message):
    """Ends all collectives of this process, now and later, with `tf.errors.UnavailableError`."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def may_come_from_another_worker(error):
    """Whether an exception may be the consequence of what happened on another worker."""
    of_a_connection = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    return isinstance(error, of_a_connection) or (
        isinstance(error, tf.errors.OpError) and "DerivedStatus" in str(error)
    )


def first_replica(extended):
    """Returns the id of this worker's first replica among all replicas."""
    return extended._get_replica_id_in_sync_group(0)


def is_tf_function(function):
    """Whether it is what `tf.function` returns."""
    return isinstance(function, polymorphic_function.Function)


def of_function(function, python_function):
    """Returns a `tf.function` of another Python function, with the same arguments of its own."""
    other = function._clone(python_function=python_function)
    return api.autograph_artifact(other)  # or `Strategy.run` would wrap it, and not know it again


def global_seed():
    """Returns the seed given to `tf.random.set_seed`, or None."""
    return context.global_seed()


def seeding():
    """Returns an object that is another one after each `tf.random.set_seed`; None before it."""
    return getattr(context.context(), "_rng", None)


@contextlib.contextmanager
def seeded(seed):
    """Builds random operations as after `tf.random.set_seed(seed)`, and leaves no trace of it."""
    state = context.context()
    saved_seed, saved_generator = state._seed, getattr(state, "_rng", None)
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(saved_seed)
        if saved_generator:  # makes the seeds of operations; there is none before the first seed
            state._rng = saved_generator


def without_autotuning(dataset):
    """Returns a `tf.data.Dataset` that tf.data does not autotune, unless its options say so."""
    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def cardinality(distributed):
    """Returns the number of batches of this worker's part of a distributed dataset, as an int."""
    return int(distributed.cardinality)


def forget_cardinality(distributed):
    """Lets a distributed dataset go on until all workers' data has ended."""
    distributed._cardinality = tf.data.UNKNOWN_CARDINALITY


def stop_autotuning_device_datasets():
    """Switches tf.data's autotuning off in the datasets that feed one device each.

    A strategy hands every local device its batches through a dataset of its own, which has nothing
    to tune. Its autotuning thread sleeps for a period that doubles up to a minute, and the end of
    every epoch waits for it: stalls of many seconds with many local devices.
    """
    create = multi_device_iterator_ops._create_device_dataset
    if getattr(create, "stops_autotuning", False):
        return

    @functools.wraps(create)
    def create_without_autotuning(*args, **kwargs):
        return without_autotuning(create(*args, **kwargs))

    create_without_autotuning.stops_autotuning = True
    multi_device_iterator_ops._create_device_dataset = create_without_autotuning


def let_collectives_run_in_loops():
    """Lets functions that hold collectives be called inside `tf.cond` and `tf.while_loop`.

    Each collective asks for a fresh instance key when its function is called. Where a function is
    called inside the branch or the body of control flow, the question ends up in that graph, which
    nobody ever calls: "You must feed a value for placeholder". It belongs to the function around.
    """
    capture = func_graph.FuncGraph.capture_call_time_value
    if getattr(capture, "climbs", False):
        return

    @functools.wraps(capture)
    def capture_around_control_flow(self, *args, **kwargs):
        graph = self
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        with graph.as_default():
            return capture(graph, *args, **kwargs)

    capture_around_control_flow.climbs = True
    func_graph.FuncGraph.capture_call_time_value = capture_around_control_flow
