"""What worker processes do for the tests: see `basics` for the form of these functions."""
