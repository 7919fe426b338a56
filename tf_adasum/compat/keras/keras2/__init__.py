"""Compatibility with Keras 2.15 (tf.keras of TensorFlow 2.15). This package gets no new features.

`fit` of Keras 2 works under multi-worker strategies, so there is less to do than with Keras 3.
"""
