"""Chooses the devices, creates the variables and starts the runtime of our strategies."""

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.compat.tensorflow import collective_keys, datasets, dtype_encoding
from tf_adasum.compat.tensorflow.cross_device_ops import (
    CommunicationOptions,
    GradientCrossDeviceOps,
    GradientOptions,
    reads_without_others,
)
from tf_adasum.compat.tensorflow.private_names import (
    CollectiveAllReduceExtended,
    CoordinatedJob,
    context,
    hooks,
    multi_worker_util,
)
from tf_adasum.compat.thread_flag import ThreadFlag
from tf_adasum.health import call_log


@hooks.overrides(
    "_initialize_local_devices",
    "_initialize_multi_worker",
    "_experimental_distribute_dataset",
    "_get_variable_creator_initial_value",
    "_create_variable",
    "_reduce_to",
    "_batch_reduce_to",
    "_use_merge_call",
)
class GradientAggregatingExtended(CollectiveAllReduceExtended):
    """The `StrategyExtended` of `MultiWorkerMirroredStrategy`, with hooks.

    Args:
        strategy: the strategy that this object belongs to.
        cluster_resolver: a `ClusterResolver`. Without a cluster, all replicas are local.
        communication_options: `CommunicationOptions` of every reduction.
        local_devices: names of this worker's devices, such as ``("CPU:0", "CPU:1")``.
        cross_device_ops: class or function that makes the `GradientCrossDeviceOps`.
        register_timeout: seconds to wait at the start until the other workers have registered.
        heartbeat_timeout: seconds after which TensorFlow considers a silent worker lost.
    """

    _cross_device_ops: GradientCrossDeviceOps

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        communication_options: CommunicationOptions,
        *,
        local_devices: Sequence[str],
        cross_device_ops: Callable[..., GradientCrossDeviceOps],
        register_timeout: float,
        heartbeat_timeout: float,
    ):
        self._local_device_names = local_devices
        self._register_timeout, self._heartbeat_timeout = register_timeout, heartbeat_timeout
        self._created: list[weakref.ref] = []
        strategy._collective_key_base = collective_keys.next_base()
        super().__init__(strategy, cluster_resolver, communication_options)
        stock = self._cross_device_ops  # TensorFlow has no argument for others
        self._cross_device_ops = cross_device_ops(
            devices=stock._devices,
            group_size=stock._group_size,
            options=stock._options,
            collective_keys=self._collective_keys,
        )

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        """Return all requested devices. TensorFlow would return only one CPU per worker."""
        devices = tuple(f"{worker_device}/device:{name}" for name in self._local_device_names)
        return devices, self._local_device_names[0].split(":")[0]

    def _initialize_multi_worker(self, cluster_resolver):
        """Limit the wait for workers at the start, and start the server only once.

        If the same server started again, TensorFlow would lose all groups of collectives and their
        members. Then the collectives of a worker that is ahead would wait forever.
        """
        self._bound_registration(cluster_resolver)
        if _server_runs(cluster_resolver):
            self._std_server_started, self._enable_check_health = True, False
        with _handlers_kept(signal.SIGTERM):
            super()._initialize_multi_worker(cluster_resolver)

    def _bound_registration(self, cluster_resolver):
        """Configure the coordination service as TensorFlow does, but with a timeout.

        Without a timeout, a worker waits forever and without a message for a worker that dies
        between the rendezvous and its registration. (Worker 0, the leader, still waits forever.)
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
                CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
                for job in ("chief", "worker")
                if job in cluster.jobs
            ],
        )

    def _experimental_distribute_dataset(self, dataset, options):
        """If the worker's only device is a CPU, read batches without functions for devices."""
        distributed = super()._experimental_distribute_dataset(dataset, options)
        is_cpu = len(self.worker_devices) == 1 and self.worker_devices[0].endswith("CPU:0")
        if is_cpu and options is None and tf.executing_eagerly():
            datasets.read_directly(distributed)
        return distributed

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        """Broadcast the initial value of a variable from worker 0, whatever its dtype.

        TensorFlow's broadcast supports only six dtypes.
        """
        stock = super()._get_variable_creator_initial_value
        if replica_id > 0 or self._num_workers == 1:
            return stock(replica_id, device, primary_var, **kwargs)

        def initial_value():
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                value = getattr(value, "wrapped_value", value)  # a value that is being restored
                value = tf.convert_to_tensor(value, kwargs.get("dtype"))
                if value.shape.rank == 0:
                    self._own_initial_value = tf.get_static_value(value)
                what = f"{value.dtype.name}{list(value.shape)}"
                name = kwargs.get("name") or "without a name"
                call_log.note(f"creates the variable {name} ({what})", same=what)
                encoded = dtype_encoding.encoded(value)
                sent = {**kwargs, "initial_value": encoded, "dtype": encoded.dtype}
                received = stock(replica_id, device, primary_var, **sent)()
                return dtype_encoding.decoded(received, value.dtype)

        return initial_value

    def _create_variable(self, next_creator, **kwargs):
        """Remember each new variable, and detect failures while its initial value is broadcast."""
        if _makes_own_variables.value:
            return next_creator(**kwargs)
        create, self._own_initial_value = super()._create_variable, None
        counters = self._cross_device_ops.counters
        if counters is None or not tf.executing_eagerly():
            variable = create(next_creator, **kwargs)
        else:
            with self._container_strategy()._detecting_failures():
                variable = counters.during(lambda: create(next_creator, **kwargs))
        if self._own_initial_value is not None:
            setattr(variable, _OWN_INITIAL_VALUE, self._own_initial_value)
        # A variable has the same number on all workers. They create variables in the same order,
        # because TensorFlow broadcasts initial values.
        self._created.append(weakref.ref(variable))
        return variable

    def created_variables(self) -> list[tf.Variable | None]:
        """Return all variables created under this strategy, with None for each deleted variable."""
        return [created() for created in self._created]

    def _reduce_to(self, reduce_op, value, destinations, options):
        """Add a read of a variable that replicas update separately to the log of calls.

        If only one worker saves or reads it, the error names the variable. Reads that need no
        other worker, or that are refused, are not added.
        """
        if isinstance(value, tf.Variable) and not reads_without_others():
            call_log.note(f"reads or saves the variable {value.name!r}, as all workers have to")
        return super()._reduce_to(reduce_op, value, destinations, options)

    def _use_merge_call(self):
        """Let a replica update variables without the others in a micro-batch, also in a loop."""
        virtual = getattr(self._container_strategy(), "_virtual_replicas", None)  # not yet set
        step = virtual and virtual.step
        is_alone = step and step.hands_over and step.is_within_update
        return not is_alone and super()._use_merge_call()

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        """Merge options, and keep their class, which TensorFlow would change."""
        if not isinstance(options, GradientOptions):
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)
        marked = options.with_options(self._communication_options.merge(options))
        return self._cross_device_ops.batch_reduce(
            reduce_op, value_destination_pairs, options=marked
        )


# Attribute of a scalar variable: see `own_initial_value`.
_OWN_INITIAL_VALUE = "own_initial_value_of_tf_adasum"

# A context manager in which this worker creates variables for itself only. Otherwise, in the scope
# of a strategy, all workers have to create the same variables in one order.
_makes_own_variables = ThreadFlag()
making_own_variables = _makes_own_variables.within


def _server_runs(cluster_resolver) -> bool:
    """Return whether this process's server already runs, for the same task and cluster."""
    running = context.context()._collective_ops_server_def
    cluster = multi_worker_util.normalize_cluster_spec(cluster_resolver.cluster_spec())
    task = cluster_resolver.task_type, cluster_resolver.task_id
    return (
        running is not None
        and running.cluster == cluster.as_cluster_def()
        and (running.job_name, running.task_index) == task
    )


@contextlib.contextmanager
def _handlers_kept(number: int) -> Iterator[None]:
    """Return a context manager that restores the handler of a signal at the end.

    TensorFlow's server treats SIGTERM as a notice of preemption and continues, so only SIGKILL
    would end a worker (observed with TensorFlow 2.21).
    """
    handler = signal.getsignal(number)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def own_initial_value(variable: Any) -> np.generic | None:
    """Return the initial value of a scalar variable on this worker; None if it is not known.

    The variable itself has worker 0's initial value on all workers.
    """
    # A distributed variable looks other attributes up in its value.
    return getattr(variable, "__dict__", {}).get(_OWN_INITIAL_VALUE)


def first_replica(extended: CollectiveAllReduceExtended) -> int:
    """Return the id of this worker's first replica among all replicas."""
    return extended._get_replica_id_in_sync_group(0)
