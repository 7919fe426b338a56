"""Train a residual network with BatchNormalization on augmented images of clothes, Fashion-MNIST.

    python examples/image_classifier.py                                one process
    tf-adasum-launch -n 4 examples/image_classifier.py                 four local workers

Keras downloads the images when the script runs for the first time: run it in one process first.
"""

import argparse
import time

import keras
from keras import layers

import tf_adasum


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean"], help="aggregation")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="at its peak")
    parser.add_argument("--epochs", type=int, default=1, help="number of epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--test", action="store_true", help="evaluate the test images")
    return parser.parse_args()


def load(test):
    """Return 54,000 training images with labels, and images to evaluate; values from 0 to 1."""
    (images, labels), held_out = keras.datasets.fashion_mnist.load_data()
    training = images[:-6000], labels[:-6000]
    if not test:
        held_out = images[-6000:], labels[-6000:]
    return [
        (own[..., None].astype("float32") / 255, labels) for own, labels in (training, held_out)
    ]


def residual_block(x, filters, strides):
    """Return two convolutions with BatchNormalization, added to their input."""
    shortcut = layers.Conv2D(filters, 1, strides=strides)(x)
    for own_strides in (strides, 1):
        x = layers.Conv2D(filters, 3, own_strides, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.ReLU()(x)
    return layers.Add()([x, shortcut])


def build_network():
    """Return a residual network; during training, it moves and mirrors its images."""
    images = layers.Input([28, 28, 1])
    x = layers.RandomFlip("horizontal")(images)
    x = layers.RandomTranslation(0.07, 0.07, fill_mode="constant")(x)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    for filters, strides in ((16, 1), (32, 2)):
        x = residual_block(x, filters, strides)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(10)(x))


def main():
    """Train, and print the accuracy."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    training, held_out = load(arguments.test)
    rows = 32 * strategy.num_replicas_in_sync
    steps = arguments.epochs * len(training[0]) // rows
    with strategy.scope():
        model = build_network()
        schedule = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps)
        model.compile(
            optimizer=keras.optimizers.SGD(schedule, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    start = time.perf_counter()
    model.fit(*training, batch_size=rows, epochs=arguments.epochs, verbose=2)
    seconds = time.perf_counter() - start
    _, accuracy = model.evaluate(*held_out, batch_size=2000, verbose=0)
    if strategy.is_first_worker:
        print(f"accuracy {accuracy:.4f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
