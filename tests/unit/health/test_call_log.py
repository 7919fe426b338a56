"""The log of what workers do together, and where two logs part."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_adasum.health.call_log import KEPT, SENT, CallLog, parsed

names = st.lists(st.sampled_from("abc"), max_size=3 * SENT)


def log_of(entries):
    log = CallLog()
    for entry in entries:
        log.note(entry)
    return log


@given(names, names)
def test_two_logs_part_at_their_first_difference(own, theirs):
    sent = log_of(theirs).to_send()
    found = log_of(own).first_difference(sent)
    differing = [n for n, pair in enumerate(zip(own, theirs, strict=False), 1) if len({*pair}) > 1]
    numbers = [each.number for each in parsed(sent) if each.number <= len(own)]
    after = [number for number in numbers if differing and number >= differing[0]]
    if not after:
        assert found is None
    else:  # if it was sent; else the first entry that was
        number = after[0]
        assert [each.number for each in found] == [number, number]
        assert [each.name for each in found] == [own[number - 1], theirs[number - 1]]


def test_a_change_is_named_after_many_calls_that_are_the_same():
    own, other = (["calls fit", *calls, *["calls f"] * 99] for calls in (["a", "f"], ["b", "f"]))
    mine, theirs = log_of(own).first_difference(log_of(other).to_send())
    assert (mine.name, theirs.name) == ("a", "b")


def test_names_may_differ_where_something_else_counts():
    ours, theirs = CallLog(), CallLog()
    ours.note("creates the variable dense (float32[3])", same="float32[3]")
    theirs.note("creates the variable dense_1 (float32[3])", same="float32[3]")
    assert ours.first_difference(theirs.to_send()) is None


def test_what_is_sent_is_bounded():
    log = log_of(["x" * 10_000, "y" * 10_000] * KEPT)
    assert len(log.to_send()) < 4000, "what a status may hold"


def test_a_call_after_a_failure_begins_anew():
    ours, theirs = log_of("ab"), log_of("a")  # the failure has cut one off
    for log in ours, theirs:
        log.begin_anew(7)
        log.note("calls fit")
    assert ours.first_difference(theirs.to_send()) is None


def test_what_a_worker_does():
    log = CallLog()
    assert log.doing() == ""
    with log.call("fit"):
        log.epoch(2)
        assert log.doing() == "in fit, epoch 2"
        with log.call("evaluate"):
            assert log.doing() == "in evaluate within fit, epoch 2"
    assert log.doing() == "after fit, epoch 2"


def test_each_thread_has_its_own_calls():
    log, seen = CallLog(), []

    def predict():
        with log.call("predict"):
            seen.append(log.doing())

    with log.call("fit"):
        thread = threading.Thread(target=predict)
        thread.start()
        thread.join()
        log.epoch(2)
        assert (seen, log.doing()) == (["in fit"], "in fit, epoch 2")
    assert [entry.name for entry in parsed(log.to_send())] == [
        *("calls fit", "calls predict", "begins epoch 2 of fit")
    ]


@pytest.mark.parametrize("sent", ["", "1", "{}", "[[1, 2]]", '[["1", 2, "a"]]', "[" * 5000])
def test_nonsense_is_not_compared(sent):
    assert parsed(sent) == []
    assert log_of("ab").first_difference(sent) is None
