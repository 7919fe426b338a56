"""Time to accuracy: the steps of other experiments, times the measured time of a step."""
