"""Time to accuracy: the steps of other experiments, times the measured time of a step."""

from experiments.time_to_accuracy.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
