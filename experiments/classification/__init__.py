"""Comparisons of rules by accuracy: what the experiments that classify have in common."""

from experiments.classification.experiment import Classification
from experiments.classification.problem import Problem

__all__ = ["Classification", "Problem"]
