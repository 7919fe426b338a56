"""Reductions: what stays between the reductions of some variables' gradients.

Each optimizer has one `Reductions`: the groups its variables form, the variables that hold the
rule's state, and, where a callback asked, the one with the orthogonality. The aggregation itself is
pure: for every reduction it is lent a `Memory` of tensors.

Shape legend: V variables, P groups, R replicas.
"""

import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.aggregation import Memory
from tf_adasum.aggregation.rules import granularity


class RuleState(keras.layers.Layer):
    """A rule's state, as a Keras layer: what a layer holds is saved with the optimizer it is in.

    Args:
        arrays: dict from names to NumPy arrays: the initial state.
    """

    def __init__(self, arrays):
        super().__init__(name="rule_state", dtype="float64")
        self._names = tuple(arrays)
        for name, array in arrays.items():
            variable = self.add_weight(
                name=name,
                shape=array.shape,
                dtype=array.dtype.name,
                initializer=lambda shape, dtype, array=array: tf.constant(array, dtype),
                trainable=False,
                autocast=False,
            )
            setattr(self, f"state_{name}", variable)  # tf.train.Checkpoint finds attributes
        self.built = True

    @property
    def of_name(self):
        """dict from names to Keras variables."""
        return {name: getattr(self, f"state_{name}") for name in self._names}

    def variables_of(self, local):
        """Returns dict from names to the `tf.Variable` on a local replica."""
        strategy = tf.distribute.get_strategy()
        return {
            name: strategy.experimental_local_results(variable.value)[local]
            for name, variable in self.of_name.items()
        }

    def load_own_variables(self, store):
        """Takes a saved state, unless it is one of other groups or another number of replicas."""
        saved = {name: tuple(store[name].shape) for name in store.keys()}
        own = {str(i): tuple(v.shape) for i, v in enumerate(self.of_name.values())}
        if saved == own:
            super().load_own_variables(store)
        else:
            warnings.warn(
                "The aggregation rule's state starts anew: the file holds "
                + (f"one of the shapes {list(saved.values())}" if saved else "none")
                + f", and this model needs {list(own.values())} (groups of variables, replicas).",
                stacklevel=2,
            )


class Reductions:
    """The reductions of the gradients of some variables.

    Args:
        scheme: the strategy's `aggregation.Scheme`.
        paths: the variables' paths, in the order in which gradients are numbered.

    Raises:
        ValueError: if the rule's granularity does not fit the paths.
    """

    def __init__(self, scheme, paths):
        self.paths = list(paths)
        self._scheme = scheme
        self._groups = granularity.groups(scheme.rule.granularity, self.paths)
        count = max(self._groups, default=-1) + 1
        arrays = scheme.whole_rule.initial_state(count, scheme.replicas)
        self.rule_state = RuleState(arrays) if arrays else None
        self._orthogonality = None
        self.version = 0  # of what a traced function contains

    def measure_orthogonality(self):
        """Makes a variable for the orthogonality; functions traced from now on fill it."""
        if self._orthogonality is None:
            self.version += 1
            self._orthogonality = tf.Variable(
                np.full([len(self.paths) + 1], np.nan), trainable=False, dtype=tf.float64
            )

    def stop_measuring_orthogonality(self):
        """Forgets the variable; functions traced from now on compute nothing for it."""
        self.version += 1
        self._orthogonality = None

    def groups_of(self, indices):
        """Returns the groups of some of the variables, as a list of ints."""
        return self._groups[list(indices)].tolist()

    @property
    def measures_orthogonality(self):
        """Whether functions traced now measure it."""
        return self._orthogonality is not None

    @property
    def orthogonality(self):
        """Tensor ``[V + 1]``: that of each variable in the last reduction, and of all of them.

        NaN before the first, and for gradients that are all zero. None unless it is measured.
        """
        if self._orthogonality is None:
            return None
        return tf.convert_to_tensor(self._on(0, self._orthogonality))

    def memory(self, indices, local):
        """Returns the `Memory` for one reduction, on a local replica.

        Args:
            indices: which of the variables the gradients belong to.
            local: number of the local replica; called in cross-replica context.
        """
        variables = self.rule_state.variables_of(local) if self.rule_state else {}
        return Memory(
            self._groups[list(indices)],
            {name: tf.convert_to_tensor(variable) for name, variable in variables.items()},
            measures_orthogonality=self.measures_orthogonality,
            averaged=self._scheme.averaged,
        )

    def keep(self, memory, indices, local):
        """Keeps what a reduction has left in its memory; arguments as in `memory`."""
        if self.rule_state:
            for name, variable in self.rule_state.variables_of(local).items():
                variable.assign(memory.state[name])
        if memory.measures_orthogonality:
            *of_variables, of_all = tf.unstack(memory.orthogonality())
            by_index = dict(zip(indices, of_variables, strict=True))
            unused = tf.constant(np.nan, tf.float64)
            values = [by_index.get(index, unused) for index in range(len(self.paths))]
            self._on(local, self._orthogonality).assign(tf.stack([*values, of_all]))

    def _on(self, local, variable):
        return tf.distribute.get_strategy().experimental_local_results(variable)[local]
