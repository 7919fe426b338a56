"""Failure detection while training."""
