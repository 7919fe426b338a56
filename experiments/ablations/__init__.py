"""Variants of Adasum, for claims that were not confirmed."""

from experiments.ablations.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
