"""What workers do for test_real_models.py: they run the programs of tests/real_models."""

import hashlib
import inspect
import pathlib
import runpy
from unittest import mock

import tensorflow as tf
from support.keras_versions import copies_of

import tf_adasum

PROGRAMS = pathlib.Path(__file__).parents[2] / "real_models"


def run_program(strategy, name, folder):
    """Run `main` of a program; as the strategy that it makes it gets this one.

    Args:
        strategy: `None` is TensorFlow's default strategy.
        name: of the program.
        folder: for the files of those programs that write some.

    Returns:
        What `main` returns alongside the model, and a digest of the weights that all local replicas
        have.
    """
    used = strategy or tf.distribute.get_strategy()
    with mock.patch.object(tf_adasum, "AdasumMirroredStrategy", lambda: used):
        main = runpy.run_path(str(PROGRAMS / f"{name}.py"))["main"]
        model, results = main(*[folder][: len(inspect.signature(main).parameters)])
    if strategy:
        strategy.check_replicas()
    assert model.weights
    replicas = zip(*(copies_of(used, weight) for weight in model.weights), strict=True)
    (digest,) = {
        hashlib.sha256(b"".join(copy.numpy().tobytes() for copy in copies)).hexdigest()
        for copies in replicas
    }
    return {**results, "digest": digest}
