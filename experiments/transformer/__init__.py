"""LAMB with the mean and with Adasum, on a Transformer that reads Shakespeare."""

from experiments.transformer.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
