"""The programs in examples/ on real workers: Adasum, and the mean with a tuned learning rate."""

from experiments.jobs.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
