"""A residual network with Momentum on a large global batch."""
