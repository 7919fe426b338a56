"""Settings that every test shares; this file also puts tests/, and so `oracle`, on the path."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest_plugins = ["compatibility"]


def pytest_addoption(parser):
    import sampling

    sampling.add_options(parser)


def pytest_ignore_collect(collection_path):
    import lanes  # TensorFlow, only when tests are read

    name = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if name in lanes.FILES_OF_THE_OTHER else None


def pytest_report_header():
    import lanes

    return [f"not in this lane: {name}: {why}" for name, why in lanes.FILES_OF_THE_OTHER.items()]


def pytest_collection_modifyitems(config, items):
    import lanes
    import sampling

    for item in items:
        reason = lanes.reason_to_skip(item.nodeid)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    sampling.keep_sample(config, items)
