"""Latency of Adasum's exchange, from the report of `benchmarks/exchange.py`."""
