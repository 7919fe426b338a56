"""What happens among replicas inside a step."""
