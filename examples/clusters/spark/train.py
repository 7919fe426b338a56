"""Train handwritten digits on Spark: each of its tasks is a worker.

    pip install pyspark && pip install --no-deps spark-tensorflow-distributor
    spark-submit --conf spark.python.worker.reuse=false examples/clusters/spark/train.py

`MirroredStrategyRunner` starts all tasks together, as a barrier stage, and sets TF_CONFIG. Workers
that are not used again begin with a fresh TensorFlow. For GPUs leave `use_gpu=False` away.
"""

import argparse

from spark_tensorflow_distributor import MirroredStrategyRunner


def train(batch_size, epochs):
    """Train on this worker; every worker calls it, and worker 0's result is returned."""
    import keras
    from sklearn.datasets import load_digits

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x, y = digits.images[..., None] / 16.0, digits.target
    with strategy.scope():
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
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)  # the global batch
    return {"workers": strategy.num_workers, **history.history}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    runner = MirroredStrategyRunner(
        num_slots=arguments.workers,
        use_gpu=False,
        use_custom_strategy=True,  # the strategy is made in `train`
    )
    print(runner.run(train, batch_size=32 * arguments.workers, epochs=arguments.epochs))
