"""The models of the experiments in two forms: for Keras, and on N replicas at once.

A model has `keras()`, from which the initial weights and the shapes come, and `logits(weights, x)`
on weights ``[N, ...]`` and inputs ``[N, B, ...]``, in the order of Keras's variables.
"""
