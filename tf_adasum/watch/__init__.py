"""The failure detector: notices lost workers while training."""
