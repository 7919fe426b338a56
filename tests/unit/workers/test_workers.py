"""What workers tell each other, without a network: each worker is a thread."""

import numpy as np
import pytest
from support.fake_workers import each_of

import tf_adasum
from tf_adasum.workers import workers as module

COUNTS = [1, 2, 5]


def rows_of(outcomes):
    """What all workers got, which is the same."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    assert all(np.array_equal(outcome, outcomes[0]) for outcome in outcomes)
    return outcomes[0]


@pytest.mark.parametrize("count", COUNTS)
def test_gather_keeps_the_order_of_the_ranks(count):
    table = rows_of(each_of(count, lambda own: own.gather([own.rank, -(2**62), own.count])))
    assert table.dtype == np.int64
    assert table.tolist() == [[rank, -(2**62), count] for rank in range(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_any_worker_is_enough(count):
    assert not rows_of(each_of(count, lambda own: own.any(False)))
    assert rows_of(each_of(count, lambda own: own.any(own.rank == count - 1)))


@pytest.mark.parametrize("count", COUNTS)
def test_all_get_what_the_first_one_has(count):
    number = rows_of(each_of(count, lambda own: own.from_first(10 + own.rank)))
    assert number == 10 and isinstance(number, int)
    assert rows_of(each_of(count, lambda own: own.from_first([own.rank, 7]))).tolist() == [0, 7]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_come_from_one_worker_whatever_the_others_hold(count, size, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    data = np.random.default_rng(size).bytes(size)
    rank = count - 1
    received = rows_of(
        each_of(count, lambda own: own.bytes_from(rank, data if own.rank == rank else b"other"))
    )
    assert received == data


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("value", ["SGD(0.1)", "", "ü" * 1000, 3, None])
def test_nothing_is_raised_where_all_have_the_same(count, value):
    assert rows_of(each_of(count, lambda own: own.check_same("Needed.", value))) is None


def messages_of(count, part):
    outcomes = each_of(count, part)
    assert all(type(outcome) is ValueError for outcome in outcomes), "on all workers"
    assert len({str(outcome) for outcome in outcomes}) == 1, "the same"
    return str(outcomes[0])


def test_all_workers_name_what_each_of_them_has():
    values = ["a, ü", "a", "", "a", "long " * 100]
    message = messages_of(5, lambda own: own.check_same("All need it.", values[own.rank]))
    assert message == (
        f"All need it. Received: worker 0: a, ü; workers 1, 3: a; worker 2: ; worker 4: {values[4]}"
    )


def test_what_is_shown_may_be_other_than_what_is_compared():
    def differ(own):
        own.check_same("All need it.", f"digest {own.rank}", shown="a name")

    assert messages_of(2, differ).endswith("Received: worker 0: a name; worker 1: a name")

    def agree(own):
        own.check_same("All need it.", "digest", shown=f"name {own.rank}")

    assert rows_of(each_of(2, agree)) is None


def test_a_strategy_of_one_process_has_one_worker():
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    workers = strategy.workers
    assert (workers.rank, workers.count) == (0, 1)
    assert workers.gather([3, 4]).tolist() == [[3, 4]]
    assert workers.bytes_from(0, b"abc") == b"abc"
