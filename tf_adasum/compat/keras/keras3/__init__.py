"""Compatibility with Keras 3."""
