"""The version of tf_adasum."""

__version__ = "0.1.0"
