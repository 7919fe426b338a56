"""StopAtScaleInvariantStep: after which step it stops, and what the progress bar expects."""

import math

import keras
import numpy as np
import pytest
from support import keras_versions

from tf_adasum import callbacks
from tf_adasum.optimizers import AdaScale

X = np.random.default_rng(0).standard_normal([24, 3]).astype("float32")
STEPS_PER_EPOCH = 6


def compiled(accumulated=2, wrap=lambda optimizer: optimizer):
    keras.utils.set_random_seed(0)
    with keras_versions.gradients_per_step(accumulated or 1):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        if accumulated is None:
            inner = keras.optimizers.SGD(0.01)
        else:
            inner = keras_versions.accumulating(keras.optimizers.SGD, 0.01, accumulated)
        model.compile(wrap(AdaScale(inner)), "mse", run_eagerly=keras_versions.RUNS_EAGERLY)
    return model


def train(model, given, epochs=100, **options):
    options = {"verbose": 0, "shuffle": False, **options}
    return model.fit(X, X[:, :1], batch_size=4, callbacks=given, epochs=epochs, **options)


def shown_epochs(capsys):
    """The lines "Epoch 1/5" as (1, 5)."""
    lines = capsys.readouterr().out.splitlines()
    shown = [line.removeprefix("Epoch ").split("/") for line in lines if line.startswith("Epoch")]
    return [(int(epoch), int(epochs)) for epoch, epochs in shown]


@pytest.mark.parametrize(("total", "steps"), [(6, 6), (7, 7), (6.5, 7), (0.1, 1), (13, 13)])
def test_a_scale_of_one_takes_as_many_steps(total, steps):
    model = compiled(accumulated=None)
    history = train(model, [callbacks.StopAtScaleInvariantStep(total)])
    assert model.optimizer.iterations.numpy() == steps
    assert len(history.epoch) == math.ceil(steps / STEPS_PER_EPOCH)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras_versions.LossScaleOptimizer])
def test_stops_after_the_first_step_that_reaches_the_total(wrap):
    tracker, model = callbacks.GainTracker(), compiled(wrap=wrap)
    train(model, [tracker, callbacks.StopAtScaleInvariantStep(9.5)])
    taus = [values["scale_invariant_steps"] for values in tracker.values]
    assert taus[-1] >= 9.5 > taus[-2]
    assert len(taus) < 19 and len(taus) % 2 == 0


def test_the_next_fit_after_the_end_takes_one_step():
    """Keras can stop only after a step."""
    stop, model = callbacks.StopAtScaleInvariantStep(3), compiled(accumulated=None)
    for steps in (3, 4):
        train(model, [stop])
        assert model.optimizer.iterations.numpy() == steps


@pytest.mark.parametrize(
    ("total", "options", "shown"),
    [
        (15, {}, [(1, 3), (2, 3), (3, 3)]),
        (1000, {"epochs": 2}, [(1, 2), (2, 2)]),
        (8, {"initial_epoch": 1}, [(2, 3), (3, 3)]),
        (5, {"steps_per_epoch": 2}, [(1, 3), (2, 3), (3, 3)]),
    ],
)
def test_the_progress_bar_expects_what_is_left(capsys, total, options, shown):
    model = compiled(accumulated=None)
    train(model, [callbacks.StopAtScaleInvariantStep(total)], verbose=2, **options)
    assert shown_epochs(capsys) == shown
    train(model, [], epochs=4, verbose=2)
    assert shown_epochs(capsys)[0] == (1, 4)


def test_the_progress_bar_expects_accumulated_steps(capsys):
    """At first the gain is 1, with two calls for each step; later fewer steps are expected."""
    train(compiled(), [callbacks.StopAtScaleInvariantStep(20)], verbose=2)
    shown = shown_epochs(capsys)
    expected = math.ceil(20 * keras_versions.calls_per_update(2) / STEPS_PER_EPOCH)
    assert shown[0] == (1, expected)
    assert len(shown) < expected and shown[-1][0] == shown[-1][1]


def test_the_last_epoch_expects_its_own_steps(capsys):
    train(compiled(accumulated=None), [callbacks.StopAtScaleInvariantStep(8)], verbose=2)
    bars = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert [bar.split(" ")[0] for bar in bars] == ["6/6", "2/2"]


def test_a_fit_that_failed_leaves_nothing_behind(capsys):
    def fail(epoch, logs):
        raise KeyboardInterrupt

    model = compiled(accumulated=None)
    fails = keras.callbacks.LambdaCallback(on_epoch_begin=fail)
    with pytest.raises(KeyboardInterrupt):
        train(model, [callbacks.StopAtScaleInvariantStep(15), fails])
    train(model, [], epochs=5, verbose=2)
    assert shown_epochs(capsys)[0] == (1, 5)
