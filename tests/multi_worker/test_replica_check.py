"""check_replicas and ReplicaCheck: replicas that differ are found, named, refused everywhere."""

import pytest
from scenarios import replica_check as scenarios
from support import stacks

from tf_adasum.errors import see


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_named(group, raised, path):
    kind, message = raised
    replica = group.replicas - 1
    assert kind == "ReplicasDiffer"
    worker = f" (worker {group.workers - 1})" if group.workers > 1 else ""
    assert repr(str(path)) in message
    assert message.endswith(f"on replica {replica}{worker} {see('TFA-508')}")


@on("1x2", "2x1", "2x2")
@pytest.mark.feature("`check_replicas`, `ReplicaCheck`: replicas with different weights are named")
class TestOneReplicaDiffers:
    def test_the_variable_and_the_replica_are_named_on_all(self, group):
        *_, last = scenarios.VARIABLES
        for result in group.run(scenarios.check_spoiled, replica=group.replicas - 1):
            assert [*result["before"]] == ["", ""]
            for name in scenarios.VARIABLES:
                for check in ("all", "model", "list"):
                    assert_named(group, result[f"{name} {check}"], result[f"{name} path"])
                assert [*result[f"{name} others"]] == ["", ""]
                assert name == last or [*result[f"{name} again"]] == ["", ""]
            if group.workers > 1:  # in one process nothing makes the replicas start differently
                assert_named(group, result["fit"], result[f"{last} path"])
            else:
                assert [*result["fit"]] == ["", ""]

    @pytest.mark.parametrize("every, step, found", [("epoch", 2, 4), (3, 2, 3)])
    def test_the_callback_ends_training(self, group, every, step, found):
        options = {"every": every, "name": "frozen", "replica": group.replicas - 1, "step": step}
        for result in group.run(scenarios.callback_while_training, **options):
            assert_named(group, result["raised"], stacks.in_model("frozen/kernel"))
            assert result["steps"] == found


@on("2x1")
@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.one_stack
def test_every_dtype_bit_by_bit(group, differs):
    for result in group.run(scenarios.check_values, differs=differs):
        for dtype in scenarios.DTYPES:
            kind, message = result[dtype]
            assert kind == ("ReplicasDiffer" if differs else ""), dtype
            assert (repr(dtype) in message) == differs


@on("2x1")
class TestWorkers:
    @pytest.mark.one_stack
    def test_zero_has_a_sign(self, group):
        for result in group.run(scenarios.negative_zero):
            assert result["raised"][0] == "ReplicasDiffer"

    @pytest.mark.one_stack
    def test_different_lists_are_refused_and_what_one_worker_keeps_is_left_out(self, group):
        for result in group.run(scenarios.different_lists):
            kind, message = result["raised"]
            assert kind == "ValueError" and "worker 0: 1 variable; worker 1: 2 variables" in message
            assert [*result["alive on one"]] == ["", ""]

    @pytest.mark.parametrize("every", [None, 2])
    @pytest.mark.one_stack
    def test_a_callback_that_not_all_have_is_refused_on_all(self, group, every):
        own = f"ReplicaCheck(every={every})" if every else "none"
        received = (
            f"Received: worker 0: ReplicaCheck(every='epoch'); worker 1: {own} {see('TFA-510')}"
        )
        for result in group.run(scenarios.callback_of_one_worker, every=every):
            kind, message = result["raised"]
            assert kind == "ValueError" and message.endswith(received)

    @pytest.mark.feature("a worker that starts `fit` with different weights is refused")
    def test_fit_refuses_to_start_from_other_weights(self, group):
        for result in group.run(scenarios.fit_from_other_weights):
            kind, message = result["raised"]
            assert kind == "ReplicasDiffer" and "embedding/embeddings" in message


# Every rule and every optimizer once, with two replicas; some of them with four.
COMBINATIONS = [
    *(("sgd", rule) for rule in scenarios.RULES),
    *((name, "adasum") for name in scenarios.OPTIMIZERS if name not in ("sgd", "adascale")),
    ("adascale", "mean"),
]
WITH_FOUR = [("sgd", "adacons"), ("delta, 3 local steps", "adasum"), ("adascale", "mean")]


@pytest.mark.parametrize(
    "group, optimizer, rule",
    [*(("2x1", *each) for each in COMBINATIONS), *(("2x2", *each) for each in WITH_FOUR)],
    indirect=["group"],
    scope="module",
)
@pytest.mark.feature("every rule and optimizer keeps the replicas' weights the same, bit for bit")
def test_replicas_stay_the_same(group, optimizer, rule):
    for result in group.run(scenarios.train_and_check, optimizer=optimizer, rule=rule, every=1):
        # Each of 2 x 2 steps, and at the start.
        assert result["checks"] == 2 * 2 + 1
