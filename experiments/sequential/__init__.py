"""How close a combined step of N replicas is to N steps in sequence."""
