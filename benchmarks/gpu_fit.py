"""`fit` of one model with one strategy; gpu_report.py tells this process when to time steps.

Reads commands from stdin, one per line: ``time STEPS``, ``profile FOLDER``, ``end``. Writes one
line of JSON, after ``@@``, for the warm-up at the start and for every command.
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

WARM_UP = 3  # steps of each `fit` that are not timed
CLASSES, WORDS, TABLES = 1000, 16_000, 8


def say(**values):
    print("@@" + json.dumps(values), flush=True)


def resnet50(dry):
    """Return ResNet-50, and for inputs and targets: a sample's shape, and the type or range."""
    shape = (8, 8, 3) if dry else (224, 224, 3)
    if dry:
        layers = [keras.Input(shape), keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization()]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
        model = keras.Sequential([*layers, keras.layers.Softmax(dtype="float32")])
    else:
        model = keras.applications.ResNet50(weights=None, input_shape=shape, classes=CLASSES)
    return model, (shape, "float32"), ((), CLASSES)


def transformer(dry):
    """Return a decoder of 12 layers with 98 million parameters: causal attention, width 768."""
    layers, width, heads, length, words = (2, 32, 2, 16, 100) if dry else (12, 768, 12, 256, WORDS)
    tokens = keras.Input([length], dtype="int32")
    x = keras.layers.Embedding(words, width)(tokens)
    positions = keras.ops.arange(length)
    x = x + keras.layers.Embedding(length, width)(positions)
    for _ in range(layers):
        y = keras.layers.LayerNormalization()(x)
        attention = keras.layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(y, y, use_causal_mask=True)
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, activation="gelu")(y)
        x = x + keras.layers.Dense(width)(y)
    x = keras.layers.LayerNormalization()(x)
    logits = keras.layers.Dense(words, use_bias=False)(x)
    outputs = keras.layers.Activation("softmax", dtype="float32")(logits)
    return keras.Model(tokens, outputs), ((length,), words), ((length,), words)


def embeddings(dry):
    """Return a classifier of clicks: 8 tables of 250,000 x 64, whose gradients are sparse."""
    rows = 1000 if dry else 250_000
    keys = keras.Input([TABLES], dtype="int32")
    tables = [keras.layers.Embedding(rows, 64)(keys[:, i]) for i in range(TABLES)]
    x = keras.layers.Concatenate()(tables)
    for width in (512, 256):
        x = keras.layers.Dense(width, activation="relu")(x)
    outputs = keras.layers.Dense(2, activation="softmax", dtype="float32")(x)
    return keras.Model(keys, outputs), ((TABLES,), rows), ((), 2)


MODELS = {"resnet50": resnet50, "transformer": transformer, "embeddings": embeddings}
ROWS = {"resnet50": 32, "transformer": 8, "embeddings": 1024}  # samples of each replica


def devices_of(arguments):
    """Return the names of the replicas' devices, after dividing one GPU if there are too few."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        cpus = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.replicas
        tf.config.set_logical_device_configuration(cpus[0], logical)
        return [f"CPU:{i}" for i in range(arguments.replicas)]
    if len(gpus) < arguments.replicas:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=arguments.memory)
        tf.config.set_logical_device_configuration(gpus[0], [part] * arguments.replicas)
    return [f"GPU:{i}" for i in range(arguments.replicas)]


def strategy_of(name, devices, ring):
    """Return the strategy: TensorFlow's, or ours with a rule."""
    if name == "stock":
        # NCCL needs a GPU of its own for each replica.
        shared = len(tf.config.list_physical_devices("GPU")) < len(devices)
        operations = tf.distribute.HierarchicalCopyAllReduce() if shared else None
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)
    import tf_adasum

    options = None
    if ring:
        implementation = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    return tf_adasum.AdasumMirroredStrategy(
        devices=devices, communication_options=options, aggregation=name
    )


class Clock(keras.callbacks.Callback):
    """Times steps: reading a variable waits until the step has ended on the GPU."""

    def __init__(self, wait, after):
        super().__init__()
        self._wait, self._after = wait, after

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self._after:
            self._wait()
            self.start = time.perf_counter()

    def seconds(self):
        self._wait()
        return time.perf_counter() - self.start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--strategy", choices=["adasum", "mean", "stock"])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--memory", type=int, help="MiB of each part of a divided GPU")
    parser.add_argument("--ring", action="store_true", help="several workers, without NCCL")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_dtype_policy(arguments.precision)
    devices = devices_of(arguments)
    strategy = strategy_of(arguments.strategy, devices, arguments.ring)
    with strategy.scope():
        model, (shape, kind), (target_shape, classes) = MODELS[arguments.model](arguments.dry)
        model.compile(
            optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
            loss="sparse_categorical_crossentropy",
            jit_compile=arguments.jit,
        )
    rows = (2 if arguments.dry else ROWS[arguments.model]) * arguments.replicas
    random = np.random.default_rng(0)
    if kind == "float32":
        inputs = random.standard_normal((rows, *shape), np.float32)
    else:
        inputs = random.integers(0, kind, (rows, *shape)).astype(np.int32)
    targets = random.integers(0, classes, (rows, *target_shape)).astype(np.int32)
    data = tf.data.Dataset.from_tensors((inputs, targets)).repeat()
    smallest = min(
        model.trainable_variables, key=lambda variable: variable.value.shape.num_elements()
    )
    copies = strategy.experimental_local_results(smallest.value)

    def wait():
        return [copy.numpy() for copy in copies]

    def fit(steps):
        clock = Clock(wait, WARM_UP)
        model.fit(
            data, steps_per_epoch=WARM_UP + steps, verbose=0, shuffle=False, callbacks=[clock]
        )
        return clock.seconds() / steps

    began = time.perf_counter()
    fit(2)
    say(seconds=time.perf_counter() - began, parameters=model.count_params(), rows=rows)
    for line in sys.stdin:
        command, *values = line.split()
        if command == "end":
            break
        if command == "time":
            say(seconds=fit(int(values[0])))
        elif command == "profile":
            from tensorflow.python.profiler import profiler_v2

            profiler_v2.start(values[0])
            fit(4)
            profiler_v2.stop()
            say(profile=values[0])
    peaks = []
    for device in devices:
        if device.startswith("GPU"):
            peaks.append(tf.config.experimental.get_memory_info(device)["peak"])
    differ = 0
    for variable in model.trainable_variables:
        first, *others = strategy.experimental_local_results(variable.value)
        differ += any(first.numpy().tobytes() != other.numpy().tobytes() for other in others)
    say(peak_bytes=max(peaks, default=0), variables_that_differ=differ)


if __name__ == "__main__":
    main()
