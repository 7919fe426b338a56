"""State that outlives a reduction: groups, the rule's saved state, the measured orthogonality."""

import json
import types

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
    return strategy_of(rule)._aggregation_state(paths)


def test_rules_without_state_have_no_variables():
    state = state_of("adasum")
    assert state.rule_state is None and state.application([0], 0).state == {}


def test_a_rule_with_state_has_a_variable_for_each_part_of_it():
    state = state_of(rules.AdaCons(granularity="variable"))
    shapes = {name: tuple(v.shape) for name, v in state.rule_state.of_name.items()}
    assert shapes == {"momentum": (3, 1), "steps": (3,)}
    assert state.application([1], 0).state.keys() == shapes.keys()
    assert isinstance(state.rule_state, keras.layers.Layer)


def test_further_variables_get_the_next_numbers():
    state = state_of(rules.Adasum({".*kernel": "kernels"}), PATHS[:1])
    state.extend([])
    state.extend(iter(PATHS[1:]))
    assert state.paths == PATHS
    assert state.groups_of([0, 1, 2]) == [0, 1, 0] and state.groups_of([1, 0]) == [1, 0]


def test_further_variables_are_refused_if_the_rule_has_a_state():
    state = state_of(rules.AdaCons())
    state.extend([])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"rule belongs to .* Received: c/kernel"):
            state.extend(["c/kernel"])
    assert state.paths == PATHS


def test_the_orthogonality_of_the_last_reduction():
    strategy = strategy_of("adasum")
    state = strategy._aggregation_state(PATHS)
    application = types.SimpleNamespace(
        measures_orthogonality=True,
        state={},
        measures=lambda: tf.constant([[3.0, 1.0], [4.0, 4.0], [5.0, 6.0]], tf.float64),
    )
    assert state.orthogonality is None
    assert not state.measures_orthogonality
    with strategy.scope():
        state.measure_orthogonality()
    assert state.measures_orthogonality
    np.testing.assert_array_equal(state.orthogonality, [np.nan] * 4)
    with strategy.scope():
        state.keep(application, [2, 0], 0)
    np.testing.assert_array_equal(state.orthogonality, [0.25, np.nan, 0.75, 0.5])
    np.testing.assert_array_equal(state.gram_terms, [[4, 0, 4], [2, 0, 1]])
    with strategy.scope():
        state.measure_orthogonality()
    np.testing.assert_array_equal(state.gram_terms, [[4, 0, 4], [2, 0, 1]])  # measured already
    with strategy.scope():
        state.extend(["c/kernel"])
    np.testing.assert_array_equal(state.orthogonality, [np.nan] * 5)
    state.stop_measuring_orthogonality()
    assert state.orthogonality is None and not state.application([0], 0).measures_orthogonality


# ---- saved states ------------------------------------------------------------------------------

ADACONS = rules.AdaCons(granularity="variable", rescale=True)


def filled(rule):
    """A state whose numbers are all different."""
    state = state_of(rule).rule_state
    for number, variable in enumerate(state.of_name.values()):
        values = 1 + 10 * number + np.arange(int(np.prod(variable.shape)))
        variable.assign(values.reshape(variable.shape).astype(variable.numpy().dtype))
    return state


def assert_equal(state, expected):
    for name, variable in state.of_name.items():
        np.testing.assert_array_equal(variable, expected[name], name)


def restore_layer(saved, loaded, tmp_path):
    store = {}
    if saved:
        saved.save_own_variables(store)
    loaded.load_own_variables(store)


def restore_text(saved, loaded, tmp_path):
    text = saved.saved.serialize()
    assert json.loads(text).keys() == saved.of_name.keys()
    loaded.saved.deserialize(text)


def restore_checkpoint(saved, loaded, tmp_path):
    path = tf.train.Checkpoint(state=saved).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(state=loaded).read(path).expect_partial()


@pytest.mark.parametrize("restore", [restore_layer, restore_text, restore_checkpoint])
def test_a_saved_state_is_restored(restore, tmp_path):
    saved, loaded = filled(ADACONS), state_of(ADACONS).rule_state
    restore(saved, loaded, tmp_path)
    assert_equal(loaded, saved.of_name)


@pytest.mark.parametrize(
    ("restore", "is_empty"),
    [(restore_layer, False), (restore_layer, True), (restore_text, False)],
)
def test_a_state_of_other_groups_is_left_out_with_a_warning(restore, is_empty, tmp_path):
    loaded = filled(rules.AdaCons(granularity="model"))
    before = {name: variable.numpy() for name, variable in loaded.of_name.items()}
    with pytest.warns(UserWarning, match=r"is reset, because the file has .*this model needs"):
        restore(None if is_empty else filled(ADACONS), loaded, tmp_path)
    assert_equal(loaded, before)
