"""Imbalanced classes: 3 % of the rows are positive, and some rows count more than others.

Against that help a first bias that says so, class weights, metrics that do not reward a model that
never says yes, and the weights of the best epoch, which are kept in a file, too.
"""

import pathlib

import keras
import numpy as np
from keras import layers

import tf_adasum


def make_rows(count, seed):
    """Return features, labels of which 3 % are 1, and how reliable each of them is."""
    random = np.random.default_rng(seed)
    labels = (random.random([count, 1]) < 0.03).astype("float32")
    features = random.standard_normal([count, 10]).astype("float32")
    features[:, :4] += 1.2 * labels * np.where(random.random([count, 1]) < 0.5, 1, -1)
    features[:, 4:6] += 1.5 * labels
    return features, labels, random.uniform(0.5, 1.5, count).astype("float32")


def build_classifier(positive_rate):
    """Return a model that at first answers with the rate of positive rows."""
    bias = keras.initializers.Constant(np.log(positive_rate / (1 - positive_rate)))
    return keras.Sequential(
        [
            keras.Input([10]),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(1, activation="sigmoid", bias_initializer=bias),
        ]
    )


def main(folder):
    """Train; return the model, its history, and the metrics of the best epoch on new rows."""
    keras.utils.set_random_seed(0)
    features, labels, _ = make_rows(6000, seed=1)
    file = pathlib.Path(folder) / "best.weights.h5"
    rate = labels.mean()
    best = {"monitor": "val_auc", "mode": "max"}
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = build_classifier(rate)
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss="binary_crossentropy",
            metrics=[keras.metrics.Recall(name="recall")],
            weighted_metrics=[
                keras.metrics.Precision(name="precision"),
                keras.metrics.AUC(name="auc"),
                keras.metrics.AUC(name="area", curve="PR"),
            ],
        )
        first_loss = model.evaluate(features, labels, batch_size=500, verbose=0)[0]
        history = model.fit(
            features,
            labels,
            class_weight={0: 0.5 / (1 - rate), 1: 0.5 / rate},
            batch_size=200,
            epochs=6,
            validation_data=make_rows(2000, seed=2),
            callbacks=[
                keras.callbacks.EarlyStopping(**best, patience=3, restore_best_weights=True),
                keras.callbacks.ModelCheckpoint(
                    file, **best, save_best_only=True, save_weights_only=True
                ),
            ],
            verbose=2,
        ).history
    features, labels, reliability = make_rows(3000, seed=3)

    def metrics():
        options = {"batch_size": 500, "return_dict": True, "verbose": 0}
        return model.evaluate(features, labels, sample_weight=reliability, **options)

    results = metrics()
    model.load_weights(file)
    saved = metrics()
    return model, {
        **history,
        "first_loss": first_loss,
        "entropy": -rate * np.log(rate) - (1 - rate) * np.log(1 - rate),
        **{f"test_{name}": value for name, value in results.items()},
        **{f"saved_{name}": value for name, value in saved.items()},
    }


if __name__ == "__main__":
    main(folder=".")
