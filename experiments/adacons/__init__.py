"""AdaCons against the mean: a regression, a classification, clicks."""

from experiments.adacons.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
