"""What workers tell each other between steps."""
