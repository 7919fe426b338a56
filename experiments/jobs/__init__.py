"""The programs in examples/ on real workers: Adasum, and the mean with a tuned learning rate."""
