"""Settings that every test shares."""

import os
import signal

# A shell that starts the tests in the background, as `make test` does, has them ignore it, and
# every process that they start: as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# By default a trial at each start decides: tests say what carries the gradients.
os.environ.setdefault("TF_ADASUM_TRANSPORT", "tensorflow")

pytest_plugins = ["pytester", "support.keras_versions", "support.sampling", "support.compatibility"]
