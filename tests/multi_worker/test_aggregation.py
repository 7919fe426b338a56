"""Rules, radix plans, sparse gradients and read-outs on real workers and on logical devices."""

import numpy as np
import pytest
import tensorflow as tf
from scenarios import aggregation as scenarios
from scenarios import basics
from scenarios.aggregation import RULES, means_of_neighbours
from support import oracle, stacks
from support.worker_group import WorkerGroup

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
    pytest.param("2x4", [8], marks=pytest.mark.slow),
    ("2x4", [2, 2, 2]),
    pytest.param("2x4", [4, 2], marks=pytest.mark.slow),
]


def on(topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def by_plan(vectors, plan):
    """Adasum of groups of neighbours, level by level, on the vectors."""
    for radix in plan:
        vectors = [oracle.adasum(vectors[i : i + radix]) for i in range(0, len(vectors), radix)]
    return vectors[0]


def assert_combined(results, group, combine, rounding=ROUNDING):
    for number, gradient in enumerate(basics.known_gradients(group.replicas)):
        vectors = tf.cast(gradient, tf.float64).numpy().reshape(group.replicas, -1)
        expected = combine(vectors).reshape(gradient.shape[1:])
        # Where gradients cancel, what is left has the rounding of what was there.
        scale = max(np.abs(expected).max(initial=0), np.abs(vectors).max(initial=1e-300))
        for copies in results:
            for local in range(group.devices):
                combined = copies[f"{number}.{local}"]
                error = np.abs(combined - expected).max(initial=0) / scale
                assert error <= rounding[gradient.dtype.name], (number, gradient.dtype, error)
                np.testing.assert_array_equal(combined, results[0][f"{number}.0"])


@pytest.mark.feature("radix plans, such as `radix_plan=[2, 2]`")
@pytest.mark.parametrize(("group", "plan"), PLANS, indirect=["group"], scope="module")
@pytest.mark.one_stack
class TestPlans:
    def test_combines_as_the_tree_of_the_plan(self, group, plan):
        results = group.run(scenarios.reduce_by_plan, radix_plan=plan)
        # pairwise_combine, which local pairs of pairs take, multiplies in float32.
        is_pairwise = group.workers == 1 and plan == [2, 2]
        rounding = ROUNDING | ({"float32": 2e-6} if is_pairwise else {})
        assert_combined(results, group, lambda vectors: by_plan(vectors, plan), rounding)

    def test_every_plan_sends_the_same_bytes(self, group, plan):
        if group.workers == 1:
            pytest.skip("nothing is sent in one process")
        size = 96_000  # divisible by all replicas, and by the alignment of their shards
        for sent in group.run(scenarios.elements_sent, size=size, radix_plan=plan):
            assert (
                sent["sent"].tolist()
                == [2 * size * (group.replicas - 1) / group.replicas] * group.devices
            )


@on(["2x2"])
@pytest.mark.one_stack
class TestOnFourReplicas:
    @pytest.mark.feature("`local_reduction='mean'`: the rule across hosts")
    @pytest.mark.parametrize("averaged", [2, 4])
    def test_hosts_are_averaged_first(self, group, averaged):
        def combine(vectors):
            return oracle.adasum(means_of_neighbours(vectors, averaged))

        results = group.run(scenarios.reduce_by_plan, averaged=averaged)
        assert_combined(results, group, combine)

    @pytest.mark.feature("`wire_dtype`: gradients travel in 16 bits")
    @pytest.mark.parametrize(("wire_dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
    def test_wire_dtypes_round_each_gradient_once(self, group, wire_dtype, unit):
        results = group.run(scenarios.reduce_by_plan, wire_dtype=wire_dtype)
        # Half a unit for each of four gradients and for the result, of the largest element;
        # coefficients sum up to at most 4.
        rounding = {dtype: max(8 * unit, other) for dtype, other in ROUNDING.items()}
        assert_combined(results, group, oracle.adasum, rounding)
        exact = group.run(scenarios.reduce_by_plan)
        assert np.any(exact[0]["3.0"] != results[0]["3.0"]), "something was rounded"

    @pytest.mark.feature("the orthogonality of gradients in a custom loop")
    @pytest.mark.parametrize("options", [{}, {"averaged": 2}, {"radix_plan": [2, 2]}], ids=str)
    def test_orthogonality_is_that_of_the_vectors(self, group, options):
        for result in group.run(scenarios.orthogonality_of_known_gradients, **options):
            combined, separate = result["lengths"].T
            with np.errstate(invalid="ignore"):  # a variable without elements is NaN
                expected = combined / separate
            np.testing.assert_allclose(result["actual"], expected, rtol=1e-6)

    @pytest.mark.feature("a rule with non-finite coefficients is named, on all workers")
    def test_non_finite_coefficients_end_training_everywhere(self, group):
        messages = [str(each["message"]) for each in group.run(scenarios.message_of_a_bad_rule)]
        if any("TFA-501" in message for message in messages):
            group.close()  # no collective works any more
        for message in messages:
            assert "NotFiniteForZero() returned coefficients that are not finite" in message


@on(["1x2", "2x2"])
class TestTraining:
    def test_the_optimizer_gets_sparse_gradients(self, group):
        for result in group.run(scenarios.kinds_of_gradients):
            assert sorted(set(result["kinds"])) == ["IndexedSlices", "SymbolicTensor"]

    @pytest.mark.feature("custom loops with a rule that has a state")
    @pytest.mark.parametrize("built", [True, False])
    def test_custom_loops_keep_the_state(self, group, built):
        results = group.run(scenarios.custom_loop, built=built)
        for result in results:
            assert result["steps"].tolist() == [3]
            assert result["momentum"].shape == (1, group.replicas)
            assert (np.diff(result["momentum"][0]) >= 0).all(), "by rank"
            for name, value in result.items():
                np.testing.assert_array_equal(value, results[0][name])

    @pytest.mark.feature("`callbacks.OrthogonalityTracker`")
    def test_identical_data_has_orthogonality_one_nth(self, group):
        for result in group.run(scenarios.track_orthogonality, same_data=True):
            assert result["steps"].tolist() == [1, 2, 3, 4, 5, 6]
            np.testing.assert_allclose(result["values"], 1 / group.replicas, rtol=1e-5)

    def test_orthogonality_reaches_the_logs_while_it_is_tracked(self, group):
        results = group.run(scenarios.track_orthogonality, every=2)
        for result in results:
            values = result["values"]
            assert result["steps"].tolist() == [2, 4, 6]
            assert values.shape == (3, 5) and (values > 0).all() and (values <= 1 + 1e-6).all()
            np.testing.assert_allclose(result["overall"], [values[0, -1], values[1:, -1].mean()])
            np.testing.assert_allclose(
                result["first variable"], [values[0, 0], values[1:, 0].mean()]
            )
            assert result["later keys"].tolist() == ["loss"]
            assert result["measures"].tolist() == [True, False]
            np.testing.assert_array_equal(values, results[0]["values"])


@on(["1x2"])
@pytest.mark.one_stack
def test_scenarios_find_the_strategy_as_it_was_made(group):
    """Groups are shared: what one scenario sets must not reach the next."""
    group.run(basics.reduce_gradients, rule="sum")
    results = group.run(scenarios.reduce_as_constructed)
    assert_combined(results, group, oracle.adasum)


@on(["2x1"])
@pytest.mark.slow
def test_orthogonality_with_several_steps_per_execution_and_eagerly(group):
    at_once = group.run(scenarios.track_orthogonality, steps_per_execution=3)[0]
    assert at_once["steps"].tolist() == [3, 6]
    eager = group.run(scenarios.track_orthogonality, run_eagerly=True)[0]
    np.testing.assert_allclose(eager["values"][[2, 5]], at_once["values"], rtol=1e-4)


@on(["2x1"])
@pytest.mark.keras3_only("Keras 2 cannot load the state of metrics under any strategy")
def test_a_file_without_the_state_starts_it_anew(group, tmp_path):
    for result in group.run(scenarios.restore_other_state, folder=str(tmp_path)):
        assert "rule is reset, because the file has no state" in str(result["message"])
        assert np.isfinite(result["loss"]).all() and result["steps"].tolist() == [2]


@on(["1x2", "2x1"])
@pytest.mark.feature("a rule's state is saved with the model, and restored")
@pytest.mark.parametrize("way", ["keras file", "weights", "checkpoint"])
def test_restored_training_gives_the_same_numbers(group, way, tmp_path):
    for result in group.run(
        scenarios.save_and_go_on, folder=str(tmp_path), rule="adacons", way=way
    ):
        assert result["restored steps"].tolist() == [4] and result["restored momentum"].all()
        names = [name[9:] for name in result if name.startswith("unbroken ")]
        assert {"weight0", "momentum", "steps"} <= set(names)
        for name in names:
            np.testing.assert_array_equal(
                result[f"restarted {name}"], result[f"unbroken {name}"], err_msg=name
            )


@on(["2x1"])
@stacks.needs_own_backups
def test_a_backup_of_the_state_reaches_all_workers(group, tmp_path):
    results = group.run(scenarios.restore_backup, folder=str(tmp_path))
    assert results[0]["steps"].tolist() == [9]
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


@on(["2x1"])
@pytest.mark.one_stack
def test_groups_that_differ_between_workers_are_refused(group):
    for result in group.run(scenarios.different_groups):
        assert "in the same groups" in str(result["message"])
        assert "in group" in str(result["message"])


# Every variable for itself, all together, groups with a state, and TensorFlow's own reduction.
ON_HOSTS_WITH_TWO_DEVICES = ["adasum", "adasum model", "adacons groups", "mean"]


@pytest.mark.feature("`Embedding`: sparse gradients with every rule, never densified")
@pytest.mark.parametrize(
    ("group", "rule"),
    [
        ("1x2", "adacons groups"),
        *(("2x1", rule) for rule in RULES if rule not in ON_HOSTS_WITH_TWO_DEVICES),
        *(("2x2", rule) for rule in ON_HOSTS_WITH_TWO_DEVICES),
    ],
    indirect=["group"],
    scope="module",
)
def test_an_embedding_trains_as_its_dense_twin(group, rule):
    sparse = group.run(scenarios.train_text_model, rule=rule)
    dense = group.run(scenarios.train_text_model, rule=rule, one_hot=True)
    assert sparse[0].keys() == dense[0].keys()
    for actual in sparse:
        for name, expected in dense[0].items():
            np.testing.assert_allclose(actual[name], expected, err_msg=name, **FLOAT32_STEPS)
            np.testing.assert_array_equal(actual[name], sparse[0][name], err_msg=name)
    assert np.isfinite(sparse[0]["loss"]).all()


@pytest.mark.feature("`Embedding` with `steps_per_execution`")
@pytest.mark.parametrize("group", ["2x1", "2x2"], indirect=True, scope="module")
def test_an_embedding_in_a_loop_on_the_device(group):
    """Each iteration sends another number of rows."""
    one_by_one, together = (
        group.run(scenarios.train_text_model, rule="adasum", together=number) for number in (1, 3)
    )
    for name in one_by_one[0]:
        np.testing.assert_array_equal(together[1][name], one_by_one[0][name], err_msg=name)


@pytest.mark.slow
@pytest.mark.one_stack
def test_workers_share_a_host_if_their_addresses_do(tmp_path):
    options = {"local_reduction": "mean", "radix_plan": [2]}
    hosts = ["127.0.0.1", "127.0.0.2"]
    group = WorkerGroup(2, 2, tmp_path, hosts=hosts, options=options)
    try:
        results = group.run(scenarios.reduce_as_constructed)
    finally:
        group.close()
    assert_combined(results, group, lambda vectors: oracle.adasum(means_of_neighbours(vectors, 2)))
