"""AdasumMirroredStrategy: the one line a Keras user changes."""

import contextlib
import functools
import os
import random
import time
import zlib

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum._version import __version__
from tf_adasum.aggregation import Scheme, rules
from tf_adasum.cluster import rendezvous, start_timeout
from tf_adasum.cluster import tasks as cluster_tasks
from tf_adasum.cluster.devices import local_devices
from tf_adasum.cross_device_ops import AdasumCrossDeviceOps
from tf_adasum.replicas import average_statistics, batches, equal_variables, nonfinite_gradients
from tf_adasum.replicas.aggregation_state import Reductions
from tf_adasum.replicas.empty_replicas import Rows
from tf_adasum.seams import keras as keras_seam
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.watch import watch
from tf_adasum.workers import callbacks as worker_callbacks

# Set by tf-adasum-launch for its workers.
LAUNCHER = "TF_ADASUM_LAUNCHER"

# Local devices from which on the autotuning of a dataset costs more than it gains.
MANY_DEVICES = 8

SPECIAL_CARDINALITIES = {
    tf.data.INFINITE_CARDINALITY: "infinite",
    tf.data.UNKNOWN_CARDINALITY: "unknown",
}


class AdasumMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous data-parallel training with adaptive gradient aggregation.

    A `tf.distribute.MultiWorkerMirroredStrategy` in which the gradients of any Keras optimizer are
    combined by an aggregation rule, ``g = Σ_i c_i g_i``, instead of being averaged:

    >>> strategy = tf_adasum.AdasumMirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([...])
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> model.fit(dataset)

    Without a cluster it trains on all GPUs of this machine, or on all logical CPU devices. With one
    (``TF_CONFIG``, Slurm, Kubernetes, …) every worker runs the same program, and each device of
    each worker holds a replica. Create the strategy before TensorFlow runs its first operation.

    The *batch size* given to Keras is the global one: each of the N replicas gets 1/N of it. Keep
    the learning rate of a single replica with a per-replica batch of the size you tuned it for.

    In a custom training loop the loss of a replica is its own mean (not divided by N), unless the
    rule is ``"mean"``, which leaves Keras's and TensorFlow's own path untouched.

    Args:
        devices: this worker's devices, such as ``["GPU:0", "GPU:1"]``; all workers need the same
            number of them. Default: all GPUs, else all logical CPUs.
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Default: the one that
            reads ``TF_CONFIG``.
        communication_options: `tf.distribute.experimental.CommunicationOptions`:
            ``timeout_seconds`` is how long this worker waits for others: for those that do not
            start (default: 60 s), half of it for those that are silent (30 s), and for those that
            are alive but do not come to a collective (600 s; a worker may be saving a model).
            ``bytes_per_pack`` of a bucket (default: 16 MiB), ``implementation`` of the collectives.
        aggregation: name of a rule (``"adasum"``, ``"adacons"``, ``"mean"``, ``"sum"``) or a
            `tf_adasum.rules.AggregationRule`.
        radix_plan: in which groups the N gradients are combined, level by level: factors of N.
            ``[N]`` is one level over all; ``[2, 2, …]``, pairs of pairs, is the paper's recursive
            vector halving. Default: what takes least time by `aggregation.cost_model`, among the
            plans that give the same result. With `local_reduction` N is the number of hosts.
        local_reduction: ``"mean"`` averages over the replicas of each host and applies the rule to
            these means, as the published implementation's hierarchical mode. Workers share a host
            if their addresses do. Default: none.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: gradients travel in half the bytes, rounded;
            inner products and sums stay in full precision. Numbers beyond the range of float16
            (65504) become infinite. Default: their own dtype.
        on_nonfinite: what becomes of a step of a Keras optimizer in which any replica has a
            gradient with a NaN or Inf. ``"propagate"`` (default): it reaches the weights.
            ``"skip"``: the step is left out on all replicas, as if it had not been, and counted in
            `skipped_steps`. ``"raise"``: an error on all workers names worker, replica and
            variable: a FloatingPointError in `fit`, a `tf.errors.InvalidArgumentError` of the same
            text in a custom loop. Both cost a tiny all-reduce per step. Gradients that a loop
            reduces by itself (`gradient_reduction`) are not looked at. Where a
            `keras.optimizers.LossScaleOptimizer` leaves a step out, it does not come to that.

    Raises:
        ValueError: before any communication, for an unknown rule or one that returns the wrong
            shape, devices that do not exist or repeat, a TF_CONFIG that is no JSON or lacks this
            task, a plan that is no factorization of N or not for this rule, hosts of different
            size, or workers that differ in their rule, plan or number of devices.
        RuntimeError: on several workers, if TensorFlow has run an operation already.
        OSError: if another process uses this worker's port.
        TimeoutError: naming the workers that did not start in time.
        WorkerLostError: naming a worker that has ended meanwhile.

    Reference:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021
        (arXiv 2006.02924).
    """

    def __init__(
        self,
        devices=None,
        cluster_resolver=None,
        communication_options=None,
        *,
        aggregation="adasum",
        radix_plan=None,
        local_reduction=None,
        wire_dtype=None,
        on_nonfinite="propagate",
    ):
        self._aggregation = rules.get(aggregation)
        self._on_nonfinite = nonfinite_gradients.checked(on_nonfinite)
        self._rows = Rows()
        self._known_shapes = set()  # of gradients that all workers have agreed on
        self._seeding = self._seeds = None  # see `_next_seed`
        keras_seam.install()
        worker_callbacks.install()
        tensorflow_seam.hooks.install()
        options = _checked_options(communication_options)
        self._options = _without_timeout(options)
        resolver, tasks = cluster_tasks.resolve(cluster_resolver)
        names = local_devices(devices)
        self._scheme = Scheme.checked(
            self._aggregation,
            len(names) * (len(tasks.addresses) if tasks else 1),
            averaged=_averaged(local_reduction, tasks, len(names)),
            radix_plan=radix_plan,
            wire_dtype=wire_dtype,
        )

        timeout = options.timeout_seconds or rendezvous.DEFAULT_TIMEOUT
        deadline = time.monotonic() + timeout
        self._watch = watch.NoWatch()
        if tasks:
            self._watch = watch.begin(tasks, self._terms(len(names)), options.timeout_seconds)
        try:
            with self._starting(tasks, timeout):
                if tasks and tasks.rank > 0:
                    rendezvous.wait_for_server(tasks.addresses[0])
                extended = tensorflow_seam.GradientAggregatingExtended(
                    self,
                    resolver,
                    self._options,
                    local_devices=names,
                    cross_device_ops=functools.partial(AdasumCrossDeviceOps, self._scheme),
                    register_timeout=timeout * 0.8,  # TensorFlow's word comes before the guard's
                    heartbeat_timeout=timeout,
                )
        except RuntimeError as error:
            if "at program startup" not in str(error):
                raise
            raise RuntimeError(
                "On several workers AdasumMirroredStrategy must be created before TensorFlow runs "
                "its first operation: move it to the top of the script."
            ) from error
        tf.distribute.Strategy.__init__(self, extended)
        if tasks:
            remaining = max(1.0, deadline - time.monotonic())
            cross_device_ops = tensorflow_seam.cross_device_ops(extended)
            cross_device_ops.meet(
                tensorflow_seam.first_replica(extended),
                tensorflow_seam.CommunicationOptions(timeout_seconds=remaining),
            )
            if counters := cross_device_ops.counters:
                self._watch.started(counters.read, tensorflow_seam.abort_collectives)
            _leave_progress_bars_to_the_first_worker(tasks)
        self._scheme.probe_values()
        self._nonfinite = nonfinite_gradients.NonFinite(self, self._on_nonfinite)

    @contextlib.contextmanager
    def _starting(self, tasks, timeout):
        if tasks is None:
            yield
            return
        try:
            with start_timeout.bounded(tasks, timeout), self.watching():
                yield
        except BaseException:
            if self._watch.is_starting:
                self._watch.stop()
            raise

    def _terms(self, devices):
        """What all workers have to have in common."""
        return {
            "tf_adasum": __version__,
            "TensorFlow": _release(tf.__version__),
            "Keras": _release(keras.__version__),
            **self._scheme.terms(),
            "devices per worker": devices,
            "communication_options.bytes_per_pack": self._options.bytes_per_pack,
            "communication_options.implementation": self._options.implementation.value,
            "backend of the op (TF_ADASUM_OPS)": ops.backend(),
            "on_nonfinite": self._on_nonfinite,
        }

    @contextlib.contextmanager
    def working_together(self):
        """Returns a context manager for what all workers do together, such as a training loop.

        `fit`, `evaluate` and `predict` are in one already. An exception that leaves it is told to
        the other workers, which would wait for this one. And keys of collectives are used again,
        of which TensorFlow keeps 1.6 kB each; do not catch errors of collectives inside of it.

        >>> with strategy.working_together():
        ...     for batch in batches:
        ...         train_step(batch)

        Raises:
            WorkerLostError: where TensorFlow has raised because of another worker.
        """
        cross_device_ops = tensorflow_seam.cross_device_ops(self.extended)
        with self.watching():
            if cross_device_ops.all_local:
                yield
                return
            with cross_device_ops.key_reuse.within(lambda *own: self._gather_from_workers(own)):
                yield

    def watching(self):
        """As `working_together`, but for a single step: keys of collectives are TensorFlow's."""
        return self._watch.call(tensorflow_seam.may_come_from_another_worker)

    @property
    def aggregation(self):
        """The `AggregationRule` that combines the gradients."""
        return self._aggregation

    @property
    def skipped_steps(self):
        """How many steps ``on_nonfinite="skip"`` has left out so far, as an int."""
        return self._nonfinite.skipped_steps

    @property
    def nonfinite(self):
        """The `nonfinite.NonFinite`: what becomes of gradients that are not finite."""
        return self._nonfinite

    @property
    def rows(self):
        """The `rows.Rows`: which replicas have no rows, within `run`."""
        return self._rows

    @property
    def gradient_reduction(self):
        """Options that mark an `all_reduce` as one of gradients; None where the rule is `Mean`.

        For custom training loops that do not use a Keras optimizer:

        >>> context = tf.distribute.get_replica_context()
        >>> combined = context.all_reduce("SUM", gradients, options=strategy.gradient_reduction)
        """
        if self._aggregation.is_stock_mean:
            return None
        return tensorflow_seam.GradientReduction()

    def gradient_reduction_of(self, variables):
        """Returns `gradient_reduction` for the gradients of some variables.

        For rules that have a state or whose granularity needs the variables' paths. Call it once,
        before the training loop, and reduce the gradients of all these variables in this order.

        Args:
            variables: list of Keras variables.

        Raises:
            ValueError: if the rule's granularity does not fit the variables' paths; for what is no
                list of Keras variables.
        """
        if not all(isinstance(variable, keras_seam.VARIABLE_TYPES) for variable in variables):
            raise ValueError(
                f"`variables` must be a list of Keras variables. Received: variables={variables!r}"
            )
        if self.gradient_reduction is None:
            return None
        paths = [keras_seam.path_of(variable) for variable in variables]
        return self.gradient_reduction.of(self.reductions(paths), range(len(paths)))

    def reductions(self, paths):
        """Returns the `Reductions` of the gradients of variables with these paths."""
        with self.scope():
            return Reductions(self._scheme, paths)

    def _check_equal_cardinality(self, cardinality):
        cardinalities = self._gather_from_workers([cardinality])[:, 0].tolist()
        if len(set(cardinalities)) > 1:
            raise ValueError(
                "All workers need a dataset of the same number of batches. Give all of them the "
                "same dataset, or one of unknown cardinality, or repeat() it and pass "
                f"steps_per_epoch. Received: {_batches_of_workers(cardinalities)}"
            )

    def check_same_gradients(self, names, shapes):
        """Checks that all replicas reduce gradients of the same shapes.

        Called with every reduction; workers compare notes when they meet new shapes.

        Args:
            names: for each local replica the names of the variables whose gradients it reduces.
            shapes: for each local replica their dtypes and shapes.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another one has.
        """
        own = {zlib.crc32(each.encode()) for each in shapes}
        if len(own) == 1 and own <= self._known_shapes:
            return
        with tf.init_scope():  # also where the local replicas differ: the others have to know
            digests = self._gather_from_workers([own.pop() if len(own) == 1 else -1])
        if (digests == digests[0]).all() and digests[0] != -1:
            self._known_shapes.add(int(digests[0, 0]))
        else:
            raise ValueError(
                "All replicas have to reduce the gradients of the same variables, all dense or all "
                "sparse, in the same groups of the rule's granularity; where a replica does not "
                "use a variable, give zeros instead of None. Received on the replicas of this "
                f"worker: {'; and '.join(names)}"
            )

    def check_same_settings(self, settings):
        """Checks that all workers' optimizers have the same settings; all have to call it.

        Args:
            settings: what an optimizer does in other than Keras's ways, as a str.

        Raises:
            ValueError: on all workers, if they differ: they would wait for each other without end,
                or end with different weights.
        """
        with tf.init_scope():
            digests = self._gather_from_workers([zlib.crc32(settings.encode())])
        if (digests != digests[0]).any():
            raise ValueError(
                "All workers need an optimizer with the same settings. Received on this worker: "
                f"{settings}"
            )

    def check_replicas(self, variables=None):
        """Checks that all replicas on all workers hold the same bits of the variables they share.

        All workers have to call it, outside of `strategy.run` and `tf.function`. `fit` does it once
        when training starts on several workers; `callbacks.ReplicaCheck` does it every so often.

        Args:
            variables: list of Keras or TensorFlow variables, in the same order on all workers.
                Default: those made under this strategy that are alive: weights, frozen ones too,
                and what optimizers count. Not what each replica counts on its own rows: moving
                statistics, metrics, and the slots of `optimizers.DeltaAdasum`. Between the local
                steps of one, call its `synchronize` first.

        Raises:
            tf_adasum.ReplicasDiffer: on all workers, naming the first variable that differs and
                the replicas on which it does.
            ValueError: on all workers, if they pass different numbers of variables; in a function;
                for what is no variable.

        Example:
            >>> strategy.check_replicas()
            >>> strategy.check_replicas(model.trainable_variables)
        """
        context = tf.distribute.get_replica_context()
        if tf.inside_function() or (context and context.strategy is self):
            raise ValueError(
                "check_replicas reads the variables of all replicas: call it outside of "
                "tf.function and strategy.run."
            )
        if variables is None:
            variables = [
                variable if variable is not None and equal_variables.is_shared(variable) else None
                for variable in self.extended.created_variables()
            ]
        else:
            variables = _checked_variables(variables)
        if self.num_replicas_in_sync > 1:
            equal_variables.check(self, variables, self._gather_from_replicas)

    def check_model(self, model):
        """Checks, as `check_replicas`, the variables of a model that replicas share.

        That is also the aggregation rule's state. Between the local steps of a
        `optimizers.DeltaAdasum` the weights are left out.
        """
        self.check_replicas(equal_variables.shared_variables(model))

    def average_statistics(self, model):
        """Averages over the replicas what each of them has counted on its own rows.

        That is every floating-point weight that was made not to be trained (frozen ones are the
        same on all replicas), in particular the moving mean and variance of a BatchNormalization
        that is not synchronized. `fit` (after each epoch),
        `evaluate` and `predict` call it; in a custom training loop call it before saving.
        All workers have to call it.

        Args:
            model: a built `keras.Model` of this strategy.
        """
        if self.num_replicas_in_sync > 1:
            average_statistics.average(self, model)

    def common_seed(self):
        """Returns a seed that worker 0 has drawn, the same on all workers.

        Another one each time, and reproducible from worker 0's global seed where it has one.
        All workers have to call it.

        Returns:
            An int of 31 bits. None where nothing is to be done: in one process, and where all
            workers have the same global seed, as after `keras.utils.set_random_seed`.
        """
        own = tensorflow_seam.global_seed()
        seeds = self._gather_from_workers([own or 0, own is not None, self._next_seed()])
        if len(seeds) == 1 or (seeds[:, :2] == [seeds[0, 0], True]).all():
            return None
        return int(seeds[0, 2])

    def _next_seed(self):
        """Draws from a generator of this strategy's own: Python's global one is the user's.

        It starts anew whenever TensorFlow's global seed is set, so that setting it repeats a run.
        """
        seeding = tensorflow_seam.seeding()
        if self._seeds is None or seeding is not self._seeding:
            own = tensorflow_seam.global_seed()
            self._seeding = seeding
            self._seeds = random.Random(None if own is None else int(own))
        return self._seeds.getrandbits(31)

    def split_batch(self, batch):
        """Splits one global batch over all replicas, in the order in which `predict` returns rows.

        Args:
            batch: structure of arrays ``[B, ...]``, the same on every worker; None is left alone.

        Returns:
            The structure with each replica's own rows, ceil(B / N) or floor(B / N) of them.

        Raises:
            ValueError: if there are no rows, or arrays of different length.
        """
        return batches.split(self, batch)

    def _gather_from_workers(self, numbers):
        """Every worker's int64 numbers ``[k]``, as an array ``[workers, k]``."""
        cross_device_ops = tensorflow_seam.cross_device_ops(self.extended)
        return cross_device_ops.gather_from_workers(np.array(numbers, np.int64), self._options)

    def run(self, fn, args=(), kwargs=None, options=None):
        """Calls a function in each replica: `tf.distribute.Strategy.run`.

        A replica without rows, after a last batch that did not suffice for all, contributes zeros
        instead of its gradients. That is one whose first argument with a batch axis of unknown
        length has no rows.
        """
        try:
            return super().run(self._rows.noting(fn), args, kwargs, options)
        finally:
            self._rows.forget()

    def _gather_from_replicas(self, numbers):
        """The local replicas' int64 numbers ``[k]``, as an array ``[replicas, k]`` of all."""
        cross_device_ops = tensorflow_seam.cross_device_ops(self.extended)
        vectors = [np.array(own, np.int64) for own in numbers]
        return cross_device_ops.gather_from_replicas(vectors, self._options)

    def experimental_distribute_dataset(self, dataset, options=None):
        """Distributes a dataset: `tf.distribute.Strategy.experimental_distribute_dataset`.

        With many local devices tf.data's autotuning of the dataset is switched off, unless its
        options switch it on: the end of every epoch would wait for it, for up to 40 s. Parallelism
        left to `tf.data.AUTOTUNE` keeps its initial value then.

        Raises:
            ValueError: on all workers, if their datasets have different numbers of batches: one
                would wait for the others without end.
        """
        if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():
            self._check_equal_cardinality(int(dataset.cardinality()))
        devices = len(self.extended.worker_devices)
        if isinstance(dataset, tf.data.Dataset) and devices > 1:
            dataset = batches.in_their_own_memory(dataset)
        if devices >= MANY_DEVICES:
            dataset = tensorflow_seam.without_autotuning(dataset)
        return super().experimental_distribute_dataset(dataset, options)

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        """Distributes datasets: `tf.distribute.Strategy.distribute_datasets_from_function`.

        The workers' datasets may have different numbers of batches: an epoch ends, on all of them
        together, with the longest, and replicas whose data has ended go on without rows.

        Raises:
            ValueError: on all workers, if some datasets are infinite and others end.
        """
        distributed = super().distribute_datasets_from_function(dataset_fn, options)
        if tf.executing_eagerly():
            own = tensorflow_seam.cardinality(distributed)
            counts = self._gather_from_workers([own])[:, 0].tolist()
            infinite = [count == tf.data.INFINITE_CARDINALITY for count in counts]
            if any(infinite) and not all(infinite):
                raise ValueError(
                    "The workers' datasets must all be infinite, or all end: give all of them "
                    "repeat() and pass steps_per_epoch, or none. "
                    f"Received: {_batches_of_workers(counts)}"
                )
            if len(set(counts)) > 1:  # Keras would take its own worker's number for that of all
                tensorflow_seam.forget_cardinality(distributed)
        return distributed

    def gather(self, value, axis):
        """Gathers `value` of all replicas: `tf.distribute.Strategy.gather`, of more dtypes.

        TensorFlow gathers float16, float32, float64, int32 and int64 from several workers; bfloat16
        and bool, as some models predict, and small integers travel as one of these.
        """
        dtype = self.experimental_local_results(value)[0].dtype
        if dtype == tf.bfloat16:
            carrier, convert = tf.float16, tf.bitcast
        elif dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16):
            carrier, convert = tf.int32, tf.cast
        else:
            return super().gather(value, axis)
        carried = self.run(lambda own: convert(own, carrier), args=(value,))
        return convert(super().gather(carried, axis), dtype)

    def reduce(self, reduce_op, value, axis):
        """Reduces `value` over the replicas: `tf.distribute.Strategy.reduce`.

        Keras asks for the mean of a metric, a scalar, "along axis 0", which TensorFlow refuses. A
        scalar is reduced over the replicas alone.
        """
        local = self.experimental_local_results(value)[0]
        if axis is not None and getattr(local, "shape", None) is not None and local.shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)


def _batches_of_workers(cardinalities):
    return ", ".join(
        f"worker {worker}: {SPECIAL_CARDINALITIES.get(count, count)}"
        for worker, count in enumerate(cardinalities)
    )


def _checked_options(options):
    if options is None:
        return tensorflow_seam.CommunicationOptions()
    if not isinstance(options, tensorflow_seam.CommunicationOptions):
        raise ValueError(
            "`communication_options` must be tf.distribute.experimental.CommunicationOptions. "
            f"Received: communication_options={options!r}"
        )
    return options


def _without_timeout(options):
    """The options of collectives: TensorFlow keeps a sleeping thread for each one with a timeout.

    `Watch` does it with one for all.
    """
    return tensorflow_seam.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack, implementation=options.implementation
    )


def _checked_variables(variables):
    is_list = isinstance(variables, (list, tuple))
    if not is_list or not all(isinstance(v, keras_seam.VARIABLE_TYPES) for v in variables):
        raise ValueError(
            "`variables` must be a list of Keras or TensorFlow variables, or None. "
            f"Received: variables={variables!r}"
        )
    return list(variables)


def _averaged(local_reduction, tasks, devices):
    """How many neighbouring replicas are averaged first: those of a host."""
    if local_reduction is None:
        return 1
    if local_reduction != "mean":
        raise ValueError(
            "`local_reduction` must be 'mean' or None. "
            f"Received: local_reduction={local_reduction!r}"
        )
    return devices * (tasks.workers_per_host() if tasks else 1)


def _leave_progress_bars_to_the_first_worker(tasks):
    if tasks.rank > 0 and os.environ.get(LAUNCHER):
        keras.utils.disable_interactive_logging()


def _release(version):
    """The release that a version belongs to: "2.15" of "2.15.1"."""
    return ".".join(version.split(".")[:2])
