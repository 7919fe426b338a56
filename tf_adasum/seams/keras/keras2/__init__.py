"""The seam to Keras 2.15, which is tf.keras of TensorFlow 2.15: frozen, no new features.

Its `fit` works under multi-worker strategies, so there is less to do than with Keras 3.
"""
