"""A residual network with Momentum and with Adam on a large global batch."""

from experiments.residual.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
