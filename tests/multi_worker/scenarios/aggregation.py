"""What the workers do for tests of rules, plans, sparse gradients and the orthogonality."""

import functools
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios.basics import (
    OPTIMIZERS,
    compiled,
    random_data,
    reduce_gradients,
    use_rule,
    weights_of,
)
from tf_adasum import callbacks, cross_device_ops, rules
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat


def without_small_bucket_gathering():
    """A context in which small buckets, too, go through the levels of the radix plan."""
    return mock.patch.object(cross_device_ops, "GATHERED_BYTES", 0)


def reduce_by_plan(strategy, bytes_per_pack=4000, **options):
    """Combine known gradients of many small buckets by the levels of a radix plan."""
    with without_small_bucket_gathering():
        return reduce_gradients(strategy, bytes_per_pack=bytes_per_pack, **options)


def plan_of_a_large_bucket(strategy):
    scheme = tensorflow_compat.cross_device_ops(strategy.extended).scheme
    return {"plan": scheme.plan(8_000_000, 1)}


def text_layers(one_hot):
    """Bags of ten words; with `one_hot` the same model without sparse gradients."""
    if one_hot:
        encode = keras.layers.Lambda(lambda words: tf.one_hot(words, 50), output_shape=(10, 50))
        embed = [encode, keras.layers.Dense(4, use_bias=False)]
    else:
        embed = [keras.layers.Embedding(50, 4)]
    last = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    return [keras.Input([10], dtype="int32"), *embed, *last]


def train_text_model(
    strategy, rule, optimizer="sgd", one_hot=False, epochs=2, steps_per_execution=1
):
    """`fit` of a model with an Embedding; return weights, losses and the state of the rule."""
    use_rule(strategy, rule)
    generator = np.random.default_rng(1)
    x = generator.integers(0, 50, [64, 10])
    y = (x % 7).sum(axis=1, keepdims=True) / 10.0
    options = {"steps_per_execution": steps_per_execution}
    model = compiled(strategy, lambda: text_layers(one_hot), OPTIMIZERS[optimizer], **options)
    model.set_weights([generator.standard_normal([50, 4]), np.ones([4, 1]), np.zeros([1])])
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    return {"loss": history["loss"], **weights_of(model), **rule_state(model)}


def rule_state(model):
    state = getattr(model.optimizer, "aggregation_state", None)
    if state is None or state.rule_state is None:
        return {}
    return {name: value.numpy() for name, value in state.rule_state.of_name.items()}


def small_model(strategy, rule, *hidden, **options):
    """A model that trains by a rule with momentum SGD, whose slots are there before `fit`."""
    use_rule(strategy, rule)
    layers = [keras.Input([6]), *hidden, keras.layers.Dense(1)]
    make = functools.partial(keras.optimizers.SGD, 0.05, momentum=0.9)
    model = compiled(strategy, lambda: layers, make, **options)
    with strategy.scope():
        keras_compat.build(model.optimizer, model.trainable_variables)
    return model


def fit(model, rows=24, batch_size=24, **options):
    x, y = random_data(rows)
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **options).history


def track_orthogonality(strategy, every=1, **compile_options):
    """`fit` with a tracker, and once more without; return logs, values and what is measured."""
    replicas = strategy.num_replicas_in_sync
    keras.utils.set_random_seed(5)  # the layer below draws its seed now
    model = small_model(strategy, "adasum", keras.layers.Dense(5, "tanh"), **compile_options)
    measures = []

    def train(given):
        def note(logs):
            measures.append(model.optimizer.aggregation_state.orthogonality is not None)

        given = [keras.callbacks.LambdaCallback(on_train_end=note), *given]
        return fit(model, 12 * replicas, batch_size=4 * replicas, epochs=2, callbacks=given)

    tracker = callbacks.OrthogonalityTracker(log_freq=every)
    history = train([tracker])
    later = train([])
    return {
        "values": np.array(tracker.values),
        "steps": tracker.steps,
        "overall": history["orthogonality"],
        "first variable": history[f"orthogonality/{tracker.paths[0]}"],
        "later keys": sorted(later),
        "measures": measures,
    }


def custom_loop(strategy, built):
    """AdaCons in a custom training loop, with an optimizer that was built before it or not."""
    use_rule(strategy, rules.AdaCons(0.9, rescale=True))
    keras.utils.set_random_seed(6)
    x, y = random_data(4 * strategy.num_replicas_in_sync)
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        if built:
            keras_compat.build(optimizer, model.trainable_variables)

    def in_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        keras_compat.apply(optimizer, gradients, model.trainable_variables)

    step = tf.function(lambda x, y: strategy.run(in_replica, args=(x, y)))
    for _ in range(3):
        step(*strategy._split_batch((x, y)))
    state = optimizer.aggregation_state.rule_state.of_name
    return {**weights_of(model), **{name: value.numpy() for name, value in state.items()}}


class NotFiniteForZero(rules.AggregationRule):
    """Finite when it is probed, and not where a gradient is zero."""

    def coefficients(self, gram):
        return 1 / tf.linalg.diag_part(gram)


def message_of_a_bad_rule(strategy):
    """The error that a rule raises in `fit`, on this worker, when its coefficients overflow.

    A slower worker may lose its collective to the error of the other worker, and name that error.
    """
    model = small_model(strategy, NotFiniteForZero())
    try:
        model.fit(np.zeros([24, 6]), np.ones([24, 1]), batch_size=24, verbose=0)
    except (tf.errors.InvalidArgumentError, tf_adasum.WorkerLostError) as error:
        return {"message": str(error)}
    return {"message": ""}
