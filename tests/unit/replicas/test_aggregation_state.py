"""What outlives a reduction: groups, the rule's saved state, the measured orthogonality."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum import rules

PATHS = ["a/kernel", "a/bias", "b/kernel"]


def strategy_of(rule):
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)


def state_of(rule, paths=PATHS):
    return strategy_of(rule).aggregation_state(paths)


@pytest.mark.parametrize(
    ("granularity", "groups"),
    [
        ("variable", [0, 1, 2]),
        ("model", [0, 0, 0]),
        ({"a/.*": "first", "b/.*": "second"}, [0, 0, 1]),
    ],
)
def test_groups_follow_the_granularity(granularity, groups):
    state = state_of(rules.Adasum(granularity))
    assert state.groups_of([0, 1, 2]) == groups
    assert state.groups_of([2, 0]) == [groups[2], groups[0]]


def test_rules_without_state_have_no_variables():
    state = state_of("adasum")
    assert state.rule_state is None and not state.measures_orthogonality
    assert state.application([0], 0).state == {}


def test_a_rule_with_state_has_a_variable_for_each_part_of_it():
    state = state_of(rules.AdaCons(granularity="variable"))
    shapes = {name: tuple(v.shape) for name, v in state.rule_state.of_name.items()}
    assert shapes and all(shape[0] == len(PATHS) for shape in shapes.values())
    assert state.application([1], 0).state.keys() == shapes.keys()


def test_further_variables_get_the_next_numbers():
    state = state_of(rules.Adasum({".*kernel": "kernels"}), PATHS[:1])
    state.extend([])
    state.extend(iter(PATHS[1:]))
    assert state.paths == PATHS and state.groups_of([0, 1, 2]) == [0, 1, 0]


def test_further_variables_are_refused_where_the_rule_has_a_state():
    state = state_of(rules.AdaCons())
    state.extend([])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"rule belongs to .* Received: c/kernel"):
            state.extend(["c/kernel"])
    assert state.paths == PATHS


class OfOrthogonality:
    """Stands for what a reduction leaves: the values of its variables, then that of all."""

    measures_orthogonality = True

    def __init__(self, values):
        self.state, self.values = {}, values

    def orthogonality(self):
        return tf.constant(self.values, tf.float64)


def test_the_orthogonality_of_the_last_reduction():
    strategy = strategy_of("adasum")
    state = strategy.aggregation_state(PATHS)
    assert state.orthogonality is None and state.version == 0
    with strategy.scope():
        state.measure_orthogonality()
    assert state.measures_orthogonality and state.version == 1
    np.testing.assert_array_equal(state.orthogonality, [np.nan] * 4)
    with strategy.scope():
        state.keep(OfOrthogonality([0.75, 0.25, 0.5]), [2, 0], 0)
    np.testing.assert_array_equal(state.orthogonality, [0.25, np.nan, 0.75, 0.5])
    with strategy.scope():
        state.measure_orthogonality()
        assert state.version == 1, "it is measured already"
        state.extend(["c/kernel"])
    np.testing.assert_array_equal(state.orthogonality, [np.nan] * 5)
    assert state.version > 1, "what was traced before fills another variable"
    state.stop_measuring_orthogonality()
    assert state.orthogonality is None and not state.application([0], 0).measures_orthogonality


# ---- saved states ------------------------------------------------------------------------------


def filled(rule, start=1):
    """A state whose numbers are all different ones."""
    state = state_of(rule).rule_state
    for number, variable in enumerate(state.of_name.values()):
        count = int(np.prod(variable.shape))
        values = start + 10 * number + np.arange(count)
        variable.assign(values.reshape(variable.shape).astype(variable.numpy().dtype))
    return state


def numbers_of(state):
    return {name: variable.numpy() for name, variable in state.of_name.items()}


def layer_store(state):
    store = {}
    state.save_own_variables(store)
    return {name: np.asarray(value) for name, value in store.items()}


ADACONS = rules.AdaCons(granularity="variable", rescale=True)


def test_a_saved_layer_comes_back():
    saved, loaded = filled(ADACONS), state_of(ADACONS).rule_state
    loaded.load_own_variables(layer_store(saved))
    for name, value in numbers_of(saved).items():
        np.testing.assert_array_equal(numbers_of(loaded)[name], value, name)


def test_a_checkpoint_holds_it_as_json():
    saved, loaded = filled(ADACONS), state_of(ADACONS).rule_state
    text = saved.saved.serialize()
    assert json.loads(text).keys() == saved.of_name.keys()
    loaded.saved.deserialize(text)
    for name, value in numbers_of(saved).items():
        np.testing.assert_array_equal(numbers_of(loaded)[name], value, name)


def test_a_checkpoint_finds_it(tmp_path):
    saved, loaded = filled(ADACONS), state_of(ADACONS).rule_state
    path = tf.train.Checkpoint(state=saved).write(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path)]
    assert any("saved" in name for name in names)
    tf.train.Checkpoint(state=loaded).read(path).expect_partial()
    for name, value in numbers_of(saved).items():
        np.testing.assert_array_equal(numbers_of(loaded)[name], value, name)


@pytest.mark.parametrize("way", ["layer", "checkpoint", "empty layer"])
def test_a_state_of_other_groups_is_left_out_with_a_warning(way):
    loaded = filled(rules.AdaCons(granularity="model"))
    before = numbers_of(loaded)
    with pytest.warns(UserWarning, match=r"is reset, because the file has .*this model needs"):
        if way == "checkpoint":
            loaded.saved.deserialize(filled(ADACONS).saved.serialize())
        else:
            loaded.load_own_variables(layer_store(filled(ADACONS)) if way == "layer" else {})
    for name, value in before.items():
        np.testing.assert_array_equal(numbers_of(loaded)[name], value, name)


def test_it_is_a_layer_whatever_the_dtype_policy():
    assert isinstance(state_of(ADACONS).rule_state, keras.layers.Layer)
