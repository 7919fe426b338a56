"""Worker groups: each is started once per module and topology."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from group import WorkerGroup


@pytest.fixture(scope="module")
def group(request, tmp_path_factory):
    """A `WorkerGroup` of the topology that the test is parametrized with, e.g. "2x2"."""
    workers, devices = map(int, request.param.split("x"))
    workers_group = WorkerGroup(workers, devices, tmp_path_factory.mktemp(request.param))
    yield workers_group
    workers_group.close()


@pytest.fixture(scope="module")
def stock_group(request, tmp_path_factory):
    """The same under TensorFlow's own MultiWorkerMirroredStrategy."""
    workers, devices = map(int, request.param.split("x"))
    folder = tmp_path_factory.mktemp(f"stock{request.param}")
    workers_group = WorkerGroup(workers, devices, folder, strategy="stock")
    yield workers_group
    workers_group.close()
