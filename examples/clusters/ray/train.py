"""Train handwritten digits on Ray: Ray Train starts the workers, and keeps the checkpoints.

    pip install "ray[train]"
    python examples/clusters/ray/train.py --workers 2

Ray Train sets TF_CONFIG for each worker, which the strategy reads. After the failure of a worker
Ray starts all of them again, and they go on from the last checkpoint. (Ray's own
`ReportCheckpointCallback` saves in a format that Keras 3 does not have.)
"""

import argparse
import os
import tempfile

import ray.train
from ray.train.tensorflow import TensorflowTrainer


def train(config):
    """Train on this worker; every worker calls it."""
    import keras
    from sklearn.datasets import load_digits

    import tf_adasum

    class Report(keras.callbacks.Callback):
        """Reports each epoch's logs to Ray, with a checkpoint from the first worker."""

        def on_epoch_end(self, epoch, logs=None):
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if strategy.is_first_worker:
                    self.model.save(os.path.join(folder, "model.keras"))
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                    checkpoint.set_metadata({"epochs": epoch + 1})
                ray.train.report({**logs, "epochs": epoch + 1}, checkpoint=checkpoint)

    strategy = tf_adasum.AdasumMirroredStrategy()
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x, y = digits.images[..., None] / 16.0, digits.target
    checkpoint = ray.train.get_checkpoint()
    with strategy.scope():
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model = keras.models.load_model(os.path.join(folder, "model.keras"))
        else:
            layers = keras.layers
            model = keras.Sequential(
                [
                    layers.Input(x.shape[1:]),
                    layers.Conv2D(16, 3, activation="relu"),
                    layers.Flatten(),
                    layers.Dense(10, activation="softmax"),
                ]
            )
            model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        x,
        y,
        batch_size=config["batch_size"],  # the global one
        initial_epoch=checkpoint.get_metadata()["epochs"] if checkpoint else 0,
        epochs=config["epochs"],
        callbacks=[Report()],
        verbose=2 if strategy.is_first_worker else 0,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--storage", help="a folder that all nodes see; default: ~/ray_results")
    arguments = parser.parse_args()
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"batch_size": 32 * arguments.workers, "epochs": arguments.epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=arguments.workers),
        run_config=ray.train.RunConfig(
            name="digits",
            storage_path=arguments.storage and os.path.abspath(arguments.storage),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    result = trainer.fit()
    print(result.metrics)
    print(result.checkpoint)
