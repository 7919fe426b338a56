"""Ways to resume with a saved model, for the tests of the optimizers' state.

Each gets the model, a folder, and a function that creates the same model again.
"""

import keras
import tensorflow as tf


def from_model(model, folder, make):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def from_weights(model, folder, make):
    model.save_weights(folder / "model.weights.h5")
    again = make()
    again.optimizer.build(again.trainable_variables)
    again.load_weights(folder / "model.weights.h5")
    return again


def from_checkpoint(model, folder, make):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "checkpoint")
    again = make()
    again.optimizer.build(again.trainable_variables)
    status = tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    status.assert_consumed()
    return again


WAYS = [from_model, from_weights, from_checkpoint]
