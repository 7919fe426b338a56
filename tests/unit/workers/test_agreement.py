"""What all workers need to have in common: if they differ, all of them raise the same error."""

import pytest
import tensorflow as tf
from support.fake_workers import run_on_workers

import tf_adasum
from tf_adasum.aggregation import Scheme
from tf_adasum.errors import see
from tf_adasum.workers import agreement

INFINITE, UNKNOWN = tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY


def message_of(outcomes):
    """What all workers have raised; "" for nothing."""
    assert len({(type(outcome), str(outcome)) for outcome in outcomes}) == 1, "on all workers"
    return str(outcomes[0]) if isinstance(outcomes[0], ValueError) else ""


def assert_received(message, received, code):
    assert message.endswith(f"Received: {received} {see(code)}") if received else message == ""


@pytest.mark.parametrize(
    ("cardinalities", "received"),
    [
        ([0], ""),
        *(([each] * 3, "") for each in (7, INFINITE, UNKNOWN)),
        ([3, 4], "worker 0: 3; worker 1: 4"),
        ([3, 3, INFINITE], "workers 0, 1: 3; worker 2: infinite"),
        ([UNKNOWN, 3], "worker 0: unknown; worker 1: 3"),
    ],
)
def test_other_numbers_of_batches_are_named(cardinalities, received):
    def check(own):
        return agreement.check_same_cardinality(own, cardinalities[own.rank])

    message = message_of(run_on_workers(len(cardinalities), check))
    assert_received(message, received, "TFA-405")


@pytest.mark.parametrize(
    ("cardinalities", "expected"),
    [
        ([3, 3], True),
        ([INFINITE] * 3, True),
        ([3, 4, 3], False),
        ([UNKNOWN, 4], False),
        ([3, INFINITE, 4], "worker 0: 3; worker 1: infinite; worker 2: 4"),
    ],
)
def test_lengths_may_differ_unless_some_are_infinite(cardinalities, expected):
    def ask(own):
        return agreement.is_same_length(own, cardinalities[own.rank])

    outcomes = run_on_workers(len(cardinalities), ask)
    if isinstance(expected, str):
        assert "are infinite, and others end" in message_of(outcomes)
        assert_received(message_of(outcomes), expected, "TFA-405")
    else:
        assert outcomes == [expected] * len(cardinalities)


@pytest.mark.parametrize(
    ("shapes", "received"),
    [
        ([["a"]], ""),
        ([["a", "a"]] * 2, ""),
        ([["a", "b"]], "its replica 0: of a; its replica 1: of b"),
        ([["a"], ["b"]], "worker 0: of a; worker 1: of b"),
        (
            [["a", "a"], ["a", "b"], ["a", "a"]],
            "workers 0, 2: of a; worker 1: its replica 0: of a; its replica 1: of b",
        ),
        (
            [["a", "b"], ["a", "b"]],
            "worker 0: its replica 0: of a; its replica 1: of b; "
            "worker 1: its replica 0: of a; its replica 1: of b",
        ),
    ],
)
def test_other_gradients_are_named(shapes, received):
    """For each worker its local replicas' shapes; a shape "x" is that of a variable "of x"."""

    def check(own):
        of_own = shapes[own.rank]
        agreement.SameGradients(own).check([f"of {shape}" for shape in of_own], of_own)

    assert_received(message_of(run_on_workers(len(shapes), check)), received, "TFA-305")


def test_a_misspelt_variable_is_named(monkeypatch):
    for name in ("TRANSPROT", "RESTART_COUNT", "OF_SOMEBODY_ELSE"):
        monkeypatch.setenv(f"TF_ADASUM_{name}", "1")
    scheme = Scheme(tf_adasum.rules.Adasum(), 1)
    options = tf.distribute.experimental.CommunicationOptions()
    with pytest.warns(
        UserWarning, match="TRANSPROT has no effect. Do you mean .*TRANSPORT"
    ) as caught:
        agreement.settings(scheme, 1, options, "skip", "auto", 1)
    assert len(caught) == 1
