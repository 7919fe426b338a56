"""The seam to Keras 3."""
