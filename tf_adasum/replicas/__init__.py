"""What the replicas do together within a step."""
