"""The times that the store, the start, the failure detector and the doctor share, in seconds."""

POLL_SECONDS = 0.1  # between two looks at what another thread or process changes
HEARTBEAT_SECONDS = 1.0  # between two signs of life, or two updates
# A program that does not answer for this time is gone, has no secret, or fails in another way.
LEASE_SECONDS = 5.0
# For the others to read a result, and between two lines about those who are missing.
PATIENCE_SECONDS = 10.0
