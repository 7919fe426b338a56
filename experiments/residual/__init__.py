"""A residual network with Momentum on a large global batch."""

from experiments.residual.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
