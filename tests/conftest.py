"""Settings that every test shares; this file also puts tests/, and so `oracle`, on the path."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest_plugins = ["compatibility"]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked as slow, too")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: needs --slow"))
