"""What works in Keras on one device works under the strategy: models, inputs, Keras's own tests."""

import functools

import numpy as np
import pytest
from scenarios import models as scenarios
from support import stacks

# The same sums in another order, over about ten steps.
FLOAT32_STEPS = {"rtol": 2e-5, "atol": 2e-6}


# Workers x devices of each: tracing a model for several replicas takes seconds, so that most tests
# run on one topology.
TOPOLOGIES = ["1x2", "2x2"]


def everywhere(topologies=TOPOLOGIES):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], err_msg=name, **FLOAT32_STEPS)


def assert_learns(results, remaining, loss="loss"):
    """The loss falls to a fraction of what it was; every replica has the same finite variables."""
    copies = [name for name in results[0] if name.startswith("copy")]
    assert copies
    for actual in results:
        assert actual[loss][-1] < remaining * actual[loss][0], actual[loss]
        for name in copies:
            first = results[0][f"{name.split('.')[0]}.0"]
            assert np.isfinite(first).all()
            np.testing.assert_array_equal(actual[name], first, err_msg=name)


@everywhere()
@pytest.mark.feature("Keras's own tests of distribution, re-stated")
class TestWhatKerasTests:
    @pytest.mark.keras3_only("variables of Keras 3")
    def test_variables_are_mirrored(self, group):
        for actual in group.run(scenarios.make_variables):
            assert list(actual["classes"]) == ["MirroredVariable"] * 2
            assert actual["copies"] == group.devices
            assert list(actual["aggregations"]) == ["NONE", "SUM"]
            assert list(actual["synchronizations"]) == ["ON_WRITE", "ON_READ"]
            np.testing.assert_array_equal(actual["seeds"], [[42, 0]] * group.devices)

    def test_each_replica_runs_the_model_on_its_own_values(self, group):
        for worker, actual in enumerate(group.run(scenarios.call_in_replicas)):
            first = worker * group.devices
            expected = [np.full([8, 2], 4.0 * (first + local)) for local in range(group.devices)]
            np.testing.assert_array_equal(actual["outputs"], expected)

    @pytest.mark.keras3_only("the iterator of Keras 3 by itself")
    def test_an_epoch_gives_every_row_to_one_replica(self, group):
        results = group.run(scenarios.iterate_over_epoch, rows=100, batch_size=16)
        for step in range(7):
            batch = [
                actual[f"{step}.{local}"] for actual in results for local in range(group.devices)
            ]
            expected = np.arange(100)[16 * step : 16 * (step + 1)]
            assert [len(rows) for rows in batch] == [len(expected) // group.replicas] * len(batch)
            np.testing.assert_array_equal(np.sort(np.concatenate(batch)), expected)

    def test_a_shuffled_epoch_gives_every_row_to_one_replica(self, group):
        arguments = {"rows": 48, "batch_size": 8}
        for actual in group.run(scenarios.rows_of_shuffled_epoch, **arguments):
            np.testing.assert_array_equal(actual["seen"], np.ones(48))


@everywhere(["1x2"])
class TestAsOnOneDevice:
    def test_the_optimizer_does_what_it_does_on_one_device(self, group):
        expected = scenarios.apply_gradients(None)
        for actual in group.run(scenarios.apply_gradients):
            assert_close(actual, expected)

    def test_a_regularizer_does_what_it_does_on_one_device(self, group):
        expected = scenarios.fit_with_regularizer(None)
        for actual in group.run(scenarios.fit_with_regularizer):
            assert_close(actual, expected)

    @pytest.mark.feature("`summary`")
    def test_summary_is_the_one_of_one_device(self, group):
        scenarios.keras.backend.clear_session()  # numbers the layers anew
        expected = str(scenarios.summarize(None)["summary"])
        assert "Trainable params" in expected
        for actual in group.run(scenarios.summarize):
            assert str(actual["summary"]) == expected


@everywhere(["2x2"])
class TestModels:
    @pytest.mark.feature("a CNN with synchronized `BatchNormalization`")
    def test_cnn_with_synchronized_batch_normalization_learns(self, group):
        results = group.run(scenarios.train_cnn)
        assert_learns(results, remaining=0.4)
        for actual in results:
            assert actual["evaluated accuracy"] > 0.9
            assert (actual["moving variance"] != 1).all()

    @pytest.mark.feature("a Transformer encoder with `Embedding`")
    def test_transformer_learns(self, group):
        assert_learns(group.run(scenarios.train_transformer), remaining=0.5)

    @pytest.mark.feature("several inputs and outputs, shared and frozen layers")
    def test_multi_task_model_learns(self, group):
        results = group.run(scenarios.train_multi_task)
        for loss in ["loss", "total_loss", "sign_loss", "total_mae"]:
            assert_learns(results, remaining=0.7, loss=loss)
        for actual in results:
            weighted = 0.2 * actual["total_loss"] + 2.0 * actual["sign_loss"]
            np.testing.assert_allclose(actual["loss"], weighted, rtol=1e-5)
            assert actual["sign_accuracy"][-1] > 0.85
            assert actual["frozen change"] == 0

    @pytest.mark.feature("a subclassed model with its own `train_step`, unused layers")
    def test_subclassed_model_with_its_own_step_and_a_spare_layer_learns(self, group):
        results = group.run(scenarios.train_custom_step)
        assert_learns(results, remaining=0.7)
        for actual in results:
            assert actual["spare change"] == 0


@pytest.fixture(scope="module")
def fit_arrays(group):
    """A function that says what `fit` makes of so many rows, as arrays, in batches of 16."""

    @functools.cache
    def fit(rows, kind="arrays"):
        return group.run(scenarios.fit_input, kind=kind, rows=rows)[0]

    return fit


@everywhere(["2x2"])
@pytest.mark.feature(
    "`tf.data`, `PyDataset`, `distribute_datasets_from_function`, `sample_weight`, `class_weight`"
)
class TestInputs:
    @pytest.mark.parametrize("kind", ["dataset", "dataset of unknown length"])
    def test_equals_arrays(self, group, fit_arrays, kind):
        """The last batch is short."""
        for actual in group.run(scenarios.fit_input, kind=kind, rows=72):
            assert_close(actual, fit_arrays(72))

    @pytest.mark.parametrize(
        "kind",
        [
            "PyDataset",
            pytest.param("dataset per worker", marks=stacks.needs_endless_fit),
            "endless dataset per worker",
        ],
    )
    def test_equals_arrays_of_full_batches(self, group, fit_arrays, kind):
        """TensorFlow splits a short batch in another way where it does not know the full size."""
        for actual in group.run(scenarios.fit_input, kind=kind, rows=64):
            assert_close(actual, fit_arrays(64))

    @pytest.mark.parametrize("kind", ["dataset with sample_weight", "dataset with class_weight"])
    def test_equals_weighted_arrays(self, group, fit_arrays, kind):
        weighted = fit_arrays(72, "sample_weight")
        assert np.abs(weighted["weight0"] - fit_arrays(72)["weight0"]).max() > 1e-3
        for actual in group.run(scenarios.fit_input, kind=kind, rows=72):
            assert_close(actual, weighted)


@everywhere(["2x2"])
@pytest.mark.feature("`validation_data`, `validation_split`")
class TestValidation:
    @pytest.mark.parametrize("split", [False, True], ids=["data", "split"])
    def test_validation_equals_one_process(self, group, split):
        for actual in group.run(scenarios.fit_with_validation, split=split):
            weights = [actual[f"weight{index}"] for index in range(len(actual) - 1)]
            expected = scenarios.evaluate_weights(weights)
            np.testing.assert_allclose(actual["logs"], expected, **FLOAT32_STEPS)
