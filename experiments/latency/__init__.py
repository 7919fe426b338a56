"""Latency of Adasum's exchange, from the report of `benchmarks/exchange.py`."""

from experiments.latency.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
