"""What workers exchange between steps."""
