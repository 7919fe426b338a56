"""Who takes part, and how they come together."""
