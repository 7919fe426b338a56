"""What Adasum's result depends on, where a headline is not confirmed."""

from experiments.ablations.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
