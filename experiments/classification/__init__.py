"""Comparisons of rules by accuracy: the common base of the classification experiments."""

from experiments.classification.experiment import Classification
from experiments.classification.problem import Problem

__all__ = ["Classification", "Problem"]
