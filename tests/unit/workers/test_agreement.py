"""What all workers need to have in common: where they differ, all of them raise the same."""

import pytest
import tensorflow as tf
from support.fake_workers import each_of

import tf_adasum
from tf_adasum.aggregation import Scheme
from tf_adasum.errors import see
from tf_adasum.workers import agreement

INFINITE, UNKNOWN = tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY


def message_of(outcomes):
    """What all workers have raised; "" for nothing."""
    assert len({str(outcome) for outcome in outcomes}) == 1, "the same on all workers"
    assert len({type(outcome) for outcome in outcomes}) == 1
    return str(outcomes[0]) if isinstance(outcomes[0], ValueError) else ""


def checked(cardinalities):
    def check(own):
        return agreement.check_same_cardinality(own, cardinalities[own.rank])

    return message_of(each_of(len(cardinalities), check))


@pytest.mark.parametrize("cardinality", [0, 7, INFINITE, UNKNOWN])
@pytest.mark.parametrize("count", [1, 3])
def test_equal_numbers_of_batches(cardinality, count):
    assert checked([cardinality] * count) == ""


@pytest.mark.parametrize(
    ("cardinalities", "received"),
    [
        ([3, 4], "worker 0: 3; worker 1: 4"),
        ([3, 3, INFINITE], "workers 0, 1: 3; worker 2: infinite"),
        ([UNKNOWN, 3], "worker 0: unknown; worker 1: 3"),
    ],
)
def test_other_numbers_of_batches_are_named(cardinalities, received):
    message = checked(cardinalities)
    assert "dataset of the same number of batches" in message
    assert message.endswith(f"Received: {received} {see('TFA-405')}")


def lengths(cardinalities):
    def ask(own):
        return agreement.is_same_length(own, cardinalities[own.rank])

    return each_of(len(cardinalities), ask)


def test_datasets_of_other_lengths_are_told_apart():
    assert lengths([3, 3]) == [True] * 2
    assert lengths([INFINITE] * 3) == [True] * 3
    assert lengths([3, 4, 3]) == [False] * 3
    assert lengths([UNKNOWN, 4]) == [False] * 2


def test_infinite_datasets_go_with_infinite_ones():
    message = message_of(lengths([3, INFINITE, 4]))
    assert "are infinite, and others end" in message
    assert message.endswith(
        f"Received: worker 0: 3; worker 1: infinite; worker 2: 4 {see('TFA-405')}"
    )


def gradients(shapes_of_workers, times=1):
    """For each worker its local replicas' shapes; a shape "x" is that of a variable "of x"."""

    def check(own):
        same = agreement.SameGradients(own)
        shapes = shapes_of_workers[own.rank]
        for _ in range(times):
            same.check([f"of {shape}" for shape in shapes], shapes)

    return message_of(each_of(len(shapes_of_workers), check))


@pytest.mark.parametrize("shapes", [[["a"]], [["a", "a"]], [["a"]] * 3, [["a", "a"]] * 2])
def test_gradients_of_the_same_shapes(shapes):
    assert gradients(shapes) == ""


@pytest.mark.parametrize(
    ("shapes", "received"),
    [
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
    message = gradients(shapes)
    assert message.startswith("All replicas have to reduce the gradients of the same variables")
    assert message.endswith(f"Received: {received} {see('TFA-305')}")


def test_workers_ask_once_for_each_shape():
    def calls(own):
        asked, original = [], own.check_same
        own.check_same = lambda *arguments, **more: asked.append(original(*arguments, **more))
        same = agreement.SameGradients(own)
        for shape in ("a", "b", "a", "a", "b"):
            same.check([f"of {shape}"], [shape])
        return len(asked)

    assert each_of(2, calls) == [2, 2]


def test_a_misspelt_variable_is_named(monkeypatch):
    monkeypatch.setenv("TF_ADASUM_TRANSPROT", "ucx")
    monkeypatch.setenv("TF_ADASUM_RESTART_COUNT", "1")
    monkeypatch.setenv("TF_ADASUM_OF_SOMEBODY_ELSE", "1")
    scheme = Scheme(tf_adasum.rules.Adasum(), 1)
    options = tf.distribute.experimental.CommunicationOptions()
    with pytest.warns(UserWarning, match="TRANSPROT has no effect. Do you mean .*TRANSPORT"):
        agreement.terms(scheme, 1, options, "skip", "auto")
