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

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation import partial_results, row_weights
from tf_adasum.aggregation.rules import AggregationRule
from tf_adasum.arguments import check_count
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.replicas.empty_replicas import rows_of

SEVERAL_UPDATES = (
    "With virtual replicas, a training step can update the weights only once, because the "
    "gradients of all micro-batches have to exist before the update. Use one optimizer, such as "
    "`keras.optimizers.MultiOptimizer`, or train without `virtual_replicas`. "
)
NO_STEP = (
    "An optimizer takes a step outside of virtual replicas. In a custom training loop, pass the "
    "step through `strategy.in_virtual_replicas`:\n\n"
    "    strategy.run(strategy.in_virtual_replicas(train_step), args=(x, y))\n\n"
)
NEEDS_OTHERS = (
    "The step reads a value of other replicas, as a synchronized BatchNormalization does. Virtual "
    "replicas of a device run one after the other, so they cannot exchange values within a step. "
    "Remove the exchange, or train without `virtual_replicas`. "
)


class VirtualReplicas:
    """The virtual replicas of a strategy.

    Args:
        strategy: the strategy.
        count: V, the number of virtual replicas; a multiple of the number of devices.

    Attributes:
        count: V.
        per_device: k, the number of virtual replicas of each device.
    """

    def __init__(self, strategy: Any, count: int):
        self.count, self.per_device = count, count // strategy.num_replicas_in_sync
        self._strategy = strategy
        self._steps: dict[int | None, Step] = {}  # by the ids of replicas, while steps are traced

    @property
    def step(self) -> Step | None:
        """The `Step` that this device runs, or None."""
        return self._steps.get(tensorflow_compat.replica())

    def each(self, function: Callable, results: Callable[[], list] = lambda: []) -> Callable:
        """Return a function that calls `function` once for each virtual replica of this device.

        Args:
            function: the function of a replica.
            results: function that returns the results of the model's metrics, which are logged as
                they are after the last micro-batch. Defaults to no results.
        """
        if self.per_device == 1:
            return function

        @tf.autograph.experimental.do_not_convert
        def in_micro_batches(*arguments: Any) -> Any:
            own = tensorflow_compat.replica()
            self._steps[own] = Step(self._strategy, arguments)
            try:
                return self._steps[own].run(function, results)
            except RuntimeError as error:
                if "merge_call" in str(error):
                    raise RuntimeError(NEEDS_OTHERS + see("TFA-316")) from error
                raise
            finally:
                del self._steps[own]
                self._strategy.empty_replicas.after_step()

        return in_micro_batches

    def check_exchange(self) -> None:
        """Raise a RuntimeError if a step reads values of other replicas before its update."""
        if any(not step.is_within_update for step in self._steps.values()):
            raise RuntimeError(NEEDS_OTHERS + see("TFA-316"))

    def check_reduction(self) -> None:
        """Raise a ValueError if a custom loop reduces gradients, and devices have several parts."""
        if self.per_device > 1:
            raise ValueError(
                "With virtual replicas, a Keras optimizer has to combine the gradients. Pass the "
                f"step to `strategy.in_virtual_replicas`, or use as many devices. {see('TFA-316')}"
            )

    def check_step(self) -> None:
        """Raise a RuntimeError if an optimizer takes a step outside of `each`."""
        if self.per_device > 1 and self.step is None:
            raise RuntimeError(NO_STEP + see("TFA-316"))


class Step:
    """A step of a device with k micro-batches.

    Args:
        strategy: the strategy.
        arguments: structure of the device's rows.

    Attributes:
        number: the number of the current virtual replica, int or int32 scalar tensor.
        hands_over: whether optimizers hand over their gradients and assign nothing, because
            another micro-batch follows.
    """

    def __init__(self, strategy: Any, arguments: Any):
        self._strategy, self._arguments = strategy, arguments
        self._count = strategy.virtual_replicas.per_device
        self._first = tensorflow_compat.replica() * self._count
        self._total = strategy.empty_replicas.total_rows()
        self._divide_rows()
        self.number: Any = self._first
        self.hands_over, self.is_within_update = True, False
        self._updates = 0  # in the current micro-batch
        self._handed: list[tuple[Any, list]] = []  # of the current micro-batch
        self._groups: list[list[int]] = []  # for each optimizer, the groups of its values
        self._notes: dict[str, tf.Tensor] = {}  # of the current micro-batch
        self._variables: list[tuple] = []  # see `before_assignment`

    # ---- rows ----------------------------------------------------------------------------------

    def _divide_rows(self) -> None:
        """Set the bounds of the micro-batches, ``[k + 1]``.

        The rows are divided as V real replicas would divide them: virtual replica v gets the rows
        from ceil(v R / V) of the R rows of all devices.
        """
        rows = rows_of(self._arguments)
        if rows is None:
            raise ValueError(
                "Virtual replicas divide the rows of a device, but the arguments of the step have "
                f"no rows. Pass the batch to the step. {see('TFA-316')}"
            )
        count, self._rows = self._count, rows
        is_known = isinstance(rows, int) and rows % count == 0 and isinstance(self._total, int)
        self._rows_of_each = rows // count if is_known else None
        numbers = tf.range(count + 1, dtype=tf.int64)
        own, total = tf.cast(rows, tf.int64), tf.cast(self._total, tf.int64)
        of_all = -(-(self._first + numbers) * total // self._strategy.num_virtual_replicas)
        of_all -= of_all[0]
        # A dataset of a function may give each device another number of rows.
        self._bounds = tf.where(tf.equal(of_all[-1], own), of_all, -(-numbers * own // count))

    def _part(self, index: Any, state: Any = ()) -> Any:
        """Return the arguments with the rows of a micro-batch, and note the number of rows.

        Args:
            index: the number of the micro-batch.
            state: structure of tensors that have to exist first, so that the activations of only
                one micro-batch are in memory.
        """
        with tf.control_dependencies(tf.nest.flatten(state, expand_composites=True)):
            bounds = tf.identity(self._bounds)
        start, stop = bounds[index], bounds[index + 1]
        self._rows_now = stop - start if self._rows_of_each is None else self._rows_of_each
        self._strategy.empty_replicas.within_step(self._rows, self._rows_now, self._total)

        def part(value: Any) -> Any:
            if not isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
                return value
            if isinstance(value, tf.SparseTensor):
                shape = tf.cast(value.dense_shape, tf.int64)
                begin = tf.concat([[start], tf.zeros_like(shape[1:])], axis=0)
                return tf.sparse.slice(value, begin, tf.concat([[stop - start], shape[1:]], axis=0))
            if value.shape.rank == 0:
                return value
            own = value[start:stop]
            if isinstance(own, tf.Tensor):
                own = tf.ensure_shape(own, [self._rows_of_each, *value.shape[1:]])
            return own

        return tf.nest.map_structure(part, self._arguments)

    # ---- what hooks call -----------------------------------------------------------------------

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Return a context manager for the step of an optimizer, also of one within another."""
        if self.is_within_update:
            yield
            return
        self._updates += 1
        if self._updates > 1:
            raise ValueError(SEVERAL_UPDATES + see("TFA-316"))
        self.is_within_update = True
        try:
            yield
        finally:
            self.is_within_update = False

    def hand_over(self, optimizer: Any, values: list, groups: list[int]) -> None:
        """Receive the gradients of a micro-batch from an optimizer.

        Args:
            optimizer: the inner optimizer.
            values: its gradients, and the scalars that are combined with them.
            groups: for each value, the number of its group of variables.
        """
        self._handed.append((optimizer, values))
        if len(self._groups) < len(self._handed):
            self._groups.append(groups)

    def note(self, name: str, value: Any) -> None:
        """Keep a scalar of this micro-batch for `noted`."""
        self._notes[name] = tf.cast(value, tf.float32)

    def noted(self, name: str, value: Any) -> tf.Tensor:
        """Return the scalars of all micro-batches, ``[k]``; `value` is that of the last one."""
        return tf.concat([self._state["notes"][name], [tf.cast(value, tf.float32)]], axis=0)

    def combined(self, optimizer: Any, values: list) -> list[list]:
        """Return the partial results of all micro-batches: lists like `values`, as many everywhere.

        Args:
            optimizer: the inner optimizer.
            values: what `hand_over` would get in the last micro-batch.
        """
        number = [each for each, _ in self._handed].index(optimizer)
        nodes = self._state["nodes"][number]
        devices = self._strategy.num_replicas_in_sync
        own = self._partial_results(number).blocks(self._weighted(values), nodes, devices == 1)
        if devices > 1 and self._strategy.aggregation.is_tree_of_pairs:
            most = len(partial_results.blocks_of_devices(devices, self._count)) // devices
            own += [_zeros_like(values)] * (most - len(own))
        return own

    def before_assignment(self, variable: Any) -> None:
        """Remember the value of a variable before the first micro-batch assigns it."""
        if not isinstance(self.number, int) or not self.hands_over or variable.trainable:
            return
        is_known = any(variable is each for each, *_ in self._variables)
        if is_known or variable.aggregation != "none":  # a metric counts each micro-batch
            return
        is_averaged = tf.as_dtype(variable.dtype).is_floating and self._updates == 0
        with tensorflow_compat.in_graph_of_replica():
            before = tf.identity(keras_compat.tensorflow_variable(variable))
        self._variables.append((variable, before, is_averaged))

    # ---- the micro-batches ---------------------------------------------------------------------

    def run(self, function: Callable, results: Callable[[], list]) -> Any:
        """Call the function for each micro-batch, and return the result of the step."""
        result = function(*self._part(0))
        state = self._state_after(0, result, None)
        if self._count > 2:
            flat = tf.nest.flatten(state, expand_composites=True)

            def body(index: tf.Tensor, *flat: tf.Tensor) -> list:
                before = tf.nest.pack_sequence_as(state, flat, expand_composites=True)
                self.number = self._first + index
                handed = [each for each, _ in self._handed]
                self._updates, self._handed, self._notes = 0, [], {}
                result = function(*self._part(index, before))
                if [each for each, _ in self._handed] != handed:
                    raise ValueError(SEVERAL_UPDATES + see("TFA-316"))
                after = self._state_after(index, result, before)
                return [index + 1, *tf.nest.flatten(after, expand_composites=True)]

            _, *flat = tf.while_loop(
                lambda index, *_: index < self._count - 1,
                body,
                [tf.constant(1), *flat],
                shape_invariants=[tf.TensorShape([]), *_shapes(state)],
                parallel_iterations=1,
            )
            state = tf.nest.pack_sequence_as(state, flat, expand_composites=True)
        self._state, self._updates = state, 0
        self.number, self.hands_over = self._first + self._count - 1, False
        result = function(*self._part(self._count - 1, state))
        for (variable, _, is_averaged), (total, count) in zip(
            self._variables, state["variables"], strict=True
        ):
            if is_averaged:
                total, count = _added((total, count), variable)
                own = tf.where(count > 0, total / count, _float64(variable))
                variable.assign(tf.cast(own, variable.dtype))
        return self._averaged(result, state["results"], results)

    def _state_after(self, index: Any, result: Any, before: dict | None) -> dict:
        """Return what is kept after a micro-batch, and reset variables for the next micro-batch."""
        if before is None:
            nodes = [
                [_zeros_like(values) for _ in self._partial_results(number).slots]
                for number, (_, values) in enumerate(self._handed)
            ]
            notes = {name: tf.zeros([self._count - 1]) for name in self._notes}
            variables = [
                tuple(tf.zeros(variable.shape, tf.float64) for _ in range(2))
                for variable, *_ in self._variables
            ]
            results = [tf.zeros(each.shape, tf.float64) for each in _floats(result)]
            before = {"nodes": nodes, "notes": notes, "variables": variables, "results": results}
        after = {}
        after["nodes"] = [
            self._partial_results(number).placed(self._weighted(values), self.number, nodes)
            for number, ((_, values), nodes) in enumerate(
                zip(self._handed, before["nodes"], strict=True)
            )
        ]
        after["notes"] = {
            name: tf.tensor_scatter_nd_update(notes, [[index]], [self._notes[name]])
            for name, notes in before["notes"].items()
        }
        after["variables"] = [
            _added(sums, variable) if is_averaged else sums
            for (variable, _, is_averaged), sums in zip(
                self._variables, before["variables"], strict=True
            )
        ]
        rows = tf.cast(self._rows_now, tf.float64)
        after["results"] = [
            total + tf.math.multiply_no_nan(_float64(own), rows)
            for total, own in zip(before["results"], _floats(result), strict=True)
        ]
        with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)):
            for variable, value, _ in self._variables:
                variable.assign(tf.identity(value))
        return after

    def _partial_results(self, number: int) -> Any:
        rule, groups = self._strategy.aggregation, self._groups[number]
        return partial_results.partial_results(rule, groups, self._first, self._count)

    def _weighted(self, values: list) -> list:
        """Return gradients, weighted by the rows of the micro-batch if the rule is the mean."""
        if not self._strategy.aggregation.is_mean:
            return list(values)
        rows, own = tf.cast(self._rows_now, tf.float64), tf.cast(self._rows, tf.float64)
        factor = tf.math.divide_no_nan(rows, own)
        return row_weights.times(values, factor, self._strategy.extended.worker_devices[0])

    def _averaged(self, result: Any, sums: list, results: Callable[[], list]) -> Any:
        """Return the result of the step: means over the rows of all micro-batches.

        A result that equals the result of a metric stays, because the metric covers all rows.
        """
        rows, own = tf.cast(self._rows_now, tf.float64), tf.cast(self._rows, tf.float64)
        of_metrics = [tf.convert_to_tensor(each) for each in results()]
        sums = iter(sums)

        def averaged(value: Any) -> Any:
            if not _is_float(value):
                return value
            value = tf.convert_to_tensor(value)
            total = next(sums) + tf.math.multiply_no_nan(_float64(value), rows)
            stays = tf.equal(own, 0)
            for each in of_metrics:
                if each.shape == value.shape:
                    stays |= tf.reduce_all(tf.equal(tf.cast(each, value.dtype), value))
            return tf.where(stays, value, tf.cast(total / own, value.dtype))

        return tf.nest.map_structure(averaged, result)


def _is_float(value: Any) -> bool:
    if not isinstance(value, (tf.Tensor, *keras_compat.VARIABLE_TYPES)):
        return False
    shape = tf.TensorShape(value.shape)
    return tf.as_dtype(value.dtype).is_floating and shape.is_fully_defined()


def _floats(result: Any) -> list:
    return [value for value in tf.nest.flatten(result) if _is_float(value)]


def _float64(value: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(value), tf.float64)


def _added(sums: tuple, variable: Any) -> tuple:
    """Add the finite elements of a variable to their sums and counts."""
    value = _float64(variable)
    is_finite = tf.math.is_finite(value)
    return sums[0] + tf.where(is_finite, value, 0), sums[1] + tf.cast(is_finite, tf.float64)


def _zeros_like(values: list) -> list:
    """Return zeros of the shapes of gradients; sparse ones have no rows."""

    def zeros(value: Any) -> Any:
        if not isinstance(value, tf.IndexedSlices):
            return tf.zeros_like(value)
        no_rows = tf.zeros([0, *value.values.shape[1:]], value.values.dtype)
        return tf.IndexedSlices(no_rows, tf.zeros([0], value.indices.dtype), value.dense_shape)

    return [zeros(value) for value in values]


def _shapes(state: dict) -> list[tf.TensorShape]:
    """Return the shapes of a state's tensors; sparse gradients may have any number of rows."""
    shapes: list[tf.TensorShape] = []
    for value in tf.nest.flatten(state):
        if isinstance(value, tf.IndexedSlices):
            parts = tf.nest.flatten(value, expand_composites=True)
            rows = [tf.TensorShape([None, *each.shape[1:]]) for each in parts[:2]]
            shapes += [*rows, *(each.shape for each in parts[2:])]
        else:
            shapes.append(value.shape)
    return shapes


def validated_count(
    count: int | None, devices: int, rule: AggregationRule, local_reduction: str | None
) -> int:
    """Return the number of virtual replicas for a strategy's argument `virtual_replicas`.

    Args:
        count: the argument.
        devices: the number of devices of all workers.
        rule: the strategy's rule.
        local_reduction: the strategy's argument.

    Raises:
        ValueError: if the number is no multiple of the devices, or the rule or the reduction needs
            real replicas.
    """
    if count is None:
        return devices
    check_count("virtual_replicas", count, "must be an int, a multiple of the number of devices")
    if count % devices:
        below, above = count // devices * devices, -(-count // devices) * devices
        numbers = [each for each in range(1, count + 1) if count % each == 0]
        fewer = max(each for each in numbers if each < devices)
        more = min((each for each in numbers if each > devices), default=None)
        raise ValueError(
            "Each device needs as many virtual replicas. Use virtual_replicas="
            f"{above}{f' or {below}' * (below > 0)}, or train on {fewer}"
            f"{f' or {more}' if more else ''} devices. "
            f"Received: virtual_replicas={count}, {devices} devices {see('TFA-316')}"
        )
    if count > devices:
        partial_results.check_rule(rule)
        if local_reduction is not None:
            raise ValueError(
                "virtual_replicas and local_reduction exclude each other: the replicas of a host "
                "would be averaged before the rule combines them. "
                f"Received: virtual_replicas={count}, local_reduction={local_reduction!r}"
            )
        if keras_compat.IS_KERAS_2:
            raise ValueError(f"`virtual_replicas` needs Keras 3. Received: {count}")
    return count
