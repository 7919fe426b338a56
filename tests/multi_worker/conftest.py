"""Worker groups: one of a topology serves all modules, and only one is there at a time."""

import os
import pathlib

import pytest
from support.lanes import topology_of
from support.worker_group import WorkerGroup

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.transport import argument

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    """Bring the tests of a topology together, so that its group is started once.

    With `--dist loadgroup` of pytest-xdist, one process runs all tests of a topology. Over UCX, the
    cases with one worker are left out: it sends nothing.
    """
    own = [item for item in items if item.path.parent == HERE]
    items[:] = [item for item in items if item.path.parent != HERE]
    if os.environ.get(TRANSPORT) == argument.UCX:
        alone = [item for item in own if topology_of(item).startswith("1x")]
        config.hook.pytest_deselected(items=alone)
        own = [item for item in own if item not in alone]
    for item in own:
        if topology_of(item):
            item.add_marker(pytest.mark.xdist_group(topology_of(item)))
    items += sorted(own, key=topology_of)


class Groups:
    """The `WorkerGroup` of the topology that was asked for last."""

    def __init__(self, make_folder):
        self._make_folder, self._topology, self._group = make_folder, None, None

    def of(self, topology):
        if topology != self._topology or self._group.has_ended:
            self.close()
            workers, devices = map(int, topology.split("x"))
            fresh = topology == "2x1"  # most tests run on it
            self._group = WorkerGroup(workers, devices, self._make_folder(topology), fresh=fresh)
            self._topology = topology
        return self._group

    def close(self):
        if self._group:
            self._group.close()
        self._topology, self._group = None, None


@pytest.fixture(scope="session")
def groups(tmp_path_factory):
    started = Groups(tmp_path_factory.mktemp)
    yield started
    started.close()


@pytest.fixture
def group(request, groups):
    """A `WorkerGroup` of the topology that the test is parametrized with, e.g. "2x2".

    It is another one if the last test has ended it.
    """
    return groups.of(request.param)
