"""How close a combined step of N replicas is to N steps in sequence."""

from experiments.sequential.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
