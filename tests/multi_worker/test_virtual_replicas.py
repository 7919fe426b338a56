"""Virtual replicas on any number of workers and devices train as that many real replicas."""

import pytest
from scenarios import assert_close, on
from scenarios import virtual_replicas as scenarios
from support.worker_group import WorkerGroup

pytestmark = pytest.mark.keras3_only("virtual replicas need Keras 3")

# Gradients are combined in another order of additions, in float32.
TOLERANCE = {"rtol": 0, "atol": 1e-5}


@on("1x8")
@pytest.mark.parametrize("optimizer", scenarios.OPTIMIZERS)
def test_fewer_devices_of_one_worker(group, optimizer):
    (found,) = group.run(
        scenarios.on_parts_of_the_devices, replicas=8, numbers=[4, 2, 1], optimizer=optimizer
    )
    real, *fewer = (
        {name[2:]: value for name, value in found.items() if name[0] == number} for number in "8421"
    )
    assert {"loss", "mae", "weight0"} <= real.keys()
    assert_close(fewer, real, **TOLERANCE)


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
    assert_close(results, reference, **TOLERANCE)


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
    assert_close([disturbed], undisturbed, **TOLERANCE)
