"""What compat, optimizers, callbacks and backups ask of a strategy stands in its base class."""

import ast
from pathlib import Path

import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.compat.base_strategy import FORMERLY_PUBLIC, GradientAggregatingStrategy

PACKAGE = Path(tf_adasum.__file__).parent
PACKAGES = ("compat", "optimizers", "callbacks", "backup", "replicas", "workers", "aggregation")


def members_asked_of_strategies(path):
    """Yield what a file takes from `strategy`, `x.strategy`, `x.distribute_strategy` and such."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name.endswith("strategy") and name != "base_strategy":
                yield node.attr


def test_the_base_class_names_what_is_asked_of_a_strategy_and_nothing_else():
    files = [path for name in PACKAGES for path in (PACKAGE / name).rglob("*.py")]
    asked = {(path.name, name) for path in files for name in members_asked_of_strategies(path)}
    of_tensorflow = {*dir(tf.distribute.Strategy), "_collective_key_base"}
    of_ours = {*vars(GradientAggregatingStrategy), *GradientAggregatingStrategy.__annotations__}
    assert not [each for each in asked if each[1] not in of_tensorflow | of_ours], (
        "give it a name and a docstring in the base class"
    )
    own = {name for name in of_ours if not name.startswith(("__", "_abc"))}
    assert own <= {name for _, name in asked}, "what nobody asks for needs no name there"


def test_former_names_work_with_a_warning():
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    for name in FORMERLY_PUBLIC:
        with pytest.warns(DeprecationWarning, match=f"strategy.{name} is deprecated") as caught:
            assert getattr(strategy, name) == getattr(strategy, f"_{name}")
        assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'worker'"):
        _ = strategy.worker
