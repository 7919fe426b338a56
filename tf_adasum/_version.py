"""The version of tf_adasum, and the supported versions of Python, TensorFlow and Keras.

This module imports nothing, because setuptools reads `__version__` from its source.
"""

__version__ = "0.1.0"

PYTHON = ("3.10", "3.11", "3.12", "3.13")

# Supported, oldest first: any of these versions of TensorFlow with any of these versions of Keras
# 3. Keras 3.13 needs Python 3.11.
TENSORFLOW = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
KERAS = ("3.11", "3.12", "3.13", "3.14", "3.15")
# Supported with TensorFlow Addons, which needs Keras 2.
TENSORFLOW_OF_ADDONS, KERAS_OF_ADDONS, ADDONS = "2.15", "2.15", "0.23"

SUPPORTED_VERSIONS = (
    f"TensorFlow {TENSORFLOW[0]} to {TENSORFLOW[-1]} and Keras {KERAS[0]} to {KERAS[-1]}, and with "
    f"TensorFlow {TENSORFLOW_OF_ADDONS} and Keras {KERAS_OF_ADDONS}"
)


def series(version: str) -> str:
    """Return the series of a version, which is its first two numbers.

    Example:
        >>> series("2.15.1")
        '2.15'
    """
    return ".".join(version.split(".")[:2])


def major_minor(version: str) -> tuple[int, int]:
    """Return the series of a version as a tuple of two ints, for comparisons.

    Example:
        >>> major_minor("2.9.1") < major_minor("2.21.0")
        True
    """
    major, minor = series(version).split(".")
    return int(major), int(minor)


def requirement(known: tuple[str, ...]) -> str:
    """Return pip's version specifier for a range of consecutive series.

    Example:
        >>> requirement(("2.16", "2.17"))
        '>=2.16,<2.18'
    """
    major, minor = major_minor(known[-1])
    return f">={known[0]},<{major}.{minor + 1}"


INSTALL_TENSORFLOW = f"pip install 'tensorflow-cpu{requirement(TENSORFLOW)}'"
INSTALL_KERAS = f"pip install 'keras{requirement(KERAS)}'"
INSTALL_WITH_GPUS = f"pip install 'tensorflow[and-cuda]{requirement(TENSORFLOW)}'"
INSTALL_BOTH = (
    f"{INSTALL_TENSORFLOW} (with GPUs 'tensorflow[and-cuda]{requirement(TENSORFLOW)}') "
    f"'keras{requirement(KERAS)}', or for TensorFlow Addons 'tensorflow-cpu=="
    f"{TENSORFLOW_OF_ADDONS}.*' 'keras=={KERAS_OF_ADDONS}.*'"
)


def unsupported_reason(tensorflow: str, keras: str) -> str:
    """Return which of two versions is too old, and what to install; "" if none is too old.

    Args:
        tensorflow: the version of TensorFlow, such as "2.21.0".
        keras: the version of Keras.

    Example:
        >>> unsupported_reason("2.18.0", "3.8.0")[:42]
        "Keras 3.8.0 is too old: pip install 'keras"
    """
    found = major_minor(tensorflow), major_minor(keras)
    if found == (major_minor(TENSORFLOW_OF_ADDONS), major_minor(KERAS_OF_ADDONS)):
        return ""
    too_old = []
    if found[0] < major_minor(TENSORFLOW[0]):
        install = INSTALL_TENSORFLOW
        if found[0] == major_minor(TENSORFLOW_OF_ADDONS):
            install += f", or keep it and pip install 'keras=={KERAS_OF_ADDONS}.*'"
        too_old.append(f"TensorFlow {tensorflow} is too old for Keras {keras}: {install}")
    if found[1] < major_minor(KERAS[0]):
        too_old.append(f"Keras {keras} is too old: {INSTALL_KERAS}")
    return "; ".join(too_old)


def newer(tensorflow: str, keras: str) -> str:
    """Return the packages that are newer than the newest supported version; "" if none is newer.

    Args:
        tensorflow: the version of TensorFlow, such as "2.21.0".
        keras: the version of Keras.

    Example:
        >>> newer("2.99.0", "3.15.1")
        'TensorFlow 2.99.0'
    """
    found = (("TensorFlow", tensorflow, TENSORFLOW), ("Keras", keras, KERAS))
    return " and ".join(
        f"{name} {version}"
        for name, version, known in found
        if major_minor(version) > major_minor(known[-1])
    )
