"""UCX carries gradients: the same bits as over TensorFlow's.

`TF_ADASUM_TRANSPORT=ucx` runs any other test with workers over UCX.
"""

import numpy as np
import pytest
from scenarios import transport as scenarios
from support import meshes
from support.worker_group import WorkerGroup


@pytest.fixture(scope="module", autouse=True)
def ucx():
    meshes.opened()


@pytest.fixture(scope="module")
def ucx_group(request, tmp_path_factory):
    workers, devices = map(int, request.param.split("x"))
    folder = tmp_path_factory.mktemp(f"ucx{request.param}")
    with WorkerGroup(workers, devices, folder, options={"transport": "ucx"}) as group:
        yield group


def assert_same_bits(results):
    for result in results:
        names = [name for name in result if name.startswith("ucx ")]
        assert names and len(result) == 2 * len(names)
        for name in names:
            expected = result[name.replace("ucx ", "tensorflow ", 1)]
            np.testing.assert_array_equal(result[name], expected, err_msg=name)


@pytest.mark.parametrize(
    "ucx_group",
    ["2x1", "2x2", pytest.param("4x1", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)
class TestSameBits:
    @pytest.mark.keras3_only("Keras 2 averages each metric in a collective of its own")
    def test_a_step_has_few_operations(self, ucx_group):
        """A small model's step takes as long as its operations and its exchanges."""
        for result in ucx_group.run(scenarios.operations_of_a_step):
            assert result["collectives"] == 0
            # The gradients of each replica; nobody reads the logs.
            assert result["exchanges"] == ucx_group.devices
            assert result["conditions"] == 0
            assert result["nodes"] <= 275 * ucx_group.devices

    @pytest.mark.slow
    def test_reductions(self, ucx_group):
        plans = [{}, {"rule": "sum"}, {"wire_dtype": "bfloat16"}]
        if ucx_group.replicas == 4:
            plans += [{"radix_plan": [2, 2], "wire_dtype": "float16"}, {"local_reduction_size": 2}]
        for options in plans:
            assert_same_bits(ucx_group.run(scenarios.reduce_known_gradients, **options))
        assert_same_bits(ucx_group.run(scenarios.train_large))

    @pytest.mark.parametrize(
        "options",
        [
            {"rule": "adasum", "steps_per_execution": 3},
            {"rule": "adasum of the model", "optimizer": "adam", "gathers_small_buckets": True},
            {"rule": "adacons groups", "optimizer": "adam"},
            {"rule": "mean", "optimizer": "adam"},
        ],
        ids=lambda options: options["rule"],
    )
    def test_training(self, ucx_group, options):
        results = ucx_group.run(scenarios.train, **options)
        assert_same_bits(results)
        for result in results:
            np.testing.assert_array_equal(result["ucx weight0"], results[0]["ucx weight0"])
