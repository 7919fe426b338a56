"""The work that all replicas do together within a step."""
