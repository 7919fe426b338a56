"""ReplicaCheck: when it checks, and whose models. What it finds is in tests/multi_worker."""

import types

import pytest

from tf_adasum.callbacks import ReplicaCheck
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy


@GradientAggregatingStrategy.register
class Strategy:
    """A strategy of two replicas, with a function that checks a model."""

    num_replicas_in_sync = 2

    def __init__(self, check_model):
        self._check_model = check_model


def steps_checked(check, epochs=2, steps_per_execution=1):
    """The steps after which a model was checked, in epochs of five; 0.5 more at their ends."""
    steps, step = [], 0
    strategy = Strategy(lambda model: steps.append(step))
    check.set_model(types.SimpleNamespace(distribute_strategy=strategy))
    check.on_train_begin()
    for epoch in range(epochs):
        check.on_epoch_begin(epoch)
        for last in [*range(steps_per_execution, 5, steps_per_execution), 5]:
            step = 5 * epoch + last
            check.on_train_batch_end(last - 1)
        step += 0.5
        check.on_epoch_end(epoch)
    return steps


@pytest.mark.parametrize(
    ("every", "steps_per_execution", "steps"),
    [
        ("epoch", 1, [5.5, 10.5]),
        (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (3, 1, [3, 6, 9]),
        (4, 3, [5, 8]),
        (1000, 1, []),
    ],
)
def test_checks_every_so_many_steps(every, steps_per_execution, steps):
    check = ReplicaCheck(every)
    assert steps_checked(check, steps_per_execution=steps_per_execution) == steps
    assert steps_checked(check, steps_per_execution=steps_per_execution) == steps, (
        "another `fit` counts anew"
    )


def test_another_strategy_of_several_replicas_is_refused():
    check = ReplicaCheck()
    other = types.SimpleNamespace(num_replicas_in_sync=2)
    check.set_model(types.SimpleNamespace(distribute_strategy=other))
    with pytest.raises(ValueError, match="Received: a model of SimpleNamespace"):
        check.on_train_begin()
    other.num_replicas_in_sync = 1
    check.on_train_begin()
    check.on_epoch_end(0)
