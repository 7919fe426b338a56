"""Several steps of each replica between two combinations, and an outer optimizer."""

from experiments.local_steps.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
