"""`predict`, `evaluate` and the `..._on_batch` methods give what one process gives."""

import functools

import numpy as np
import pytest
from scenarios import predict as scenarios

# Workers x devices of each. Tracing for several replicas takes seconds: where the order of the
# rows does not matter, fewer topologies do.
TOPOLOGIES = ["1x1", "1x2", "2x1", "2x2", "3x1", "3x2"]
SOME_TOPOLOGIES = ["1x2", "2x2"]

# Rows/batch size: what the replicas can share evenly, what leaves some of them with fewer rows,
# and what leaves some of them with none.
ARRAYS = ["500/64", "33/32", "35/32", "100/30", "7/32", "1/32"]
DATASETS = ["101/32"]
KINDS_OF_DATASETS = [
    "dataset",
    "dataset of unknown length",
    "first of two outputs",
    "second of two outputs",
]
CASES = [*ARRAYS, *(f"{kind} {case}" for kind in KINDS_OF_DATASETS for case in DATASETS)]


# Means of at most 101 float32 numbers in another order, and three updates by such means.
FLOAT32_MEANS = {"rtol": 1e-5, "atol": 1e-6}


def everywhere(topologies=TOPOLOGIES):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@pytest.fixture(scope="module")
def predictions(group):
    """Every worker's predictions for all cases."""
    return group.run(scenarios.predict, arrays=ARRAYS, datasets=DATASETS)


@functools.cache
def one_process(scenario, **arguments):
    return scenario(None, **arguments)


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], err_msg=name, **FLOAT32_MEANS)


@everywhere()
@pytest.mark.feature("`predict`: every row once and in order, any number of rows")
@pytest.mark.parametrize("case", CASES)
def test_predict_gives_every_row_once_and_in_order(predictions, case):
    rows = int(case.split("/")[0].split()[-1])
    for predicted in predictions:
        np.testing.assert_array_equal(predicted[case], scenarios.rows_from(1, rows))


@everywhere(["2x2"])
@pytest.mark.keras3_only("Keras 2 traces recurrent layers in another way")
@pytest.mark.feature("the first `predict` and `evaluate` of one row, by recurrent layers")
def test_the_first_call_takes_fewer_rows_than_replicas(group):
    expected = one_process(scenarios.first_calls_of_recurrent_models)
    for actual in group.run(scenarios.first_calls_of_recurrent_models):
        assert_close(actual, expected)


@everywhere(["2x1"])
@pytest.mark.feature("`predict` of bfloat16, bool, int64")
@pytest.mark.parametrize(
    "dtype",
    [
        "int64",
        "bfloat16",
        "bool",
    ],
)
def test_predict_gives_dtype(group, dtype):
    expected = scenarios.rows_from(1, 7)
    for actual in group.run(scenarios.predict_with_dtype, rows=7, dtype=dtype):
        assert actual["dtype"] == dtype
        np.testing.assert_array_equal(actual["rows"], expected > 0 if dtype == "bool" else expected)


@everywhere(SOME_TOPOLOGIES)
@pytest.mark.parametrize("weights", ["none", "sample_weight"])
def test_evaluate_equals_one_process(group, weights):
    """101 rows in batches of 32 leave replicas with fewer rows than others."""
    expected = one_process(scenarios.evaluate, rows=101, weights=weights)
    for actual in group.run(scenarios.evaluate, rows=101, weights=weights):
        assert_close(actual, expected)


@everywhere(SOME_TOPOLOGIES)
@pytest.mark.feature("`train_on_batch`, `test_on_batch`, `predict_on_batch`")
class TestOnBatch:
    def test_predict_gives_every_row_once_and_in_order(self, group):
        for predicted in group.run(scenarios.predict_on_batch, rows=[1, 12, 13]):
            for count in [1, 12, 13]:
                rows = scenarios.rows_from(1, count)
                np.testing.assert_array_equal(predicted[f"{count} row"], rows)
                np.testing.assert_array_equal(predicted[f"{count} twice"], 2 * rows.repeat(3, 1))

    @pytest.mark.parametrize("weights", ["sample_weight"])
    def test_test_equals_one_process(self, group, weights):
        """13 rows are no multiple of the number of replicas."""
        expected = one_process(scenarios.evaluate_on_batch, rows=13, weights=weights)
        for actual in group.run(scenarios.evaluate_on_batch, rows=13, weights=weights):
            assert_close(actual, expected)

    @pytest.mark.parametrize("weights", ["sample_weight", "class_weight"])
    def test_train_equals_fit(self, group, weights):
        """Each replica gets its part of the batch, as `fit` hands it out."""
        rows = 13 if group.replicas == 2 else 15  # 7 and 6; 4, 4, 4 and 3
        arguments = {"rows": rows, "weights": weights}
        expected = group.run(scenarios.train, **arguments, on_batch=False)[0]
        first_loss = one_process(scenarios.train, **arguments, on_batch=True)["loss"][0]
        for actual in group.run(scenarios.train, **arguments, on_batch=True):
            assert_close(actual, expected)
            np.testing.assert_allclose(actual["loss"][0], first_loss, **FLOAT32_MEANS)

    @pytest.mark.keras3_only("train_on_batch of Keras 2 splits the batch, with messages of its own")
    def test_what_is_no_batch_is_refused_on_all_workers(self, group):
        for messages in group.run(scenarios.wrong_batches):
            assert "at least one. Received: arrays of 0, 0 rows" in str(messages["empty"])
            assert "Received: arrays of 10, 9 rows" in str(messages["different lengths"])
            assert "cannot be specified at the same time" in str(messages["both weights"])
            assert "train_on_batch(np.asarray(x), ...)" in str(messages["lists"])
            assert "test_on_batch(np.asarray(y), ...)" in str(messages["targets in a list"])
            assert "predict_on_batch(np.asarray(x), ...)" in str(messages["rows in a list"])
            assert str(messages["weights as a list"]) == ""
