"""Runs a step once for each virtual replica of a device, and updates the weights once.

With V virtual replicas on N devices, each device runs the function of a step k = V / N times, each
time with the rows of one virtual replica, a *micro-batch*:

    micro-batch 0        function ─▶ gradients ──┐
    micro-batches 1 …    function ─▶ gradients ──┼─▶ partial results, see `partial_results`
      (a tf.while_loop)                          │
    micro-batch k - 1    function ─▶ gradients ──┴─▶ other devices ─▶ update

In all micro-batches but the last, optimizers hand over their gradients and assign nothing. The last
micro-batch exchanges the combined gradient with the other devices, and takes the step. Weights that
the forward pass assigns, such as moving statistics, begin each micro-batch with the same values.
After the step, they have the mean of the micro-batches' values, as after an average over real
replicas.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation import partial_results, row_weights
from tf_adasum.aggregation.partial_results import RunningSum, Tree
from tf_adasum.aggregation.sparse import coalesced, values_of, with_values
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.replicas.empty_replicas import count_rows

SEVERAL_UPDATES = (
    "With `virtual_replicas`, a training step can update the weights only once, because the update "
    "needs the gradients of all micro-batches. Use one optimizer, such as "
    f"keras.optimizers.MultiOptimizer, or as many devices as replicas. {see('TFA-316')}"
)


class DeviceStep:
    """A step of a device with k micro-batches.

    Args:
        strategy: the strategy.
        arguments: structure of the device's rows.

    Attributes:
        number: the number of the current virtual replica, int or int32 scalar tensor.
        rows, rows_now, total: the number of rows of this device's step, of the current micro-batch,
            and of all devices.
        notes: dict of the scalars of the current micro-batch, see `note`.
        hands_over: whether optimizers hand over their gradients and assign nothing, because
            another micro-batch follows.
        is_within_update: whether an optimizer takes its step.
        is_local: whether an optimizer updates the variables of a virtual replica.
    """

    def __init__(self, strategy: Any, arguments: Any):
        self._strategy, self._arguments = strategy, arguments
        self._count = strategy._virtual_replicas.per_device
        self._first = tensorflow_compat.replica() * self._count
        self._divide_rows()
        self.number: Any = self._first
        self.hands_over, self.is_within_update, self.is_local = True, False, False
        self._begin_micro_batch()
        self._trees: list[Tree | RunningSum] = []  # for each optimizer
        self._measured = 0  # how many gradients of an optimizer are measured
        self._variables: list[tuple] = []  # see `before_assignment`

    @property
    def index(self) -> Any:
        """The number of the current micro-batch."""
        return self.number - self._first

    def _begin_micro_batch(self) -> None:
        self._updates = 0
        self._handed: list[tuple[Any, list]] = []
        self.notes: dict[str, tf.Tensor] = {}

    # ---- rows ----------------------------------------------------------------------------------

    def _divide_rows(self) -> None:
        """Set the bounds of the micro-batches, ``[k + 1]``.

        Each gets ceil(rows / k) rows as long as there are rows, as TensorFlow divides a last batch
        among real replicas.
        """
        strategy, count = self._strategy, self._count
        self.rows = rows = count_rows(self._arguments)
        if rows is None:
            raise ValueError(
                "Virtual replicas divide the rows of a device, but the arguments of the step have "
                f"no rows. Pass the batch to the step. {see('TFA-316')}"
            )
        self.total = rows * strategy.num_replicas_in_sync
        if strategy.aggregation.is_mean:
            self.total = strategy._empty_replicas.total_rows()
        is_known = isinstance(rows, int) and rows % count == 0
        self._rows_of_each = rows // count if is_known else None
        own = tf.cast(rows, tf.int64)
        self._bounds = tf.minimum(tf.range(count + 1, dtype=tf.int64) * (-(-own // count)), own)

    def _call(self, function: Callable, index: Any, state: Any) -> Any:
        """Call the function with the rows of a micro-batch, and note the number of rows.

        Args:
            function: the function.
            index: the number of the micro-batch.
            state: structure of tensors that have to exist first, so that the activations of only
                one micro-batch are in memory.
        """
        with tf.control_dependencies(tf.nest.flatten(state, expand_composites=True)):
            bounds = tf.identity(self._bounds)
        start, stop = bounds[index], bounds[index + 1]
        self.rows_now = stop - start if self._rows_of_each is None else self._rows_of_each

        def part(value: Any) -> Any:
            if isinstance(value, tf.SparseTensor):
                shape = tf.cast(value.dense_shape, tf.int64)
                begin = tf.concat([[start], tf.zeros_like(shape[1:])], axis=0)
                return tf.sparse.slice(value, begin, tf.concat([[stop - start], shape[1:]], axis=0))
            if not isinstance(value, tf.Tensor | tf.RaggedTensor) or value.shape.rank == 0:
                return value
            own = value[start:stop]
            is_dense = isinstance(own, tf.Tensor)
            return tf.ensure_shape(own, [self._rows_of_each, *own.shape[1:]]) if is_dense else own

        return function(*tf.nest.map_structure(part, self._arguments))

    # ---- what hooks call -----------------------------------------------------------------------

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Return a context manager for the step of an optimizer, also of one within another."""
        was_within, self.is_within_update = self.is_within_update, True
        self._updates += not was_within
        if self._updates > 1:
            raise ValueError(SEVERAL_UPDATES)
        try:
            yield
        finally:
            self.is_within_update = was_within

    def hand_over(self, optimizer: Any, values: list, groups: list[int], measured: int) -> None:
        """Receive the gradients of a micro-batch from an optimizer.

        Args:
            optimizer: the inner optimizer.
            values: its gradients, and the scalars that are combined with them.
            groups: for each gradient, the number of its group of variables; scalars are alone.
            measured: how many of the values are gradients whose orthogonality is measured.
        """
        self._measured = measured
        self._handed.append((optimizer, values))
        if len(self._trees) < len(self._handed):
            scalars = range(max(groups) + 1, max(groups) + 1 + len(values) - len(groups))
            self._trees.append(
                partial_results.partial_results(
                    self._strategy.aggregation, [*groups, *scalars], self._first, self._count
                )
            )

    def note(self, name: str, value: Any) -> None:
        """Keep a scalar of this micro-batch for `noted`."""
        self.notes[name] = tf.cast(value, tf.float32)

    def noted(self, name: str, value: Any) -> tf.Tensor:
        """Return the scalars of all micro-batches, ``[k]``; `value` is that of the last one."""
        return tf.concat([self._state["notes"][name], [tf.cast(value, tf.float32)]], axis=0)

    def combined(self, optimizer: Any, values: list) -> list[list]:
        """Return the partial results of all micro-batches: lists like `values`, as many everywhere.

        Args:
            optimizer: the inner optimizer.
            values: what `hand_over` would get in the last micro-batch.
        """
        devices = self._strategy.num_replicas_in_sync
        number = [each for each, _ in self._handed].index(optimizer)
        nodes = self._state["nodes"][number]
        own = self._trees[number].blocks(self._weighted(values), nodes, devices == 1)
        if devices > 1 and self._strategy.aggregation.is_tree_of_pairs:
            most = len(partial_results.first_of_blocks(devices, self._count)) // devices
            zeros = [with_values(value, tf.zeros_like(values_of(value))) for value in values]
            own += [zeros] * (most - len(own))
        return own

    def measures(self, values: list, combined: list) -> tf.Tensor:
        """Return `orthogonality.measures` of the gradients of all virtual replicas.

        The inner products of two devices are estimated by those within devices.

        Args:
            values: the gradients of the last micro-batch.
            combined: the combined gradients.
        """
        squares_V, *sums = partial_results.added(self._state["measured"], self._measured_of(values))
        context = tf.distribute.get_replica_context()
        own_2V = tf.stack([squares_V, _squares(sums) - squares_V])
        squares_V, others_V = tf.unstack(context.all_reduce("SUM", own_2V))
        replicas = context.num_replicas_in_sync * self._count
        others_V *= (replicas - 1) / (self._count - 1)
        return tf.stack([_squares(combined), squares_V, squares_V + others_V])

    def before_assignment(self, variable: Any) -> None:
        """Remember the value of a variable before the first micro-batch assigns it."""
        is_first = isinstance(self.number, int) and self.hands_over
        if not is_first or any(variable is each for each, *_ in self._variables):
            return
        if variable.trainable or variable.aggregation != "none":  # a metric counts micro-batches
            return
        is_averaged = tf.as_dtype(variable.dtype).is_floating and self._updates == 0
        with tensorflow_compat.in_graph_of_replica():
            before = tf.identity(keras_compat.tensorflow_variable(variable))
        self._variables.append((variable, before, is_averaged))

    # ---- the micro-batches ---------------------------------------------------------------------

    def run(self, function: Callable, results: Callable[[], list]) -> Any:
        """Call the function for each micro-batch, and return the result of the step."""
        state = self._state_after(0, self._call(function, 0, ()), None)
        optimizers = [each for each, _ in self._handed]

        def body(index: tf.Tensor, before: dict) -> tuple[tf.Tensor, dict]:
            self.number = self._first + index
            self._begin_micro_batch()
            result = self._call(function, index, before)
            if [each for each, _ in self._handed] != optimizers:
                raise ValueError(SEVERAL_UPDATES)
            return index + 1, self._state_after(index, result, before)

        if self._count > 2:
            _, state = tf.while_loop(
                lambda index, _: index < self._count - 1,
                body,
                (tf.constant(1), state),
                shape_invariants=(tf.TensorShape([]), tf.nest.map_structure(_shape, state)),
                parallel_iterations=1,
            )
        self._state = state
        self._updates, self.number, self.hands_over = 0, self._first + self._count - 1, False
        result = self._call(function, self._count - 1, self._state)
        totals = iter(partial_results.added(self._state["sums"], self._summands(result)))
        for variable, _, is_averaged in self._variables:
            if is_averaged:
                variable.assign(tf.cast(next(totals) / self._count, variable.dtype))
        of_metrics = [_float64(each) for each in results()]
        return tf.nest.map_structure(
            lambda each: self._mean(each, next(totals), of_metrics) if _is_float(each) else each,
            result,
        )

    def _state_after(self, index: Any, result: Any, before: dict | None) -> dict:
        """Return what is kept after a micro-batch, and reset variables for the next micro-batch."""
        nodes = before["nodes"] if before else [None] * len(self._trees)
        state: dict[str, Any] = {
            "nodes": [
                tree.placed(self._weighted(values), self.number, own)
                for tree, (_, values), own in zip(self._trees, self._handed, nodes, strict=True)
            ],
            "notes": {},
            "sums": self._summands(result),
            "measured": self._measured_of(self._handed[0][1] if self._handed else []),
        }
        for name, note in self.notes.items():
            notes = before["notes"][name] if before else tf.zeros([self._count - 1])
            state["notes"][name] = tf.tensor_scatter_nd_update(notes, [[index]], [note])
        if before:
            for name in ("sums", "measured"):
                state[name] = partial_results.added(before[name], state[name])
        with tf.control_dependencies(tf.nest.flatten(state, expand_composites=True)):
            for variable, value, _ in self._variables:
                variable.assign(tf.identity(value))
        return state

    def _summands(self, result: Any) -> list[tf.Tensor]:
        """Return what is summed over the micro-batches: variables, and results times rows."""
        averaged = [variable for variable, _, is_averaged in self._variables if is_averaged]
        results = [_float64(each) for each in tf.nest.flatten(result) if _is_float(each)]
        rows = _float64(self.rows_now)
        times_rows = [tf.math.multiply_no_nan(each, rows) for each in results]
        return [*map(_float64, averaged), *times_rows]

    def _measured_of(self, values: list) -> list:
        """Return what is measured of a micro-batch: each ``‖g‖²``, and the gradients."""
        gradients = values[: self._measured]
        return [_squares(gradients), *gradients] if gradients else []

    def _weighted(self, values: list) -> list:
        """Return gradients, weighted by the rows of the micro-batch if the rule is the mean."""
        if not self._strategy.aggregation.is_mean:
            return list(values)
        factor = tf.math.divide_no_nan(_float64(self.rows_now), _float64(self.rows))
        return row_weights.times(values, factor, self._strategy.extended.worker_devices[0])

    def _mean(self, value: Any, total: tf.Tensor, of_metrics: list) -> tf.Tensor:
        """Return the mean of a result over the rows of all micro-batches.

        A result that equals the result of a metric stays, because the metric covers all rows.
        """
        own, rows = _float64(value), _float64(self.rows)
        same = [tf.reduce_all(each == own) for each in of_metrics if each.shape == own.shape]
        stays = tf.reduce_any(tf.stack([tf.equal(rows, 0), *same]))
        return tf.cast(tf.where(stays, own, total / rows), value.dtype)


def _is_float(value: Any) -> bool:
    is_array = isinstance(value, (tf.Tensor, *keras_compat.VARIABLE_TYPES))
    is_known = is_array and tf.TensorShape(value.shape).is_fully_defined()
    return is_known and tf.as_dtype(value.dtype).is_floating


def _float64(value: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(value), tf.float64)


def _squares(gradients: list) -> tf.Tensor:
    rows = [coalesced(g)[1] if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return tf.stack([tf.cast(tf.reduce_sum(tf.square(each)), tf.float64) for each in rows])


def _shape(value: Any) -> tf.TensorShape:
    """Return the shape of a gradient in a loop; a sparse gradient may have any number of rows."""
    is_sparse = isinstance(value, tf.IndexedSlices)
    return tf.TensorShape([None, *value.values.shape[1:]]) if is_sparse else value.shape
