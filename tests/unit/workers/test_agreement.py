"""What all workers need to have in common: if they differ, all of them raise the same error."""

import pytest
import tensorflow as tf
from support.fake_workers import run_on_workers

import tf_adasum
from tf_adasum.aggregation import Scheme
from tf_adasum.errors import see
from tf_adasum.workers import agreement


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

    outcomes = run_on_workers(len(shapes), check)
    assert len({(type(outcome), str(outcome)) for outcome in outcomes}) == 1, "on all workers"
    assert isinstance(outcomes[0], ValueError) == bool(received)
    assert not received or str(outcomes[0]).endswith(f"Received: {received} {see('TFA-305')}")


def test_a_misspelt_variable_is_named(monkeypatch):
    for name in ("TRANSPROT", "RESTART_COUNT", "OF_SOMEBODY_ELSE"):
        monkeypatch.setenv(f"TF_ADASUM_{name}", "1")
    scheme = Scheme(tf_adasum.rules.Adasum(), 1)
    options = tf.distribute.experimental.CommunicationOptions()
    message = "TRANSPROT has no effect. Do you mean .*TRANSPORT"
    with pytest.warns(UserWarning, match=message) as caught:
        agreement.settings(scheme, 1, options, "skip", "auto", 1)
    assert len(caught) == 1
