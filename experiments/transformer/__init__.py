"""LAMB with the mean and with Adasum, on a Transformer that reads Shakespeare."""
