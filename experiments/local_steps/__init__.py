"""Several steps of each replica between two combinations, and an outer optimizer."""
