"""AdaScale's Table 2 at our size."""

from experiments.adascale.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
