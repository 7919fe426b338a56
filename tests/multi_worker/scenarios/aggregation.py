"""What the workers do for tests of rules, plans, sparse gradients and the orthogonality."""

import contextlib
import os
import warnings

import keras
import numpy as np
import tensorflow as tf
from support import oracle

import tf_adasum
from scenarios.basics import known_gradients, over, random_data, scope, use_rule, weights_of
from tf_adasum import callbacks, cross_device_ops, rules
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat

RULES = {
    "adasum": lambda: rules.Adasum(),
    "adasum model": lambda: rules.Adasum("model"),
    "adacons": lambda: rules.AdaCons(),
    "adacons variable": lambda: rules.AdaCons(0.9, "variable", rescale=True),
    "adacons groups": lambda: rules.AdaCons(
        0.9, {".*/(kernel|embeddings)": "kernels"}, rescale=True
    ),
    "sum": lambda: rules.Sum(),
    "mean": lambda: rules.Mean(),
}


@contextlib.contextmanager
def nothing_gathered():
    """So that small buckets, too, go through the levels of the radix plan."""
    saved = cross_device_ops.GATHERED_BYTES
    cross_device_ops.GATHERED_BYTES = 0
    try:
        yield
    finally:
        cross_device_ops.GATHERED_BYTES = saved


def reduction(strategy, gradients, marker):
    """A function that combines given gradients ``[replicas, ...]``."""

    @tf.function(autograph=False)
    def step():
        def replica_step():
            context = tf.distribute.get_replica_context()
            own = [tf.gather(gradient, context.replica_id_in_sync_group) for gradient in gradients]
            return context.all_reduce("SUM", own, options=marker)

        return strategy.run(replica_step)

    return step


def reduce_by_plan(strategy, rule="adasum", **options):
    """Every local replica's combined gradients, as float64."""
    use_rule(strategy, RULES[rule](), **options)
    gradients = known_gradients(strategy.num_replicas_in_sync)
    marker = tensorflow_compat.GradientReduction(bytes_per_pack=4000)
    with nothing_gathered():
        combined = reduction(strategy, gradients, marker)()
    return copies_of(strategy, combined)


def one_gradient(replicas):
    return np.random.default_rng(3).standard_normal([replicas, 1801]).astype("float32")


def reduce_one_by_plan(strategy, **options):
    """Every local replica's combination of `one_gradient`, in one bucket: for many replicas."""
    use_rule(strategy, "adasum", **options)
    gradients = [one_gradient(strategy.num_replicas_in_sync)]
    with nothing_gathered():
        combined = reduction(strategy, gradients, strategy.gradient_reduction)()
    return copies_of(strategy, combined)


def reduce_as_constructed(strategy):
    """The same with the scheme that the strategy's own arguments have given it."""
    gradients = known_gradients(strategy.num_replicas_in_sync)
    combined = reduction(strategy, gradients, strategy.gradient_reduction)()
    return copies_of(strategy, combined)


def copies_of(strategy, combined):
    return {
        f"{number}.{local}": tf.cast(copy, tf.float64).numpy()
        for number, value in enumerate(combined)
        for local, copy in enumerate(strategy.experimental_local_results(value))
    }


def elements_sent(strategy, size, **options):
    """Elements that each local replica sends for one gradient of `size`, Gram matrices apart.

    Read from TensorFlow's collectives.
    """
    use_rule(strategy, "adasum", **options)
    gradients = [tf.ones([strategy.num_replicas_in_sync, size])]
    with nothing_gathered(), over(strategy, None):
        step = reduction(strategy, gradients, strategy.gradient_reduction)
        graph = step.get_concrete_function().graph
    sent = {}
    for operation in graph.get_operations():
        if operation.type not in ("CollectiveAllToAllV2", "CollectiveGatherV2"):
            continue
        value = operation.inputs[0]
        if value.dtype == tf.float64:  # a Gram matrix
            continue
        members = int(tf.get_static_value(operation.inputs[1]))
        elements = value.shape.num_elements()
        is_gather = operation.type == "CollectiveGatherV2"
        elements *= (members - 1) if is_gather else (members - 1) / members
        sent[operation.device] = sent.get(operation.device, 0) + elements
    return {"sent": list(sent.values())}


def build_text_model(one_hot=False):
    """Bags of ten words; with `one_hot` the same model without sparse gradients."""
    words = keras.Input([10], dtype="int32")
    if one_hot:
        table = keras.layers.Dense(4, use_bias=False, name="table")
        embedded = table(
            keras.layers.Lambda(lambda words: tf.one_hot(words, 50), output_shape=(10, 50))(words)
        )
    else:
        embedded = keras.layers.Embedding(50, 4, name="table")(words)
    averaged = keras.layers.GlobalAveragePooling1D()(embedded)
    return keras.Model(words, keras.layers.Dense(1, name="head")(averaged))


def train_text_model(strategy, rule, optimizer="sgd", one_hot=False, epochs=2, together=1):
    """`fit` of a model with an Embedding; return weights, losses and the state of the rule."""
    if strategy:
        use_rule(strategy, RULES[rule]())
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(1)
    x = generator.integers(0, 50, [64, 10])
    y = (x % 7).sum(axis=1, keepdims=True) / 10.0
    with scope(strategy):
        model = build_text_model(one_hot)
        table = generator.standard_normal([50, 4])
        model.get_layer("table").set_weights([table])
        model.get_layer("head").set_weights([np.ones([4, 1]), np.zeros([1])])
        model.compile(keras.optimizers.get(optimizer), "mse", steps_per_execution=together)
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    return {"loss": history["loss"], **weights_of(model), **rule_state(model)}


def rule_state(model):
    state = getattr(model.optimizer, "gradient_reductions", None)
    if state is None or state.rule_state is None:
        return {}
    return {name: value.numpy() for name, value in state.rule_state.of_name.items()}


def kinds_of_gradients(strategy):
    """Which types the optimizer's update gets for the variables of the text model."""
    use_rule(strategy, "adasum")
    kinds = []

    class Watching(keras.optimizers.SGD):
        def update_step(self, gradient, variable, *learning_rate):
            kinds.append(type(gradient).__name__)
            super().update_step(gradient, variable, *learning_rate)

    with scope(strategy):
        model = build_text_model()
        model.compile(optimizer=Watching(0.1), loss="mse")
    x = np.zeros([16, 10], "int32")
    model.fit(x, np.ones([16, 1]), batch_size=16, verbose=0)
    return {"kinds": kinds}


def save_and_go_on(strategy, folder, rule, way):
    """Train 4 epochs at once, and 2 + 2 with a restart from a file between them."""
    worker = strategy.cluster_resolver.task_id or 0
    path = os.path.join(folder, f"{way}{worker}")
    x, y = random_data(48)

    def build():
        use_rule(strategy, RULES[rule]())
        keras.utils.set_random_seed(5)
        with scope(strategy):
            model = keras.Sequential(
                [keras.Input([6]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
            )
            model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
        return model

    def build_with_slots():
        model = build()
        with scope(strategy):
            keras_compat.build(model.optimizer, model.trainable_variables)
        return model

    def train(model, epochs):
        return model.fit(x, y, batch_size=24, epochs=epochs, shuffle=False, verbose=0)

    unbroken = build()
    train(unbroken, 4)
    first = build()
    train(first, 2)
    if way == "keras file":
        first.save(path + ".keras")
        with scope(strategy):
            second = keras.models.load_model(path + ".keras")
    elif way == "weights":
        first.save_weights(path + ".weights.h5")
        second = build_with_slots()
        second.load_weights(path + ".weights.h5")
    else:
        tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(path)
        second = build_with_slots()
        checkpoint = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
        checkpoint.read(path).expect_partial()
    restored = rule_state(second)
    train(second, 2)
    numbers = {"unbroken": unbroken, "restarted": second}
    return {
        **{
            f"{kind} {name}": value
            for kind, model in numbers.items()
            for name, value in {**weights_of(model), **rule_state(model)}.items()
        },
        **{f"restored {name}": value for name, value in restored.items()},
    }


def restore_other_state(strategy, folder):
    """Loads weights that were saved with Adasum into a model with AdaCons; return the warning."""
    path = os.path.join(folder, f"other{strategy.cluster_resolver.task_id or 0}.weights.h5")
    x, y = random_data(24)
    messages = []
    for rule in ("adasum", "adacons"):
        use_rule(strategy, RULES[rule]())
        with scope(strategy):
            model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
            model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
        model.fit(x, y, batch_size=24, verbose=0)
        if rule == "adasum":
            model.save_weights(path)
        else:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.load_weights(path)
            messages = [str(warning.message) for warning in caught]
    loss = model.fit(x, y, batch_size=24, verbose=0).history["loss"]
    return {"message": "\n".join(messages), "loss": loss, "steps": rule_state(model)["steps"]}


def track_orthogonality(strategy, every=1, same_data=False, rule="adasum", **compile_options):
    """`fit` with a tracker, and once more without; return logs, values and graph sizes."""
    use_rule(strategy, rule)
    keras.utils.set_random_seed(4)
    replicas = strategy.num_replicas_in_sync
    own_x, own_y = random_data(4 * (1 if same_data else replicas) * 3)
    if same_data:
        own_x, own_y = (
            np.concatenate([block for block in np.split(values, 3) for _ in range(replicas)])
            for values in (own_x, own_y)
        )
    with scope(strategy):
        model = keras.Sequential(
            [keras.Input([6]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
        )
        model.compile(optimizer="sgd", loss="mse", **compile_options)
    sizes = []

    class Size(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            sizes.append(bool(model.optimizer.gradient_reductions.orthogonality is not None))

    def train(given):
        options = {"batch_size": 4 * replicas, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(own_x, own_y, callbacks=[Size(), *given], **options).history

    tracker = callbacks.OrthogonalityTracker(every=every)
    history = train([tracker])
    later = train([])
    return {
        "values": np.array(tracker.values),
        "steps": tracker.steps,
        "paths": tracker.paths,
        "overall": history["orthogonality"],
        "first variable": history[f"orthogonality/{tracker.paths[0]}"],
        "later keys": sorted(later),
        "measures": sizes,
    }


def means_of_neighbours(vectors, count):
    return np.stack([np.mean(own, axis=0) for own in np.split(vectors, len(vectors) // count)])


def orthogonality_of_known_gradients(strategy, **options):
    """The read-out for known gradients, and their own lengths."""
    use_rule(strategy, "adasum", **options)
    gradients = [g for g in known_gradients(strategy.num_replicas_in_sync) if g.dtype == tf.float32]
    paths = [f"variable{number}" for number in range(len(gradients))]
    state = strategy.aggregation_state(paths)
    with strategy.scope():
        state.measure_orthogonality()
    marker = strategy.gradient_reduction.of(state, range(len(paths)))
    reduction(strategy, gradients, marker)()
    expected = []
    for gradient in gradients:
        vectors = gradient.numpy().reshape(len(gradient), -1).astype(np.float64)
        vectors = means_of_neighbours(vectors, options.get("averaged", 1))
        expected.append([np.sum(oracle.adasum(vectors) ** 2), np.sum(vectors**2)])
    expected.append(np.sum(expected, axis=0))
    return {"actual": state.orthogonality.numpy(), "lengths": expected}


def custom_loop(strategy, built):
    """AdaCons in a custom training loop, with an optimizer that was built before it or not."""
    use_rule(strategy, rules.AdaCons(0.9, rescale=True))
    keras.utils.set_random_seed(6)
    replicas = strategy.num_replicas_in_sync
    x, y = random_data(4 * replicas)
    with scope(strategy):
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        if built:
            keras_compat.build(optimizer, model.trainable_variables)

    @tf.function
    def step():
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = slice(4 * replica, 4 * replica + 4)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(tf.constant(x)[own]) - tf.constant(y)[own]))
            gradients = tape.gradient(loss, model.trainable_variables)
            keras_compat.apply(optimizer, gradients, model.trainable_variables)

        strategy.run(replica_step)

    for _ in range(3):
        step()
    state = optimizer.gradient_reductions.rule_state.of_name
    return {**weights_of(model), **{name: value.numpy() for name, value in state.items()}}


class NotFiniteForZero(rules.AggregationRule):
    """Finite when it is probed, and not where a gradient is zero."""

    def coefficients(self, gram):
        return 1 / tf.linalg.diag_part(gram)


def message_of_a_bad_rule(strategy):
    """The error that a rule raises in `fit`, on this worker, when its coefficients overflow.

    A slower worker may lose its collective to the error of the other worker, and name that error.
    """
    use_rule(strategy, NotFiniteForZero())
    with scope(strategy):
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    x, y = random_data(24)
    message = ""
    try:
        model.fit(0 * x, y, batch_size=24, verbose=0)  # the kernel's gradient is zero
    except (tf.errors.InvalidArgumentError, tf_adasum.WorkerLostError) as error:
        message = str(error)
    return {"message": message}


def restore_backup(strategy, folder):
    """Train with AdaCons until an interrupt, and go on from worker 0's backup alone."""
    use_rule(strategy, RULES["adacons"]())
    worker = strategy.cluster_resolver.task_id
    x, y = random_data(24)

    def train(epochs):
        keras.utils.set_random_seed(5)
        with scope(strategy):
            model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
            model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
        backup = keras.callbacks.BackupAndRestore(
            os.path.join(folder, str(worker)), delete_checkpoint=False
        )
        model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, callbacks=[backup], verbose=0)
        return model

    train(2)
    model = train(3)
    return {**weights_of(model), **rule_state(model)}


def different_groups(strategy):
    """The error where workers number their layers differently, and a pattern knows numbers."""
    use_rule(strategy, rules.Adasum({".*dense_1/.*": "second"}))
    keras.backend.clear_session()
    if strategy.cluster_resolver.task_id == 1:
        keras.layers.Dense(2)
    with scope(strategy):
        layers = [keras.layers.Dense(6) for _ in range(3)]
        model = keras.Sequential([keras.Input([6]), *layers])
        model.compile(optimizer="sgd", loss="mse")
    try:
        model.fit(np.ones([4, 6]), np.ones([4, 6]), batch_size=4, verbose=0)
    except ValueError as error:
        return {"message": str(error)}
    return {"message": ""}
