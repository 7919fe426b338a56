"""DeltaAdasum on one replica: its arguments, and when it combines local steps.

test_wrappers.py tests what it has in common with AdaScale, and
tests/multi_worker/test_delta_adasum_on_replicas.py how several replicas combine.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions

import tf_adasum
from tf_adasum import rules
from tf_adasum.optimizers import DeltaAdasum

Adam = keras.optimizers.Adam
SGD = keras.optimizers.SGD


@pytest.fixture(scope="module")
def strategies():
    return {
        str(rule): tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
        for rule in ("adasum", "mean", "sum", rules.AdaCons(rescale=False), rules.AdaCons())
    }


def built(strategy, **options):
    """A model whose optimizer has local steps; without them, it is plain."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([3]), *layers])
        model.compile(DeltaAdasum(Adam(0.05), **options) if options else Adam(0.05), "mse")
    return model


X = np.random.default_rng(8).standard_normal([20, 3]).astype("float32")
Y = X[:, :1] * 2


def taken(optimizer):
    """Local steps since the last combination, and the number of combinations."""
    return int(optimizer._step.taken.numpy()), int(optimizer._step.combinations.numpy())


# ---- arguments ---------------------------------------------------------------------------------


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
    ("name", "message"),
    [
        ("stock", "Received: MirroredStrategy"),
        ("mean", r"Received: AdasumMirroredStrategy with .*[mM]ean"),
        (
            repr(rules.AdaCons(rescale=False)),
            r"needs AdaCons\(rescale=True\): .* Received: AdaCons\(",
        ),
    ],
)
def test_strategies_that_divide_gradients_are_refused(strategies, name, message):
    strategy = strategies.get(name) or tf.distribute.MirroredStrategy(["CPU:0"])
    optimizer = DeltaAdasum(SGD())
    with strategy.scope():
        for call in (
            lambda: DeltaAdasum(SGD()),
            lambda: optimizer.build([keras_versions.Variable([1.0])]),
        ):
            with pytest.raises(ValueError, match=message):
                call()


# ---- combinations ------------------------------------------------------------------------------


def test_local_steps_that_do_not_divide_an_epoch(strategies):
    """Five steps: a combination after two, four, and at the end of the epoch."""
    model, plain = built(strategies["adasum"], local_steps=2), built(strategies["adasum"])
    for one in (model, plain):
        one.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert taken(model.optimizer) == (0, 6)
    assert model.optimizer.iterations.numpy() == 10
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluate_and_predict_combine_first(strategies):
    model = built(strategies["adasum"], local_steps=4)
    optimizer = model.optimizer
    uses = [
        lambda: model.evaluate(X, Y, verbose=0),
        lambda: model.predict(X, verbose=0),
        optimizer.synchronize,
    ]
    for combinations, use in enumerate(uses):
        model.train_on_batch(X[:4], Y[:4])
        assert taken(optimizer) == (1, combinations) and not optimizer.is_synchronized
        use()
        assert taken(optimizer) == (0, combinations + 1) and optimizer.is_synchronized
    optimizer.synchronize()
    assert taken(optimizer) == (0, 3)
