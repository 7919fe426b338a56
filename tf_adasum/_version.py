"""The version of tf_adasum, and the one table of the versions that it works with.

It imports nothing: setuptools reads `__version__` from the source.
"""

__version__ = "0.1.0"

PYTHON = ("3.11", "3.12", "3.13")

# The main stack, and that of TensorFlow Addons, which has Keras 2.
TENSORFLOW, KERAS = "2.21", "3.15"
TENSORFLOW_OF_ADDONS, KERAS_OF_ADDONS, ADDONS = "2.15", "2.15", "0.23"

KERAS_OF_TENSORFLOW = {TENSORFLOW: KERAS, TENSORFLOW_OF_ADDONS: KERAS_OF_ADDONS}


def series(version: str) -> str:
    """Return the series that a version belongs to.

    Example:
        >>> series("2.15.1")
        '2.15'
    """
    return ".".join(version.split(".")[:2])
