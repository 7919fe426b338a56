"""Keras callbacks that look at how gradients are combined."""

from tf_adasum.callbacks.orthogonality_tracker import OrthogonalityTracker

__all__ = ["OrthogonalityTracker"]
