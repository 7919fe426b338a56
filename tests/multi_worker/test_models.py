"""Models of many layers and inputs of every kind train as in one process or as arrays do."""

import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import models as scenarios
from support import keras_versions

# The same sums in another order, over about ten steps.
FLOAT32_STEPS = {"rtol": 2e-5, "atol": 2e-6}


@on("2x2")
@pytest.mark.feature("a CNN with synchronized `BatchNormalization`")
@pytest.mark.feature("a Transformer encoder with `Embedding`")
@pytest.mark.feature("several inputs and outputs, shared and frozen layers")
@pytest.mark.slow
def test_a_model_of_many_layers_trains_as_in_one_process(group):
    expected = scenarios.train_multi_task(None)
    assert_close(group.run(scenarios.train_multi_task), expected, **FLOAT32_STEPS)


# The rows, a kind of input, and kinds that have the same rows and weights. TensorFlow splits a
# short last batch in another way if it does not know the full size.
SAME_INPUTS = [
    (72, "arrays", ["dataset", "dataset of unknown length"]),
    (72, "sample_weight", ["dataset with sample_weight", "dataset with class_weight"]),
    (64, "arrays", ["PyDataset", "endless dataset per worker"]),
]
if not keras_versions.IS_KERAS_2:  # whose `fit` demands steps_per_epoch
    SAME_INPUTS[-1][-1].append("dataset per worker")


@on("2x2")
@pytest.mark.feature(
    "`tf.data`, `PyDataset`, `distribute_datasets_from_function`, `sample_weight`, `class_weight`"
)
@pytest.mark.slow
def test_inputs_of_every_kind_train_as_arrays(group):
    for rows, kind, kinds in SAME_INPUTS:
        for actual in group.run(scenarios.fit_inputs, rows=rows, kinds=[kind, *kinds]):
            for name, value in actual.items():
                expected = actual[f"{kind}/{name.partition('/')[2]}"]
                np.testing.assert_allclose(value, expected, err_msg=name, **FLOAT32_STEPS)
