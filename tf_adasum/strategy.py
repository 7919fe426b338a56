"""AdasumMirroredStrategy: arguments, run, reduce, gather, datasets. `startup` starts it."""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_adasum import startup
from tf_adasum.aggregation import Scheme, rules
from tf_adasum.cluster import resolver as cluster_resolvers
from tf_adasum.cluster.devices import local_devices
from tf_adasum.cross_device_ops import AdasumCrossDeviceOps
from tf_adasum.replicas import average_statistics, batches, equal_variables, nonfinite_gradients
from tf_adasum.replicas.aggregation_state import AggregationState
from tf_adasum.replicas.empty_replicas import EmptyReplicas
from tf_adasum.seams import keras as keras_seam
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams import tracebacks
from tf_adasum.seams.base_strategy import GradientAggregatingStrategy, made
from tf_adasum.transport import choice as transports
from tf_adasum.workers import agreement
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.place import Place
from tf_adasum.workers.seeds import Seeds
from tf_adasum.workers.sharding import Sharding
from tf_adasum.workers.workers import Workers


class AdasumMirroredStrategy(
    GradientAggregatingStrategy, Place, tf.distribute.MultiWorkerMirroredStrategy
):
    """Synchronous data-parallel training with adaptive gradient aggregation.

    A `tf.distribute.MultiWorkerMirroredStrategy` in which the gradients of any Keras optimizer are
    combined by an aggregation rule, ``g = Σ_i c_i g_i``, instead of being averaged.

    Without a cluster it trains on all GPUs of this machine, or on all logical CPU devices. With one
    (``TF_CONFIG``, Slurm, MPI, …: docs/clusters.md) every worker runs the same program, and each
    device of each worker holds a replica. Create the strategy before TensorFlow runs its first
    operation. Worker 0 prints one line with the number of workers and replicas, the transport and
    the rule; the logger ``tf_adasum`` has the details at level INFO.

    The *batch size* given to Keras is the global one: each of the N replicas gets 1/N of it. Keep
    the learning rate of a single replica with a per-replica batch of the size you tuned it for.

    In a custom training loop the loss of a replica is its own mean (not divided by N), unless the
    rule is ``"mean"``: then TensorFlow (over UCX the package) sums what Keras has divided by N.

    Args:
        devices: list of str, this worker's devices, such as ``["GPU:0", "GPU:1"]``; all workers
            need the same number of them. Defaults to all GPUs, or without any to all logical CPUs.
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to what
            ``TF_CONFIG`` says, or who has started this process together with others.
        communication_options: `tf.distribute.experimental.CommunicationOptions`.
            ``timeout_seconds`` is how long this worker waits for others: for those that do not
            start (by default 60 s), half of it for those that are silent (30 s), and for those that
            are alive but do not come to a collective (600 s; a worker may be saving a model).
            ``bytes_per_pack`` is the size of a bucket (16 MiB), ``implementation`` that of the
            collectives. Defaults to `None`, TensorFlow's options.
        aggregation: str, the name of a rule (``"adasum"``, ``"adacons"``, ``"mean"``, ``"sum"``),
            or a `tf_adasum.rules.AggregationRule`. Defaults to `"adasum"`.
        radix_plan: list of int, in which groups the N gradients are combined, level by level:
            factors of N. ``[N]`` is one level over all; ``[2, 2, …]``, pairs of pairs, is the
            paper's recursive vector halving. With `local_reduction` N is the number of hosts.
            Defaults to ``[N]`` up to 16 replicas, and beyond to what takes least time by
            `aggregation.cost_model`, among the plans that give the same result. With
            ``TF_ADASUM_COST_MODEL``, constants measured on your cluster, that is chosen for any N.
        local_reduction: ``"mean"`` averages over the replicas of each host and applies the rule to
            these means, as the published implementation's hierarchical mode. Workers share a host
            if their addresses do. Defaults to `None`.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: gradients travel in half the bytes, rounded;
            inner products and sums stay in full precision. Numbers beyond the range of float16
            (65504) become infinite. Defaults to `None`, their own dtype.
        on_nonfinite: str, what becomes of a step of a Keras optimizer in which any replica has a
            gradient with a NaN or Inf. ``"propagate"``: it reaches the weights. ``"skip"``: the
            step is left out on all replicas, as if it had not been, and counted in `skipped_steps`.
            ``"raise"``: an error on all workers names worker, replica and variable: a
            FloatingPointError in `fit`, a `tf.errors.InvalidArgumentError` of the same text in a
            custom loop. Both cost a tiny all-reduce per step. Gradients that a loop reduces by
            itself (`gradient_reduction`) are not looked at. Steps that a
            `keras.optimizers.LossScaleOptimizer` already skips are not counted here. Defaults to
            `"propagate"`.
        transport: what carries gradients between CPUs of several workers: ``"tensorflow"``, its
            collectives over gRPC; ``"ucx"``, which needs UCX on all workers; ``"auto"``, UCX if all
            workers have it and it is faster in a trial at the start. Defaults to `None`:
            ``TF_ADASUM_TRANSPORT``, or ``"auto"``.

    Raises:
        ValueError: before TensorFlow starts, on all workers, if an argument or the cluster is wrong
            on one of them, or if they differ in their settings or in their versions of tf_adasum,
            TensorFlow or Keras.
        RuntimeError: on several workers, if TensorFlow has run an operation already; if Keras runs
            on another backend than TensorFlow.
        OSError: if another process uses this worker's port.
        TimeoutError: naming the workers that did not start in time.
        tf_adasum.WorkerLostError: naming a worker that has ended meanwhile.

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
        devices: Sequence[str] | None = None,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        aggregation: str | rules.AggregationRule = "adasum",
        radix_plan: Sequence[int] | None = None,
        local_reduction: str | None = None,
        wire_dtype: str | None = None,
        on_nonfinite: str = "propagate",
        transport: str | None = None,
    ):
        worker_callbacks.install()
        tensorflow_seam.hooks.install()
        timeout = getattr(communication_options, "timeout_seconds", None)
        resolver, tasks, source = cluster_resolvers.resolve(cluster_resolver, timeout)
        with startup.refusing_together(tasks):
            self._aggregation = rules.get(aggregation)
            action = nonfinite_gradients.checked(on_nonfinite)
            options = startup.checked_options(communication_options)
            self._options = startup.options_of_collectives(options)
            names = local_devices(devices)
            transport = transports.chosen(transport, names)
            count = len(tasks.addresses) if tasks else 1
            self._scheme = Scheme.checked(
                self._aggregation,
                len(names) * count,
                averaged=startup.averaged(local_reduction, tasks, len(names)),
                radix_plan=radix_plan,
                wire_dtype=wire_dtype,
            )
        extended, self._watch = startup.start(
            self,
            resolver,
            tasks,
            terms=agreement.terms(self._scheme, len(names), self._options, action, transport),
            options=self._options,
            timeout=options.timeout_seconds,
            devices=names,
            cross_device_ops=functools.partial(AdasumCrossDeviceOps, self._scheme),
            transport=transport,
        )
        tf.distribute.Strategy.__init__(self, extended)
        self._scheme.probe_values()
        startup.report(tasks, source, len(names), self._scheme, extended, self._watch)
        rank = tasks.rank if tasks else 0
        self._workers = Workers.of(self, rank, count, self._options, self._watch)
        self._seeds = Seeds(self._workers)
        self._sharding = Sharding(self._workers)
        self._sharding.share_seeds(self._watch.seed)
        self._same_gradients = agreement.SameGradients(self._workers)
        startup.guard(extended, self.watching, self._same_gradients.check)
        self._empty_replicas = EmptyReplicas()
        self._nonfinite = nonfinite_gradients.NonFinite(self, action)
        made.add(self)

    # ---- how gradients are combined ------------------------------------------------------------

    @property
    def aggregation(self) -> rules.AggregationRule:
        """The `tf_adasum.rules.AggregationRule` that combines the gradients."""
        return self._aggregation

    @property
    def gradient_reduction(self) -> tensorflow_seam.GradientReduction | None:
        """Options that mark an `all_reduce` as one of gradients; None where the rule is `Mean`.

        For custom training loops that do not use a Keras optimizer.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> def combine(gradients):
            ...     context = tf.distribute.get_replica_context()
            ...     return context.all_reduce("SUM", gradients, options=strategy.gradient_reduction)
            >>> combined = strategy.run(combine, args=([tf.ones([3])],))
        """
        if self._aggregation.is_stock_mean:
            return None
        return tensorflow_seam.GradientReduction()

    def gradient_reduction_of(
        self, variables: Sequence[typing.Any]
    ) -> tensorflow_seam.GradientReduction | None:
        """Return `gradient_reduction` for the gradients of some variables; None with rule `Mean`.

        For rules that have a state or whose granularity needs the variables' paths. Call it once,
        before the training loop, and reduce the gradients of all these variables in this order.

        Args:
            variables: list of Keras variables.

        Raises:
            ValueError: if the rule's granularity does not fit the variables' paths; for what is no
                list of Keras variables.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy(aggregation="adacons")
            >>> with strategy.scope():
            ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
            >>> options = strategy.gradient_reduction_of(model.trainable_variables)
        """
        if not all(isinstance(variable, keras_seam.VARIABLE_TYPES) for variable in variables):
            raise ValueError(
                f"`variables` must be a list of Keras variables. Received: variables={variables!r}"
            )
        marker = self.gradient_reduction
        if marker is None:
            return None
        paths = [keras_seam.path_of(variable) for variable in variables]
        return marker.of(self.aggregation_state(paths), range(len(paths)))

    def aggregation_state(self, paths: Sequence[str]) -> AggregationState:
        """See `GradientAggregatingStrategy.aggregation_state`."""
        with self.scope():
            return AggregationState(self._scheme, paths)

    def check_same_gradients(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """See `GradientAggregatingStrategy.check_same_gradients`."""
        self._same_gradients.check(names, shapes)

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    def empty_replicas(self) -> EmptyReplicas:
        """The `EmptyReplicas`: which replicas have no rows, within `run`."""
        return self._empty_replicas

    @property
    def nonfinite(self) -> nonfinite_gradients.NonFinite:
        """The `NonFinite`: what becomes of gradients that are not finite."""
        return self._nonfinite

    @property
    def skipped_steps(self) -> int:
        """How many steps ``on_nonfinite="skip"`` has left out so far."""
        return self._nonfinite.skipped_steps

    def run(
        self,
        fn: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> typing.Any:
        """Call a function in each replica: `tf.distribute.Strategy.run`.

        A replica without rows, after a last batch that did not suffice for all, contributes zeros
        instead of its gradients. Its rows are those of the first argument with a batch axis of
        unknown length, or in eager code of the first with a batch axis. Raises NotImplementedError
        in `fit` of a model of the package tf_keras.
        """
        keras_seam.refuse_tf_keras(fn)
        watching = self.watching if tf.executing_eagerly() else contextlib.nullcontext
        try:
            with watching():  # a function that is being traced is called later
                return super().run(self._empty_replicas.noting(fn), args, kwargs, options)
        finally:
            self._empty_replicas.forget()

    # ---- what workers do together --------------------------------------------------------------

    @property
    def workers(self) -> Workers:
        """The `Workers`: this one's rank, and what they tell each other between steps."""
        return self._workers

    @property
    def seeds(self) -> Seeds:
        """The `Seeds`: one for all workers."""
        return self._seeds

    @property
    def sharding(self) -> Sharding:
        """The `Sharding`: which rows each worker gets."""
        return self._sharding

    @contextlib.contextmanager
    def working_together(self) -> Iterator[None]:
        """Return a context manager for what all workers do together, such as a training loop.

        `fit`, `evaluate` and `predict` are in one already. An exception that leaves it is told to
        the other workers, which would wait for this one. Keys of collectives are used again inside
        of it, because TensorFlow keeps 1.6 kB for each. Do not catch errors of collectives there.

        Raises:
            tf_adasum.WorkerLostError: where TensorFlow has raised because of another worker.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> with strategy.working_together():
            ...     results = [strategy.run(lambda: tf.constant(step)) for step in range(3)]
        """
        collectives = tensorflow_seam.cross_device_ops(self.extended)
        with self.watching():
            if collectives.all_local:
                yield
                return
            with collectives.key_reuse.within(lambda *own: self._workers.gather(own)):
                yield

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager like `working_together`, for one step: it reuses no keys."""
        return tracebacks.shortened(self._watch.call(tensorflow_seam.breakage))

    def check_replicas(self, variables: Sequence[typing.Any] | None = None) -> None:
        """Check that all replicas on all workers hold the same bits of the variables they share.

        All workers have to call it, outside of `strategy.run` and `tf.function`. `fit` does it once
        when training starts on several workers; `callbacks.ReplicaCheck` does it every so often.

        Args:
            variables: list of Keras or TensorFlow variables, in the same order on all workers.
                Defaults to those made under this strategy that are alive: weights, frozen ones
                too, and what optimizers count. Not what each replica counts on its own rows: moving
                statistics, metrics, and the slots of `optimizers.DeltaAdasum`. Between the local
                steps of one, call its `synchronize` first.

        Raises:
            tf_adasum.ReplicasDiffer: on all workers, naming the first variable that differs and
                the replicas on which it does.
            ValueError: on all workers, if they pass different numbers of variables; in a function;
                for what is no variable.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> strategy.check_replicas()
        """
        equal_variables.check(self, variables)

    def check_model(self, model: typing.Any) -> None:
        """Check, as `check_replicas`, the variables of a model that replicas share.

        That is also the aggregation rule's state. Between the local steps of a
        `optimizers.DeltaAdasum` the weights are left out.
        """
        self.check_replicas(equal_variables.shared_variables(model))

    def average_statistics(self, model: typing.Any) -> None:
        """Average over the replicas what each of them has counted on its own rows.

        That is every floating-point weight that was made not to be trained (frozen ones are the
        same on all replicas), in particular the moving mean and variance of a BatchNormalization
        that is not synchronized. `fit` (after each epoch), `evaluate` and `predict` call it; in a
        custom training loop call it before saving. All workers have to call it.

        Args:
            model: a built `keras.Model` of this strategy.
        """
        if self.num_replicas_in_sync > 1:
            average_statistics.average(self, model)

    # ---- data ----------------------------------------------------------------------------------

    def split_batch(self, batch: typing.Any) -> typing.Any:
        """Split one global batch over all replicas, in the order in which `predict` returns rows.

        Args:
            batch: structure of arrays ``[B, ...]``, the same on every worker; None is left alone.

        Returns:
            The structure with each replica's own rows, ceil(B / N) or floor(B / N) of them.

        Raises:
            ValueError: if there are no rows, or arrays of different length.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> x, y = strategy.split_batch((np.ones([8, 3]), np.ones([8, 1])))
        """
        return batches.split(self, batch)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> tf.distribute.DistributedDataset:
        """Distribute a dataset: `tf.distribute.Strategy.experimental_distribute_dataset`.

        tf.data's autotuning is switched off, unless the dataset's options switch it on: ends of
        epochs would wait for it, see `tensorflow_seam.without_autotuning`.

        Raises:
            ValueError: on all workers, if their datasets have different numbers of batches: one
                would wait for the others without end; if there are fewer files than workers under
                ``AutoShardPolicy.FILE``.
        """
        is_dataset = isinstance(dataset, tf.data.Dataset)
        if is_dataset and tf.executing_eagerly():
            agreement.check_same_cardinality(self._workers, int(dataset.cardinality()))
            dataset = self._sharding.checked(dataset)
        if is_dataset and self.num_replicas_in_sync > 1:
            dataset = batches.in_their_own_memory(dataset)
        dataset = tensorflow_seam.without_autotuning(dataset)
        distributed = super().experimental_distribute_dataset(dataset, options)
        self._sharding.note_length(dataset, distributed)
        return distributed

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.distribute.DistributedDataset:
        """Distribute datasets: `tf.distribute.Strategy.distribute_datasets_from_function`.

        The workers' datasets may have different numbers of batches: an epoch ends, on all of them
        together, with the longest, and replicas whose data has ended go on without rows. tf.data's
        autotuning is switched off as in `experimental_distribute_dataset`.

        Raises:
            ValueError: on all workers, if some datasets are infinite and others end.
        """

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return tensorflow_seam.without_autotuning(dataset_fn(context))

        with tensorflow_seam.unseeded_datasets():  # each worker may shuffle as it likes
            distributed = super().distribute_datasets_from_function(make, options)
        if tf.executing_eagerly():
            own = tensorflow_seam.cardinality(distributed)
            if not agreement.is_same_length(self._workers, own):
                # Keras would take its own worker's number for that of all.
                tensorflow_seam.forget_cardinality(distributed)
        return distributed

    # ---- reductions that are none of gradients -------------------------------------------------

    def reduce(
        self, reduce_op: str | tf.distribute.ReduceOp, value: typing.Any, axis: int | None
    ) -> tf.Tensor:
        """Reduce `value` over the replicas: `tf.distribute.Strategy.reduce`.

        Keras asks for the mean of a metric, a scalar, "along axis 0", which TensorFlow refuses. A
        scalar is reduced over the replicas alone.
        """
        local = self.experimental_local_results(value)[0]
        if axis is not None and getattr(local, "shape", None) is not None and local.shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)
