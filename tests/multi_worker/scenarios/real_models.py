"""What workers do for test_real_models.py: they run the programs of tests/real_models."""

import hashlib
import inspect
import pathlib
import runpy
from unittest import mock

import tensorflow as tf
from support.stacks import copies_of

import tf_adasum

PROGRAMS = pathlib.Path(__file__).parents[2] / "real_models"


def run_program(strategy, name, folder):
    """Run `main` of a program; as the strategy that it makes it gets this one.

    Args:
        strategy: `None` is TensorFlow's default strategy.
        name: of the program.
        folder: for the files of those programs that write some.

    Returns:
        What `main` returns beside the model, and digests of the model's weights, one for each local
        replica.
    """
    used = strategy or tf.distribute.get_strategy()
    with mock.patch.object(tf_adasum, "AdasumMirroredStrategy", lambda: used):
        main = runpy.run_path(str(PROGRAMS / f"{name}.py"))["main"]
        arguments = [folder] if inspect.signature(main).parameters else []
        model, results = main(*arguments)
    if strategy:
        strategy.check_replicas()
    return {**results, "digests": digests_of(used, model.weights)}


def digests_of(strategy, weights):
    """Return one digest of all weights for each local replica."""
    assert weights
    replicas = zip(*(copies_of(strategy, weight) for weight in weights), strict=True)
    return [
        hashlib.sha256(b"".join(copy.numpy().tobytes() for copy in copies)).hexdigest()
        for copies in replicas
    ]
