"""Keeps the state of the aggregation from one step to the next.

The state consists of the groups of variables, the state of the rule, and the orthogonality. Each
optimizer has one `AggregationState`. Each result of `strategy.gradient_reduction_of` also has one.
The aggregation itself is a pure function. For each reduction, it receives a `RuleApplication`,
which holds the state as tensors.

Shape legend: V is the number of variables.
"""

import base64
import json
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.aggregation import RuleApplication, orthogonality
from tf_adasum.aggregation.rules import granularity
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see


class RuleState(keras.layers.Layer):
    """A rule's state as a Keras layer, so that it is saved with the optimizer that holds it.

    TensorFlow restores nothing from a `tf.train.Checkpoint` if one variable has another shape in
    the checkpoint. So a checkpoint holds a `SavedRuleState` instead of the variables.

    Args:
        arrays: the initial state, a dict from names to NumPy arrays.
    """

    def __init__(self, arrays):
        super().__init__(name="rule_state", dtype="float64")
        of_name = {
            name: self.add_weight(
                name=name,
                shape=array.shape,
                dtype=array.dtype.name,
                initializer=lambda shape, dtype, array=array: tf.constant(array, dtype),
                trainable=False,
                **keras_compat.WITHOUT_AUTOCAST,
            )
            for name, array in arrays.items()
        }
        self._of_name = lambda: of_name  # tf.train.Checkpoint would save variables in attributes
        self.saved = SavedRuleState(self)
        self.built = True

    @property
    def of_name(self):
        """The Keras variables, as a dict from names to variables."""
        return self._of_name()

    def variables_of(self, local):
        """Return the `tf.Variable`s on a local replica, as a dict from names to variables.

        Args:
            local: the number of the local replica, from 0.
        """
        return {
            name: _on(local, keras_compat.tensorflow_variable(variable))
            for name, variable in self.of_name.items()
        }

    def load_own_variables(self, store):
        """Load a saved state; only warn if its groups or its number of replicas differ."""
        saved = {name: tuple(store[name].shape) for name in store.keys()}
        own = {str(i): tuple(v.shape) for i, v in enumerate(self.of_name.values())}
        if saved == own:
            super().load_own_variables(store)
        else:
            _warn_of_other_shapes(saved.values(), own.values())


class SavedRuleState(tf.train.experimental.PythonState):
    """A `RuleState` as a `tf.train.Checkpoint` saves it: JSON, with the numbers' bytes in Base64.

    Args:
        rule_state: the `RuleState`.
    """

    def __init__(self, rule_state):
        super().__init__()
        self._rule_state = rule_state

    def serialize(self):
        """Return the state as a str."""
        arrays = {name: variable.numpy() for name, variable in self._rule_state.of_name.items()}
        return json.dumps(
            {
                name: [array.dtype.name, array.shape, base64.b64encode(array.tobytes()).decode()]
                for name, array in arrays.items()
            }
        )

    def deserialize(self, string_value):
        """Load a saved state; only warn if its groups or its number of replicas differ."""
        saved = json.loads(string_value)
        own = self._rule_state.of_name
        shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape, _) in saved.items()}
        if shapes != {name: (v.dtype, tuple(v.shape)) for name, v in own.items()}:
            saved_shapes = [shape for _, shape in shapes.values()]
            _warn_of_other_shapes(saved_shapes, [tuple(v.shape) for v in own.values()])
            return
        for name, (dtype, shape, data) in saved.items():
            own[name].assign(np.frombuffer(base64.b64decode(data), dtype).reshape(shape))


def _warn_of_other_shapes(saved, own):
    warnings.warn(
        "The state of the aggregation rule is reset, because the file has "
        + (f"a state of the shapes {list(saved)}" if saved else "no state")
        + f" and this model needs the shapes {list(own)}. The shapes depend on the groups of "
        f"variables and on the number of replicas. {see('TFA-604')}",
        stacklevel=3,
    )


class AggregationState:
    """The state that gradient reductions keep from step to step, for a list of variables.

    It holds the groups of the variables and the rule's state. If a callback measures the
    orthogonality, it also holds a variable with the orthogonality.

    Args:
        scheme: the strategy's `aggregation.Scheme`.
        paths: the paths of the variables, in the order in which gradients are numbered.
        others: the paths of variables that other optimizers of the model update.
        virtual_per_device: the number of virtual replicas of each device. If it is above 1, their
            `Step` measures the orthogonality. Defaults to 1.

    Attributes:
        functions: dict of the compiled functions with which eager code reduces the gradients. It is
            emptied when newly traced functions contain other operations.

    Raises:
        ValueError: if the rule's granularity does not fit the paths, or a group has variables of
            several optimizers.
    """

    def __init__(self, scheme, paths, others=(), virtual_per_device=1):
        self._scheme, self._others = scheme, list(others)
        self.virtual_per_device = virtual_per_device
        self._number(paths)
        count = max(self._groups, default=-1) + 1
        arrays = scheme.single_level_rule.initial_state(count, scheme.replicas)
        self.rule_state = RuleState(arrays) if arrays else None
        self._measures = None
        self.functions = {}

    def _number(self, paths):
        self.paths = list(paths)
        rule = self._scheme.rule
        groups = granularity.groups(rule.granularity, [*self.paths, *self._others])
        self._groups, of_others = np.split(groups, [len(self.paths)])
        both = np.intersect1d(self._groups, of_others)
        if both.size:
            own = self.paths[self._groups.tolist().index(both[0])]
            other = self._others[of_others.tolist().index(both[0])]
            raise ValueError(
                "The gradients of a group are combined together, so one optimizer has to update "
                "all variables of a group. Use granularity='variable', or a group for the "
                "variables of each optimizer. "
                f"Received: {rule!r}, and different optimizers for {own!r} and {other!r}"
            )

    def extend(self, paths):
        """Add variables, which get the next numbers.

        Args:
            paths: the paths of the new variables.

        Raises:
            ValueError: if the rule has a state, because the state belongs to the old variables.
        """
        paths = list(paths)
        if paths and self.rule_state:
            raise ValueError(
                "The state of the aggregation rule belongs to the variables of the optimizer's "
                "first step. Use another optimizer for new variables, or a rule without a state. "
                f"Received: {', '.join(paths)}"
            )
        self._number([*self.paths, *paths])
        if paths and self.measures_orthogonality:
            self.stop_measuring_orthogonality()
            self.measure_orthogonality()

    def measure_orthogonality(self):
        """Create a variable for the orthogonality; functions traced from now on assign it."""
        if self._measures is None:
            self.functions.clear()
            self._measures = tf.Variable(
                np.zeros([3, len(self.paths)]), trainable=False, dtype=tf.float64
            )

    def stop_measuring_orthogonality(self):
        """Remove the variable of the orthogonality, which functions traced later do not compute."""
        self.functions.clear()
        self._measures = None

    def groups_of(self, indices):
        """Return the group number of each given variable, as a list of ints."""
        return self._groups[list(indices)].tolist()

    @property
    def measures_orthogonality(self):
        """Whether functions traced now measure the orthogonality."""
        return self._measures is not None

    @property
    def orthogonality(self):
        """The orthogonality in the last reduction, as a tensor ``[V + 1]``; None if not measured.

        Each of the first V values belongs to one variable, the last value to all variables
        together. A value is NaN before the first reduction, and for gradients that are all zero.
        """
        if self._measures is None:
            return None
        return orthogonality.orthogonality(_on(0, self._measures))

    @property
    def num_combined(self):
        """The number of gradients, or of averages of hosts, that the rule combines in a step."""
        return self._scheme.num_combined * self.virtual_per_device

    @property
    def gram_terms(self):
        """The mean of ``‖g‖²``, and of the inner products of two replicas, as ``[2, V]``."""
        return orthogonality.gram_terms(_on(0, self._measures), self.num_combined)

    def application(self, indices, local):
        """Return the `RuleApplication` for one reduction, on a local replica.

        Args:
            indices: the numbers of the variables whose gradients are reduced.
            local: the number of the local replica, from 0. It is an argument because this method
                is called in cross-replica context.
        """
        variables = self.rule_state.variables_of(local) if self.rule_state else {}
        return RuleApplication(
            self._groups[list(indices)],
            {name: tf.convert_to_tensor(variable) for name, variable in variables.items()},
            measures_orthogonality=self.measures_orthogonality and self.virtual_per_device == 1,
            local_reduction_size=self._scheme.local_reduction_size,
        )

    def keep(self, application, indices, local):
        """Store the rule's state and the orthogonality after a reduction.

        Args:
            application: the `RuleApplication` that the reduction used.
            indices: as in `application`.
            local: as in `application`.
        """
        if self.rule_state:
            for name, variable in self.rule_state.variables_of(local).items():
                variable.assign(application.state[name])
        if application.measures_orthogonality:
            self.keep_measures(application.measures(), indices, local)

    def keep_measures(self, measures, indices, local=None):
        """Store what a reduction measured.

        Args:
            measures: `orthogonality.measures` of the given variables.
            indices: as in `application`.
            local: as in `application`. Defaults to the current replica.
        """
        by_index = dict(zip(indices, tf.unstack(measures, axis=1), strict=True))
        nothing = tf.zeros([3], tf.float64)
        columns = [by_index.get(index, nothing) for index in range(len(self.paths))]
        own = self._measures if local is None else _on(local, self._measures)
        own.assign(tf.stack(columns, axis=1))


def _on(local, variable):
    """Return the `tf.Variable` on a local replica."""
    return tf.distribute.get_strategy().experimental_local_results(variable)[local]
