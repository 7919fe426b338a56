"""The times that the store, the start, the failure detector and the launcher share, in seconds."""

POLL_SECONDS = 0.1  # between two looks at what another thread or process changes
MOMENT_SECONDS = 0.5  # for something that is about to happen, such as the end of an output
HEARTBEAT_SECONDS = 1.0  # between two signs of life, two updates, or two tries
# For another process to accept a connection, or to read what was sent last.
ANSWER_SECONDS = 2.0
# A program that does not answer for this time is gone, has no secret, or fails in another way.
LEASE_SECONDS = 5.0
# For the others to read a result, and between two lines about those who are missing.
PATIENCE_SECONDS = 10.0
NOTICE_SECONDS = 30.0  # between two lines about something else that lasts
