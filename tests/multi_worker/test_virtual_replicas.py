"""Virtual replicas on any number of workers and devices train as that many real replicas."""

import numpy as np
import pytest
from scenarios import on
from scenarios import virtual_replicas as scenarios
from support.worker_group import WorkerGroup

pytestmark = [
    pytest.mark.keras3_only("virtual replicas need Keras 3"),
]

# Gradients are combined in another order of additions, in float32.
TOLERANCE = 1e-5


def assert_same(found, reference, names):
    for name in names:
        np.testing.assert_allclose(
            found[name], reference[name], rtol=0, atol=TOLERANCE, err_msg=name
        )


@on("1x8")
@pytest.mark.parametrize("optimizer", scenarios.OPTIMIZERS)
def test_fewer_devices_of_one_worker(group, optimizer):
    (found,) = group.run(
        scenarios.on_parts_of_the_devices, replicas=8, numbers=[4, 2, 1], optimizer=optimizer
    )
    names = [name.removeprefix("8 ") for name in found if name.startswith("8 ")]
    assert {"loss", "mae", "weight0"} <= set(names)
    for number in (4, 2, 1):
        own = {name: found[f"{number} {name}"] for name in names}
        assert_same(own, {name: found[f"8 {name}"] for name in names}, names)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["2x1", "2x2", "3x1"])
@pytest.mark.parametrize("sparse", [False, True])
def test_several_workers(topology, sparse, tmp_path):
    """12 virtual replicas: 6, 3 and 4 on each device."""
    workers, devices = map(int, topology.split("x"))
    arguments = {"optimizer": "momentum", "steps": 5, "sparse": sparse}
    found = []
    for number, (count, each) in enumerate([(workers, devices), (1, 12)]):
        own = {"virtual_replicas": 12}
        with WorkerGroup(count, each, tmp_path / str(number), options=own) as group:
            found.append(group.run(scenarios.train, **arguments))
    results, (reference,) = found
    for own in results:
        assert_same(own, reference, reference)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "delta"])
def test_a_job_that_loses_and_gains_workers_trains_the_same(optimizer, tmp_path):
    """4, 3, 2 and 4 workers with 12 virtual replicas, interrupted within epochs, shuffled."""
    hosts = [(4, 4), (3, 11), (2, 15), (4, 24)]

    def job(name, parts):
        (tmp_path / name).mkdir()
        for number, (workers, update) in enumerate(parts):
            folder, options = tmp_path / name / str(number), {"virtual_replicas": 12}
            with WorkerGroup(workers, 1, folder, options=options) as group:
                results = group.run(
                    scenarios.train_until,
                    folder=str(tmp_path / name / "backup"),
                    update=update,
                    optimizer=optimizer,
                )
            assert {int(each["updates"]) for each in results} == {update}
        return results[0]

    undisturbed, disturbed = job("undisturbed", [(1, 24)]), job("disturbed", hosts)
    assert_same(disturbed, undisturbed, undisturbed)
