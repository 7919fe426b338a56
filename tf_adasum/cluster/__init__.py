"""Detects the cluster, and connects its tasks before TensorFlow starts."""
