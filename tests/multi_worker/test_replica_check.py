"""check_replicas and ReplicaCheck: replicas that differ are found, named, refused everywhere."""

from scenarios import on
from scenarios import replica_check as scenarios

from tf_adasum.errors import see


def assert_named(group, message, path):
    worker = f" (worker {group.workers - 1})" if group.workers > 1 else ""
    assert message.startswith("ReplicasDifferError: ") and repr(str(path)) in message
    assert message.endswith(f"on replica {group.replicas - 1}{worker} {see('TFA-508')}")


@on("1x2", "2x1", "2x2")
def test_the_variable_and_the_replica_are_named_on_all(group):
    *_, last = scenarios.VARIABLES
    for result in group.run(scenarios.check_spoiled, replica=group.replicas - 1):
        for name in scenarios.VARIABLES:
            for message in result[f"{name} errors"]:
                assert_named(group, message, result[f"{name} path"])
        assert not any(result["nothing"])
        if group.workers > 1:  # in one process nothing makes the replicas start differently
            assert_named(group, str(result["fit"]), result[f"{last} path"])
        else:
            assert str(result["fit"]) == ""
