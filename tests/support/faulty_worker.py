"""A worker that trains, and into which a fault is injected; see `faults.run`.

    python faulty_worker.py '{"strategy": "adasum", "fault": "kill", "injection_point": "step", …}'

Its last line of output is JSON: the result.
"""

import hashlib
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import time

from tf_adasum.compat import keras as keras_compat

ASKED = json.loads(sys.argv[1])
RANK = int(os.environ.get("TF_ADASUM_RANK") or json.loads(os.environ["TF_CONFIG"])["task"]["index"])
FOLDER = pathlib.Path(ASKED["folder"])
IS_VICTIM = RANK == ASKED["victim"]
BATCHES, EPOCHS = 10, 3
SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "interrupt": signal.SIGINT,
}


def is_time(injection_point):
    """Whether the fault of this worker belongs to an injection point."""
    return IS_VICTIM and ASKED["injection_point"] == injection_point


def wait_for(path):
    """Wait for a file that the test writes; not forever, see `end_in_time`."""
    while not path.exists():
        time.sleep(0.01)


def inject_fault():
    """The fault, and when it happened; only once."""
    if FOLDER.joinpath("time").exists():
        return
    FOLDER.joinpath("time").write_text(str(time.monotonic()))
    fault = ASKED["fault"]
    if fault == "outside":
        wait_for(FOLDER / "happened")
    elif fault in SIGNALS:
        os.kill(os.getpid(), SIGNALS[fault])
    elif fault == "raise":
        raise ArithmeticError("the fault of this worker")
    elif fault == "exit":
        sys.exit(0)
    elif fault == "sleep":
        time.sleep(10_000)
    elif fault == "differ":  # a collective of its own
        import tensorflow as tf

        tf.distribute.get_strategy()._seeds.shared_if_needed()


def inject_fault_at(injection_point, is_now=True):
    """The fault, if it belongs to an injection point of this worker."""
    if is_now and is_time(injection_point):
        inject_fault()


def at_start():
    """The fault between the rendezvous and TensorFlow's registration."""
    from tensorflow.python.eager import context

    original = context.Context.enable_collective_ops

    def enable_collective_ops(self, server_def):
        inject_fault()
        return original(self, server_def)

    context.Context.enable_collective_ops = enable_collective_ops


def main():
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_adasum

    FOLDER.joinpath(f"here-{RANK}").touch()
    wait_for(FOLDER / "start")
    keras.utils.set_random_seed(0)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=ASKED["timeout"])
    if is_time("start"):
        at_start()
    if ASKED["strategy"] == "stock":
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    else:
        strategy = tf_adasum.AdasumMirroredStrategy(communication_options=options)
    inject_fault_at("build")

    @keras.saving.register_keras_serializable()
    class SlowToSave(keras.layers.Dense):
        def save_own_variables(self, store):
            super().save_own_variables(store)
            inject_fault_at("checkpoint")

    width = ASKED.get("width", 2000 if ASKED["injection_point"] == "exchange" else 4)
    with strategy.scope():
        layers = [keras.Input((4,)), keras.layers.Dense(width), SlowToSave(width)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def rows():
        random = np.random.default_rng(RANK)
        for batch in range(BATCHES):
            inject_fault_at("data", batch == 5)
            yield random.uniform(0.5, 1.5, [4]).astype("float32"), np.ones([1], np.float32)

    class Faulty(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if is_time("step") and batch == 5:
                with strategy.scope():
                    inject_fault()
            if is_time("exchange") and batch == 5:
                threading.Timer(0.2, inject_fault).start()

        def on_epoch_end(self, epoch, logs=None):
            inject_fault_at("epoch")

    def make_dataset(context=None):
        signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
        dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.repeat(EPOCHS).batch(1).with_options(options)

    callbacks = [Faulty()]
    if ASKED["injection_point"] == "checkpoint":
        path = str(FOLDER / "checkpoint.weights.h5")
        callbacks.append(keras.callbacks.ModelCheckpoint(path, save_weights_only=True))

    if ASKED.get("call") == "train_on_batch":
        for batch in range(BATCHES * EPOCHS):
            callbacks[0].on_train_batch_begin(batch)
            model.train_on_batch(np.ones([2, 4], np.float32), np.ones([2, 1], np.float32))
        return None
    dataset = strategy.distribute_datasets_from_function(make_dataset)
    if ASKED.get("call") == "working_together":
        with strategy.working_together():
            train_without_fit(strategy, model, dataset, callbacks)
    elif ASKED["strategy"] == "stock":  # whose `fit` fails on several workers, faults or not
        train_without_fit(strategy, model, dataset, callbacks)
    else:
        length = {"steps_per_epoch": BATCHES, "epochs": EPOCHS}
        model.fit(dataset, **length, callbacks=callbacks, verbose=0)
    return hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest()


def train_without_fit(strategy, model, dataset, callbacks):
    import tensorflow as tf

    variables = model.trainable_variables

    @tf.function
    def step(batch):
        def in_replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, variables)
            context = tf.distribute.get_replica_context()
            keras_compat.apply(model.optimizer, context.all_reduce("SUM", gradients), variables)
            return loss

        return strategy.run(in_replica, args=batch)

    for callback in callbacks:
        callback.set_params({})
        callback.set_model(model)
    batches = iter(dataset)
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            for callback in callbacks:
                callback.on_train_batch_begin(batch)
            step(next(batches))
        for callback in callbacks[: 2 if RANK == 0 else 1]:
            callback.on_epoch_end(epoch, {"loss": 0.0, "val_loss": 0.0})


def end_in_time():
    """End this process after some time, whatever becomes of those who started it."""
    signal.setitimer(signal.ITIMER_REAL, ASKED["seconds"])


def report(error, digest=None):
    end_in_time()
    said = {"type": type(error).__name__, "message": str(error)[:2000]} if error else {"type": None}
    print("\n" + json.dumps({**said, "digest": digest, "time": time.monotonic()}), flush=True)


if __name__ == "__main__":
    logging.basicConfig()
    logging.getLogger("tf_adasum").setLevel(logging.INFO)  # why a transport is used
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    end_in_time()
    try:
        digest = main()
    except BaseException as error:
        report(error)
        if ASKED.get("lingers") and IS_VICTIM:
            time.sleep(10_000)
        raise
    report(None, digest)
