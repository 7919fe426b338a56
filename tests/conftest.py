"""Settings that every test shares."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest_plugins = ["support.compatibility"]


def pytest_addoption(parser):
    from support import sampling

    sampling.add_options(parser)


def pytest_ignore_collect(collection_path):
    from support import stacks  # TensorFlow, only when tests are read

    name = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if name in stacks.FILES_OF_THE_OTHER else None


def pytest_report_header():
    from support import stacks

    return [f"not in this lane: {name}: {why}" for name, why in stacks.FILES_OF_THE_OTHER.items()]


def pytest_collection_modifyitems(config, items):
    from support import sampling, stacks

    for item in items:
        reason = stacks.reason_to_skip(item.nodeid)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    sampling.keep_sample(config, items)
