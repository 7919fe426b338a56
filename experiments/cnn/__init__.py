"""The two-layer CNN of Maleki et al. on 1 to 64 replicas."""
