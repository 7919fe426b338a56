"""A training loop of one's own: distributed batches, gradients, metrics, one `tf.function`."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_adasum

BATCH_SIZE = 60
EPOCHS = 6


def main():
    """Train; return the model, the loss of each epoch, and the accuracy on the test images."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    train = tf.data.Dataset.from_tensor_slices((images[:1500], digits.target[:1500]))
    train = train.shuffle(1500, seed=0).batch(BATCH_SIZE)
    test = tf.data.Dataset.from_tensor_slices((images[1500:], digits.target[1500:]))

    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        test_loss = keras.metrics.Mean()

    def train_replica(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def test_replica(images, labels):
        logits = model(images, training=False)
        test_loss.update_state(loss_of(labels, logits))
        accuracy.update_state(labels, logits)

    @tf.function
    def train_step(batch):
        losses = strategy.run(train_replica, args=batch)
        return strategy.reduce("MEAN", losses, axis=None)

    @tf.function
    def test_step(batch):
        strategy.run(test_replica, args=batch)

    train_batches = strategy.experimental_distribute_dataset(train)
    test_batches = strategy.experimental_distribute_dataset(test.batch(BATCH_SIZE))
    results = {"loss": [], "test_loss": [], "test_accuracy": []}
    for epoch in range(EPOCHS):
        losses = [train_step(batch) for batch in train_batches]
        for batch in test_batches:
            test_step(batch)
        results["loss"].append(float(tf.reduce_mean(losses)))
        results["test_loss"].append(float(test_loss.result()))
        results["test_accuracy"].append(float(accuracy.result()))
        test_loss.reset_state()
        accuracy.reset_state()
        print("epoch", epoch + 1, {name: round(values[-1], 4) for name, values in results.items()})
    return model, results


if __name__ == "__main__":
    main()
