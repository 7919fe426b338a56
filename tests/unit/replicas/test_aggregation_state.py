"""State that outlives a reduction: groups, the rule's saved state, the measured orthogonality."""

import numpy as np
import pytest

import tf_adasum
from tf_adasum import rules

PATHS = ["a/kernel", "a/bias", "b/kernel"]


def strategy_of(rule):
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)


def state_of(rule, paths=PATHS):
    return strategy_of(rule)._aggregation_state(paths)


def test_further_variables_get_the_next_numbers():
    state = state_of(rules.Adasum({".*kernel": "kernels"}), PATHS[:1])
    state.extend([])
    state.extend(iter(PATHS[1:]))
    assert state.paths == PATHS
    assert state.groups_of([0, 1, 2]) == [0, 1, 0] and state.groups_of([1, 0]) == [1, 0]


def test_functions_are_traced_anew_when_measuring_begins_or_ends():
    strategy = strategy_of("adasum")
    state, kept = strategy._aggregation_state(PATHS), []
    with strategy.scope():
        for change in (
            state.measure_orthogonality,
            state.measure_orthogonality,
            lambda: state.extend(["c/kernel"]),
            state.stop_measuring_orthogonality,
        ):
            state.functions["key"] = "a function"
            change()
            kept.append("key" in state.functions)
    assert kept == [False, True, False, False]


def test_further_variables_are_refused_if_the_rule_has_a_state():
    state = state_of(rules.AdaCons())
    state.extend([])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"rule belongs to .* Received: c/kernel"):
            state.extend(["c/kernel"])
    assert state.paths == PATHS


# ---- saved states ------------------------------------------------------------------------------

ADACONS = rules.AdaCons(granularity="variable", rescale=True)


def filled(rule):
    """A state whose numbers are all different."""
    state = state_of(rule).rule_state
    for number, variable in enumerate(state.of_name.values()):
        values = 1 + 10 * number + np.arange(int(np.prod(variable.shape)))
        variable.assign(values.reshape(variable.shape).astype(variable.numpy().dtype))
    return state


@pytest.mark.parametrize("form", ["layer", "text"])
def test_a_state_is_loaded(form):
    saved, loaded, store = filled(ADACONS), state_of(ADACONS).rule_state, {}
    if form == "layer":
        saved.save_own_variables(store)
        loaded.load_own_variables(store)
    else:
        loaded.saved.deserialize(saved.saved.serialize())
    for name, variable in loaded.of_name.items():
        np.testing.assert_array_equal(variable, saved.of_name[name], name)


@pytest.mark.parametrize("form", ["layer", "layer without a state", "text"])
def test_a_state_of_other_groups_is_left_out_with_a_warning(form):
    saved, loaded, store = filled(ADACONS), filled(rules.AdaCons(granularity="model")), {}
    before = {name: variable.numpy() for name, variable in loaded.of_name.items()}
    if form == "layer":
        saved.save_own_variables(store)
    with pytest.warns(UserWarning, match=r"is reset, because the file has .*this model needs"):
        if form == "text":
            loaded.saved.deserialize(saved.saved.serialize())
        else:
            loaded.load_own_variables(store)
    for name, variable in loaded.of_name.items():
        np.testing.assert_array_equal(variable, before[name], name)
