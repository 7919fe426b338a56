"""ReplicaCheck: when it checks, and whose models. What it finds is in tests/multi_worker."""

import types

import pytest

from tf_adasum.callbacks import ReplicaCheck
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy


@GradientAggregatingStrategy.register
class Counting:
    """A strategy of two replicas that counts checks."""

    num_replicas_in_sync = 2

    def __init__(self):
        self.checked = []

    def check_model(self, model):
        self.checked.append(model)


def steps_checked(check, epochs=2, together=1):
    """The steps after which a model was checked, in epochs of five; 0.5 more at their ends."""
    strategy, steps, done = Counting(), [], 0
    check.set_model(types.SimpleNamespace(distribute_strategy=strategy))
    check.on_train_begin()

    def note(step):
        steps.extend([step] * (len(strategy.checked) - len(steps)))

    for epoch in range(epochs):
        check.on_epoch_begin(epoch)
        for first in range(0, 5, together):
            batch = min(first + together, 5) - 1
            check.on_train_batch_end(batch)
            note(done + batch + 1)
        done += 5
        check.on_epoch_end(epoch)
        note(done + 0.5)
    return steps


@pytest.mark.parametrize(
    ("every", "together", "steps"),
    [
        ("epoch", 1, [5.5, 10.5]),
        (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (3, 1, [3, 6, 9]),
        (4, 3, [5, 8]),
        (1000, 1, []),
    ],
)
def test_checks_every_so_many_steps(every, together, steps):
    check = ReplicaCheck(every)
    assert steps_checked(check, together=together) == steps
    assert steps_checked(check, together=together) == steps, "another `fit` counts anew"


@pytest.mark.parametrize("every", [0, -1, 1.0, True, None, "step"])
def test_refuses_another_distance(every):
    message = f"`every` must be an int of 1 or more, or 'epoch'. Received: every={every!r}"
    with pytest.raises(ValueError, match=message):
        ReplicaCheck(every)


def test_another_strategy_of_several_replicas_is_refused():
    check = ReplicaCheck()
    other = types.SimpleNamespace(num_replicas_in_sync=2)
    check.set_model(types.SimpleNamespace(distribute_strategy=other))
    with pytest.raises(ValueError, match="Received: a model of SimpleNamespace"):
        check.on_train_begin()
    other.num_replicas_in_sync = 1
    check.on_train_begin()
    check.on_epoch_end(0)


def test_configuration():
    assert ReplicaCheck.from_config(ReplicaCheck(7).get_config()).every == 7
    assert ReplicaCheck(7).same_on_all_workers == "ReplicaCheck(every=7)"
