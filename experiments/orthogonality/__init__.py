"""How orthogonal the replicas' gradients are, over a training."""

from experiments.orthogonality.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
