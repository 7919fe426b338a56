"""Rules, radix plans, sparse gradients and read-outs on real workers and on logical devices."""

import numpy as np
import pytest
import tensorflow as tf
from scenarios import aggregation as scenarios
from scenarios import assert_close, basics, on
from support import oracle

# One rounding to the gradient's dtype, and for float32 sums of 1801 elements in between; plans of
# several levels round the shards of each level.
ROUNDING = {"float64": 1e-12, "float32": 4e-7, "float16": 2.0**-9, "bfloat16": 2.0**-6}

# The same sums in another order, over the four steps that are trained.
FLOAT32_STEPS = {"rtol": 2e-5, "atol": 2e-6}

PLANS = [
    ("1x4", [4]),
    ("1x4", [2, 2]),
    ("2x2", [4]),
    ("2x2", [2, 2]),
    ("3x1", [3]),
    ("3x2", [6]),
    ("3x2", [2, 3]),
    ("3x2", [3, 2]),
    ("2x4", [2, 2, 2]),
    # TensorFlow's all-to-all fails with so many devices: theirs is made of several.
    *(pytest.param("2x12", plan, marks=pytest.mark.slow) for plan in ([24], [2, 12])),
]


def by_plan(vectors, plan):
    """Adasum of groups of neighbours, level by level, on the vectors."""
    for radix in plan:
        vectors = [oracle.adasum(vectors[i : i + radix]) for i in range(0, len(vectors), radix)]
    return vectors[0]


def assert_combined(results, group, combine, rounding=ROUNDING, not_finite=None):
    for number, gradient in enumerate(basics.known_gradients(group.replicas, not_finite)):
        vectors = tf.cast(gradient, tf.float64).numpy().reshape(group.replicas, -1)
        expected = combine(vectors).reshape(gradient.shape[1:])
        # Where gradients cancel, what is left has the rounding of what was there.
        scale = np.abs(np.concatenate([expected.ravel(), vectors.ravel()]))
        largest = scale[np.isfinite(scale)].max(initial=0)
        for copies in results:
            for local in range(group.devices):
                combined, atol = copies[f"{number}.{local}"], rounding[gradient.dtype.name]
                np.testing.assert_allclose(combined, expected, rtol=0, atol=atol * largest)
                np.testing.assert_array_equal(combined, results[0][f"{number}.0"])


@pytest.mark.parametrize(("group", "plan"), PLANS, indirect=["group"])
@pytest.mark.version_independent
def test_combines_as_the_tree_of_the_plan(group, plan):
    bucket_bytes = 4000 if group.replicas < 24 else 0
    options = {"radix_plan": plan, "bytes_per_pack": bucket_bytes, "timeout": 240}
    results = group.run(scenarios.reduce_by_plan, **options)
    # pairwise_combine, which local pairs of pairs take, multiplies in float32.
    is_pairwise = group.workers == 1 and plan == [2, 2]
    rounding = ROUNDING | ({"float32": 2e-6} if is_pairwise else {})
    assert_combined(results, group, lambda vectors: by_plan(vectors, plan), rounding)


@on("2x2")
@pytest.mark.version_independent
class TestOnFourReplicas:
    @pytest.mark.parametrize("averaged", [2, 4])
    def test_hosts_are_averaged_first(self, group, averaged):
        def combine(vectors):
            neighbours = np.split(vectors, len(vectors) // averaged)
            return oracle.adasum([np.mean(own, axis=0) for own in neighbours])

        results = group.run(scenarios.reduce_by_plan, local_reduction_size=averaged)
        assert_combined(results, group, combine)

    @pytest.mark.parametrize(("wire_dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
    def test_wire_dtypes_round_each_gradient_once(self, group, wire_dtype, unit):
        results = group.run(scenarios.reduce_by_plan, wire_dtype=wire_dtype)
        # Half a unit for each of four gradients and for the result, of the largest element;
        # coefficients sum up to at most 4.
        rounding = {dtype: max(8 * unit, other) for dtype, other in ROUNDING.items()}
        assert_combined(results, group, oracle.adasum, rounding)
        exact = group.run(scenarios.reduce_by_plan)
        assert np.any(exact[0]["3.0"] != results[0]["3.0"]), "something was rounded"

    def test_non_finite_coefficients_end_training_everywhere(self, group):
        messages = [str(each["message"]) for each in group.run(scenarios.message_of_a_bad_rule)]
        if any("TFA-501" in message for message in messages):
            group.close()  # no collective works any more
        for message in messages:
            assert "NotFiniteForZero() returned coefficients that are not finite" in message


@on("1x2", "2x2")
class TestTraining:
    @pytest.mark.parametrize("built", [True, False])
    def test_custom_loops_keep_the_state(self, group, built):
        results = group.run(scenarios.custom_loop, built=built)
        for result in results:
            assert result["steps"].tolist() == [3]
            assert result["momentum"].shape == (1, group.replicas)
            assert (np.diff(result["momentum"][0]) >= 0).all(), "by rank"
        assert_close(results[1:], results[0])

    def test_orthogonality_reaches_the_logs_while_it_is_tracked(self, group):
        results = group.run(scenarios.track_orthogonality, every=2)
        for result in results:
            values = result["values"]
            assert result["steps"].tolist() == [2, 4, 6]
            assert values.shape == (3, 5) and (values > 0).all() and (values <= 1 + 1e-6).all()
            epochs = np.stack([values[0], values[1:].mean(axis=0)])
            np.testing.assert_allclose(result["overall"], epochs[:, -1])
            np.testing.assert_allclose(result["first variable"], epochs[:, 0])
            assert result["later keys"].tolist() == ["loss"]
            assert result["measures"].tolist() == [True, False]
            np.testing.assert_array_equal(values, results[0]["values"])


@on("2x1")
@pytest.mark.slow
def test_orthogonality_with_several_steps_per_execution_and_eagerly(group):
    at_once = group.run(scenarios.track_orthogonality, steps_per_execution=3)[0]
    assert at_once["steps"].tolist() == [3, 6]
    eager = group.run(scenarios.track_orthogonality, run_eagerly=True)[0]
    np.testing.assert_allclose(eager["values"][[2, 5]], at_once["values"], rtol=1e-4)


@pytest.mark.parametrize(
    ("group", "rule", "options"),
    [
        pytest.param("1x2", "adacons groups", {}, marks=pytest.mark.always),
        ("1x2", "adasum", {"optimizer": "delta"}),
        ("1x2", "adasum", {"optimizer": "delta of 2"}),
        *(("2x1", rule, {}) for rule in ("adacons", "adacons variable", "sum")),
        # Each iteration of a loop on the device sends another number of rows.
        pytest.param("2x1", "adasum", {"steps_per_execution": 3}, marks=pytest.mark.always),
        ("2x2", "adasum", {"steps_per_execution": 3}),
        # Every variable for itself, all together, groups with a state, TensorFlow's own reduction.
        *(
            ("2x2", rule, {})
            for rule in ("adasum", "adasum of the model", "adacons groups", "mean")
        ),
    ],
    indirect=["group"],
)
def test_an_embedding_trains_as_its_dense_twin(group, rule, options):
    sparse = group.run(scenarios.train_text_model, rule=rule, **options)
    options = options | {"one_hot": True, "steps_per_execution": 1}
    dense = group.run(scenarios.train_text_model, rule=rule, **options)
    # Adam spreads the roundings.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if "optimizer" in options else FLOAT32_STEPS
    assert_close(sparse, dense[0], **tolerance)
    assert_close(sparse[1:], sparse[0])
    assert np.isfinite(sparse[0]["loss"]).all()
