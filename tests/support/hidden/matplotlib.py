"""Keras imports this package at its start if it is installed, which takes a worker a second."""

raise ImportError("hidden from worker processes, see worker_environment")
