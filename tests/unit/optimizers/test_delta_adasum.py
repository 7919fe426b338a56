"""The arguments of DeltaAdasum, and the strategies that it refuses.

test_wrappers.py tests what it has in common with AdaScale, and
tests/multi_worker/test_delta_adasum_on_replicas.py how several replicas combine.
"""

import keras
import pytest
import tensorflow as tf
from support import keras_versions

import tf_adasum
from tf_adasum import rules
from tf_adasum.optimizers import DeltaAdasum

SGD = keras.optimizers.SGD


@pytest.mark.parametrize("local_steps", [0, 1.0])
def test_another_number_of_local_steps_is_refused(local_steps):
    message = f"`local_steps` must be an int, 1 or more.* Received: local_steps={local_steps!r}"
    with pytest.raises(ValueError, match=message):
        DeltaAdasum(SGD(), local_steps=local_steps)


def test_a_step_without_a_strategy_is_refused():
    message = r"under an AdasumMirroredStrategy\(\), whose default .* Received: no strategy"
    with pytest.raises(ValueError, match=message):
        DeltaAdasum(SGD()).apply([tf.ones(1)], [keras_versions.Variable([1.0])])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (None, "Received: MirroredStrategy"),
        ("mean", r"Received: AdasumMirroredStrategy with .*[mM]ean"),
        (rules.AdaCons(rescale=False), r"needs AdaCons\(rescale=True\): .* Received: AdaCons\("),
    ],
)
def test_strategies_that_divide_gradients_are_refused(rule, message):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    if rule is not None:
        strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
    optimizer = DeltaAdasum(SGD())
    with strategy.scope():
        for call in (
            lambda: DeltaAdasum(SGD()),
            lambda: optimizer.build([keras_versions.Variable([1.0])]),
        ):
            with pytest.raises(ValueError, match=message):
                call()
