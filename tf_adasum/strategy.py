"""AdasumMirroredStrategy: its arguments and methods. `startup` starts the workers."""

import contextlib
import functools
import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_adasum import arguments, startup
from tf_adasum.aggregation import Scheme, rules
from tf_adasum.cluster import resolver as cluster_resolvers
from tf_adasum.cluster.devices import local_devices
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy, live_strategies
from tf_adasum.cross_device_ops import AdasumCrossDeviceOps
from tf_adasum.errors import deprecated
from tf_adasum.replicas import average_statistics, batches, equal_variables, nonfinite_gradients
from tf_adasum.replicas.custom_reductions import CustomReductions
from tf_adasum.replicas.empty_replicas import EmptyReplicas
from tf_adasum.replicas.virtual_replicas import VirtualReplicas, validated_count
from tf_adasum.transport import argument as transports
from tf_adasum.workers import agreement
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.seeds import Seeds
from tf_adasum.workers.sharding import Sharding
from tf_adasum.workers.workers import Workers


class AdasumMirroredStrategy(
    CustomReductions, GradientAggregatingStrategy, tf.distribute.MultiWorkerMirroredStrategy
):
    """Synchronous data-parallel training with adaptive gradient aggregation.

    A `tf.distribute.MultiWorkerMirroredStrategy` that combines the gradients of any Keras optimizer
    with an aggregation rule, ``g = Σ_i c_i g_i``. Create it before TensorFlow runs its first
    operation, in the same program on every worker of a cluster (docs/clusters.md).

    Batch sizes are global: each of the N replicas gets 1/N. Keep the learning rate of one device.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to the
            cluster in which this process was started, if any.
        communication_options: `tf.distribute.experimental.CommunicationOptions`:
            ``bytes_per_pack``, and ``timeout_seconds`` for both timeouts below.
        devices: list of str, such as ``["GPU:0", "GPU:1"]``, as many on all workers. Defaults to
            all GPUs, or all logical CPUs.
        aggregation: `"adasum"`, `"adacons"`, `"mean"`, `"sum"`, or a
            `tf_adasum.rules.AggregationRule`. Defaults to `"adasum"`.
        radix_plan: list of int: how many replicas each level combines (docs/speed.md). The product
            is N, or the number of hosts with `local_reduction`. Defaults to a plan for the hosts.
        local_reduction: ``"mean"`` averages over the replicas of each host, and applies the rule to
            the hosts' averages. Defaults to `None`.
        wire_dtype: ``"bfloat16"`` or ``"float16"`` sends half the bytes; sums keep full precision.
            Defaults to the gradients' dtype.
        on_nonfinite: for gradients with a NaN or Inf on any replica: ``"propagate"``, ``"skip"``
            the step on all replicas, or ``"raise"`` an error that names the replica and variable.
            Defaults to `"propagate"`.
        transport: between CPUs: ``"tensorflow"``, ``"ucx"`` or ``"auto"``. Defaults to
            ``TF_ADASUM_TRANSPORT``, or ``"auto"``.
        virtual_replicas: int, V, a multiple of the number of devices: each device computes
            V / devices micro-batches and updates once (docs/virtual_replicas.md). Defaults to one
            for each device.
        start_timeout: seconds to wait for other workers at the start. Defaults to
            ``TF_ADASUM_START_TIMEOUT``, or 60.
        timeout: seconds to wait for a worker that runs, but does not take part in a step.
            Defaults to 600. A silent worker is lost after 30 s (docs/failures.md).

    Raises:
        ValueError: on all workers, if an argument, a setting or a version is wrong on one.
        RuntimeError: if TensorFlow has already run an operation.
        TimeoutError: if workers did not start in time.
        tf_adasum.WorkerLostError: if a worker ended during start-up.

    Example:
        >>> strategy = tf_adasum.AdasumMirroredStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse")
        >>> history = model.fit(np.ones([8, 3]), np.ones([8, 1]), batch_size=4, verbose=0)

    Reference:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021
        (arXiv 2006.02924).
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        devices: Sequence[str] | None = None,
        aggregation: str | rules.AggregationRule = "adasum",
        radix_plan: Sequence[int] | None = None,
        local_reduction: str | None = None,
        wire_dtype: str | None = None,
        on_nonfinite: str = "propagate",
        transport: str | None = None,
        virtual_replicas: int | None = None,
        start_timeout: float | None = None,
        timeout: float | None = None,
    ):
        if isinstance(cluster_resolver, list | tuple):  # earlier, `devices` was the first argument
            deprecated("`devices` by position", "AdasumMirroredStrategy(devices=[...])")
            devices, cluster_resolver = cluster_resolver, None
        worker_callbacks.install()
        tensorflow_compat.hooks.install()
        for name, value in (("start_timeout", start_timeout), ("timeout", timeout)):
            if value is not None:
                arguments.check_number(name, value, "must be a number of seconds", above=0)
        seconds = getattr(communication_options, "timeout_seconds", None)
        start_timeout, timeout = start_timeout or seconds, timeout or seconds
        resolver, cluster = cluster_resolvers.resolve(cluster_resolver, start_timeout)
        with startup.refusing_together(cluster):
            self._aggregation = rules.get(aggregation)
            action = nonfinite_gradients.validated_action(on_nonfinite)
            self._options = startup.options_of_collectives(communication_options)
            names = local_devices(devices)
            transport = transports.requested(transport, names)
            count = len(cluster.addresses) if cluster else 1
            self._orders_rows = virtual_replicas is not None and count > 1 and len(names) > 1
            virtual_replicas = validated_count(
                virtual_replicas, len(names) * count, self._aggregation, local_reduction
            )
            self._scheme = Scheme.from_arguments(
                self._aggregation,
                len(names) * count,
                local_reduction_size=startup.reduction_size(local_reduction, cluster, len(names)),
                radix_plan=radix_plan,
                wire_dtype=wire_dtype,
                replicas_per_host=startup.replicas_per_host(cluster, len(names)),
                spans_hosts=cluster is not None and cluster.spans_hosts,
            )
        extended, self._health = startup.start(
            self,
            resolver,
            cluster,
            settings=agreement.settings(
                self._scheme, len(names), self._options, action, transport, virtual_replicas
            ),
            options=self._options,
            start_timeout=start_timeout,
            timeout=timeout,
            devices=names,
            cross_device_ops=functools.partial(AdasumCrossDeviceOps, self._scheme),
            transport=transport,
        )
        tf.distribute.Strategy.__init__(self, extended)
        self._scheme.probe_values()
        startup.report(cluster, len(names), self._scheme, extended)
        rank = cluster.rank if cluster else 0
        self._workers = Workers.of_strategy(self, rank, count, self._options, self._health)
        self._seeds = Seeds(self._workers)
        self._sharding = Sharding(self._workers)
        earlier = [each._sharding for each in live_strategies]
        self._sharding.share_seeds(self._health.seed, earlier)
        self._check_same_gradients = agreement.SameGradients(self._workers).check
        self._virtual_replicas = VirtualReplicas(self, virtual_replicas)
        self._empty_replicas = EmptyReplicas(self._virtual_replicas.steps)
        collectives = tensorflow_compat.cross_device_ops(extended)
        if not collectives.all_local:  # their errors name the worker at fault
            collectives.wait_context = self._detecting_failures
            collectives.check_same_gradients = self._check_same_gradients
        collectives.rows_of = self._empty_replicas.rows_of_replica
        collectives.check_exchange = self._virtual_replicas.check_exchange
        self._nonfinite = nonfinite_gradients.NonFinite(self, action)
        live_strategies.add(self)

    # ---- how gradients are combined ------------------------------------------------------------

    @property
    def aggregation(self) -> rules.AggregationRule:
        """The `tf_adasum.rules.AggregationRule` that combines the gradients."""
        return self._aggregation

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    def num_virtual_replicas(self) -> int:
        """The number of replicas whose gradients a step combines.

        It is `num_replicas_in_sync`, unless `virtual_replicas` was passed. For `batch_size`, use
        ``samples_per_replica * strategy.num_virtual_replicas``.
        """
        return self._virtual_replicas.count

    def in_virtual_replicas(self, function: Callable) -> Callable:
        """Return the function of a custom training loop, to be passed to `strategy.run`.

        It calls `function` once for each virtual replica of a device, with the replica's part of
        the arguments, and averages floating-point results over the samples. The optimizer updates
        the weights in the last call.

        Args:
            function: the training step. It takes a batch, and its optimizer takes one step.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> with strategy.scope():
            ...     weight = keras.Variable(1.0)
            ...     optimizer = keras.optimizers.SGD(0.1)
            ...     optimizer.build([weight])
            >>> def train_step(x):
            ...     with tf.GradientTape() as tape:
            ...         loss = tf.reduce_mean(tf.square(x - weight))
            ...     optimizer.apply(tape.gradient(loss, [weight]), [weight])
            ...     return loss
            >>> step = strategy.in_virtual_replicas(train_step)
            >>> loss = strategy.run(step, args=(tf.ones([4]),))
        """
        return self._virtual_replicas.each(function)

    @property
    def skipped_steps(self) -> int:
        """The number of steps that ``on_nonfinite="skip"`` has skipped so far."""
        return self._nonfinite.skipped_steps

    def run(
        self,
        fn: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> typing.Any:
        """Call a function in each replica, as `tf.distribute.Strategy.run` does.

        Replicas without samples of a small last batch contribute zeros instead of gradients.
        """
        keras_compat.refuse_tf_keras(fn)
        detecting = self._detecting_failures if tf.executing_eagerly() else contextlib.nullcontext
        try:
            with detecting():  # a function that is being traced is called later
                return super().run(self._empty_replicas.noting(fn), args, kwargs, options)
        finally:
            self._empty_replicas.forget()
            keras_compat.forget_assigned(self)

    # ---- the workers ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> strategy.rank, strategy.num_workers
            (0, 1)
        """
        return self._workers.rank

    @property
    def num_workers(self) -> int:
        """The number of workers, at least 1. All workers have the same number of replicas."""
        return self._workers.count

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker writes files and prints: True on the chief, or on worker 0."""
        return self.rank == 0

    @contextlib.contextmanager
    def working_together(self) -> Iterator[None]:
        """Return a context manager for code that all workers run together, such as a custom loop.

        If an exception leaves the block on one worker, the others raise a
        `tf_adasum.WorkerLostError` that names it (docs/custom_loops.md).
        """
        collectives = tensorflow_compat.cross_device_ops(self.extended)
        reusing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if not collectives.all_local:
            reusing = collectives.key_reuse.within(lambda *own: self._workers.gather(own))
        with self._detecting_failures(), reusing:
            yield

    def _detecting_failures(self) -> contextlib.AbstractContextManager[None]:
        """Return `working_together`'s context manager, but without reuse of collective keys."""
        return self._health.call(tensorflow_compat.collective_error_of)

    def check_replicas(self, variables: Sequence[typing.Any] | None = None) -> None:
        """Check that all replicas hold the same bits; all workers call it between steps.

        Args:
            variables: list of Keras or TensorFlow variables, in the same order on all workers.
                Defaults to the weights and optimizer variables that replicas share. Between local
                steps of a `DeltaAdasum`, call its `synchronize` first.

        Raises:
            tf_adasum.ReplicasDifferError: on all workers, with the first variable that differs.
        """
        equal_variables.check(self, variables)

    def _check_model(self, model: typing.Any) -> None:
        """Check the variables of a model that replicas share, as `check_replicas` does.

        The state of the aggregation rule is checked too. Between the local steps of an
        `optimizers.DeltaAdasum` the weights are left out.
        """
        self.check_replicas(equal_variables.shared_variables(model))

    def average_statistics(self, model: typing.Any) -> None:
        """Average the replicas' floating-point state, such as BatchNormalization's statistics.

        `fit` does it after each epoch; in a custom loop, call it on all workers before you save.
        """
        if self.num_replicas_in_sync > 1:
            average_statistics.average(self, model)

    # ---- data ----------------------------------------------------------------------------------

    def _split_batch(self, batch: typing.Any) -> typing.Any:
        """Split one global batch over all replicas, in the order in which `predict` returns rows.

        Args:
            batch: structure of arrays with B rows each, the same on every worker; None stays None.

        Returns:
            The same structure, with ceil(B / N) or floor(B / N) rows for each of the N replicas.

        Raises:
            ValueError: if there are no rows, or if the arrays have different lengths.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> x, y = strategy._split_batch((np.ones([8, 3]), np.ones([8, 1])))
        """
        return batches.split(self, batch)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> tf.distribute.DistributedDataset:
        """Distribute a dataset, as `tf.distribute.Strategy.experimental_distribute_dataset` does.

        Raises:
            ValueError: on all workers, if their datasets have different numbers of batches, or if
                there are fewer files than workers under ``AutoShardPolicy.FILE``.
        """
        is_dataset = isinstance(dataset, tf.data.Dataset)
        if is_dataset and tf.executing_eagerly():
            agreement.check_same_cardinality(self._workers, int(dataset.cardinality()))
            dataset = self._sharding.with_valid_policy(dataset)
        by_rank = self._orders_rows and not self._sharding.is_in_order
        if is_dataset and by_rank:
            workers, devices = self._workers.count, len(self.extended.worker_devices)
            dataset = batches.ordered_by_replica(dataset, workers, devices)
        if is_dataset and self.num_replicas_in_sync > 1:
            dataset = batches.in_their_own_memory(dataset)
        dataset = tensorflow_compat.without_autotuning(dataset)
        distributed = super().experimental_distribute_dataset(dataset, options)
        distributed = tensorflow_compat.with_end_check(distributed)
        self._sharding.note_length(dataset, distributed)
        return distributed

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.distribute.DistributedDataset:
        """Distribute datasets, as in `tf.distribute.Strategy.distribute_datasets_from_function`.

        An epoch ends on all workers together, with the longest dataset.

        Raises:
            ValueError: on all workers, if some datasets are infinite and others end, or if
                workers of one machine write the same file of `cache(filename)`.
        """

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = dataset_fn(context)
            if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():
                self._sharding.check_cache(dataset)
            return tensorflow_compat.without_autotuning(dataset)

        with tensorflow_compat.unseeded_datasets():  # each worker may shuffle as it likes
            distributed = super().distribute_datasets_from_function(make, options)
        distributed = tensorflow_compat.with_end_check(distributed)
        if tf.executing_eagerly():
            own = int(distributed.cardinality)
            if not agreement.is_same_length(self._workers, own):
                # Otherwise, Keras would use the number of batches of one worker for all workers.
                tensorflow_compat.forget_cardinality(distributed)
        return distributed

    # ---- reductions of other values ------------------------------------------------------------

    def reduce(
        self, reduce_op: str | tf.distribute.ReduceOp, value: typing.Any, axis: int | None
    ) -> tf.Tensor:
        """Reduce `value` over the replicas, as `tf.distribute.Strategy.reduce` does.

        Scalars may have an `axis`, as Keras passes it.
        """
        # A metric's variable that keeps a maximum or a minimum.
        extreme = keras_compat.reduction_of(value)
        if extreme is not None:
            return batches.extreme(self, value, extreme)
        local = self.experimental_local_results(value)[0]
        if axis is not None and getattr(local, "shape", None) is not None and local.shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)
