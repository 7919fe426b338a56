"""Settings that every test shares; this file also puts tests/, and so `oracle`, on the path."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest_plugins = ["compatibility"]
