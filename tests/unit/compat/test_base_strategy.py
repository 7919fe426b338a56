"""What compat, optimizers, callbacks and backups ask of a strategy stands in its base class."""

import ast
import inspect
from pathlib import Path

import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy

PACKAGE = Path(tf_adasum.__file__).parent
PACKAGES = ("compat", "optimizers", "callbacks", "backup", "replicas", "workers", "aggregation")
FILES = sorted(path for name in PACKAGES for path in (PACKAGE / name).rglob("*.py"))


def members_asked_of_strategies(path):
    """Yield what a file takes from `strategy`, `x.strategy`, `x.distribute_strategy` and such."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Call):
                owner = owner.func
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name.endswith("strategy") and name != "base_strategy":
                yield node.attr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_else_is_asked(path):
    of_tensorflow = {*dir(tf.distribute.Strategy), "_collective_key_base"}
    others = {*members_asked_of_strategies(path)} - of_tensorflow
    assert others <= {*vars(GradientAggregatingStrategy)}, "give it a name and a docstring there"


def test_something_is_asked_and_found():
    asked = {name for path in FILES for name in members_asked_of_strategies(path)}
    named = {name for name in vars(GradientAggregatingStrategy) if not name.startswith("_")}
    assert "experimental_local_results" in asked
    assert named <= asked, "what nobody asks for needs no name there"


def test_the_strategy_has_all_of_it():
    assert issubclass(tf_adasum.AdasumMirroredStrategy, GradientAggregatingStrategy)
    assert not inspect.isabstract(tf_adasum.AdasumMirroredStrategy)


def test_every_member_says_what_it_is():
    members = vars(GradientAggregatingStrategy).items()
    assert all(inspect.getdoc(member) for name, member in members if not name.startswith("_"))


def test_other_strategies_are_none_of_ours():
    other = tf.distribute.MirroredStrategy(["CPU:0"])
    assert not isinstance(other, GradientAggregatingStrategy)
