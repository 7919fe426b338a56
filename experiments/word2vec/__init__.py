"""word2vec on Shakespeare's words: sparse gradients, on 1 to 32 replicas."""

from experiments.word2vec.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
