"""Settings that every test shares."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest_plugins = ["pytester", "support.stacks", "support.sampling", "support.compatibility"]
