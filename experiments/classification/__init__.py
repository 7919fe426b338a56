"""Comparisons of rules by accuracy: what the experiments that classify have in common."""

from experiments.classification.experiment import Classification, Problem

__all__ = ["Classification", "Problem"]
