"""What `test_gain_callbacks.py` trains: AdaScale in `fit`, with the callbacks that know it."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import build_mlp, on_replicas, random_data, use_rule
from tf_adasum.callbacks import GainTracker, StopAtScaleInvariantStep
from tf_adasum.optimizers import AdaScale

ROWS = 8  # of a small batch
UPDATES = 4  # per epoch
TOTAL = 9.0  # steps of the small batch


def compiled(strategy, build, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build()
        inner = keras.optimizers.SGD(0.05, momentum=0.9, **options)
        model.compile(optimizer=AdaScale(inner), loss="mse", metrics=["mae"])
    return model


def fit_until_stopped(strategy, count):
    """Train until τ reaches TOTAL; return the logs, and what was measured in each update.

    Args:
        strategy: the workers' strategy, or None: then all gradients are accumulated.
        count: how many small batches are in an update.
    """
    if strategy:
        use_rule(strategy, "mean")
        accumulation, options = 1, {}
    else:
        accumulation, options = count, {"gradient_accumulation_steps": count}
        strategy = tf.distribute.get_strategy()
    model = compiled(strategy, build_mlp, **options)
    x, y = random_data(ROWS * count * UPDATES)
    tracker = GainTracker(log_freq=accumulation)
    history = model.fit(
        x,
        y,
        batch_size=ROWS * count // accumulation,
        epochs=int(TOTAL),
        shuffle=False,
        verbose=0,
        callbacks=[tracker, StopAtScaleInvariantStep(TOTAL)],
    )
    return {
        "updates": np.array(tracker.steps) // accumulation,
        **{f"log {name}": values for name, values in history.history.items()},
        **{f"measured {name}": [v[name] for v in tracker.values] for name in tracker.values[0]},
        **on_replicas(strategy, model.variables, "weight "),
    }
