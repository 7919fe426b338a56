"""Train a recommender with embeddings of users and films, which get sparse gradients.

    python examples/recommender.py                                     one process
    tf-adasum-launch -n 4 examples/recommender.py                      four local workers

The 400,000 ratings are generated. A rating is 1 if the user likes the film, and few films are
popular.
"""

import argparse
import time

import keras
import numpy as np
from keras import layers

import tf_adasum

USERS, FILMS, RATINGS = 4000, 2000, 400_000


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean"], help="aggregation")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="constant")
    parser.add_argument("--epochs", type=int, default=2, help="number of epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--delta", action="store_true", help="combine Adam's steps: DeltaAdasum")
    parser.add_argument("--test", action="store_true", help="evaluate the test ratings")
    return parser.parse_args()


def load(test):
    """Return ratings for training, and ratings to evaluate: ``[rows, 2]`` ids, and 0 or 1.

    A user likes a film with the probability ``sigmoid(b_film + u_user · v_film)``. As in Zipf's
    law, the film of rank k is rated 1/k times as often as the most popular film.
    """
    random = np.random.default_rng(0)
    popularity = 1 / np.arange(1, FILMS + 1)
    users = random.integers(USERS, size=RATINGS)
    films = random.choice(FILMS, RATINGS, p=popularity / popularity.sum())
    tastes = random.normal(size=[USERS, 4])
    traits = random.normal(size=[FILMS, 4])
    logits = random.normal(size=FILMS)[films] + np.sum(tastes[users] * traits[films], axis=1)
    liked = (random.random(RATINGS) < 1 / (1 + np.exp(-logits))).astype("float32")
    ids = np.stack([users, films], axis=1).astype("int32")
    tenth = RATINGS // 10
    held_out = slice(-tenth, None) if test else slice(-2 * tenth, -tenth)
    return (ids[: -2 * tenth], liked[: -2 * tenth]), (ids[held_out], liked[held_out])


def build_recommender():
    """Return a model that predicts whether a user likes a film."""
    ids = layers.Input([2], dtype="int32")
    user = layers.Embedding(USERS, 16)(ids[:, 0])
    film = layers.Embedding(FILMS, 16)(ids[:, 1])
    x = layers.Concatenate()([user, film, user * film])
    x = layers.Dense(32, activation="relu")(x)
    return keras.Model(ids, layers.Dense(1, activation="sigmoid")(x))


def main():
    """Train, and print the area under the ROC curve."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    training, held_out = load(arguments.test)
    rows = 64 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = build_recommender()
        optimizer = keras.optimizers.Adam(arguments.learning_rate)
        if arguments.delta:
            optimizer = tf_adasum.optimizers.DeltaAdasum(optimizer)
        model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    start = time.perf_counter()
    model.fit(*training, batch_size=rows, epochs=arguments.epochs, verbose=2)
    seconds = time.perf_counter() - start
    _, auc = model.evaluate(*held_out, batch_size=4096, verbose=0)
    if strategy.is_first_worker:
        print(f"AUC {auc:.4f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
