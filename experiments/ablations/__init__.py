"""What Adasum's result depends on, for claims that are not confirmed."""

from experiments.ablations.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
