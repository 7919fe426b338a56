"""What workers send each other, without a network: each worker is a thread."""

import numpy as np
import pytest
from support.fake_workers import run_on_workers

import tf_adasum
from tf_adasum.workers import workers as module

COUNTS = [1, 2, 5]


def same_of(outcomes):
    """What all workers got, which is the same."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    assert all(np.array_equal(outcome, outcomes[0]) for outcome in outcomes)
    return outcomes[0]


@pytest.mark.parametrize("count", COUNTS)
def test_numbers_of_all_of_any_and_of_the_first(count):
    table = same_of(run_on_workers(count, lambda own: own.gather([own.rank, -(2**62), own.count])))
    assert table.dtype == np.int64
    assert table.tolist() == [[rank, -(2**62), count] for rank in range(count)], "in their order"
    assert not same_of(run_on_workers(count, lambda own: own.any(False)))
    assert same_of(run_on_workers(count, lambda own: own.any(own.rank == count - 1)))
    number = same_of(run_on_workers(count, lambda own: own.broadcast(10 + own.rank)))
    assert number == 10 and isinstance(number, int)
    assert same_of(run_on_workers(count, lambda own: own.broadcast([own.rank, 7]))).tolist() == [
        0,
        7,
    ]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_come_from_one_worker_whatever_the_others_hold(count, size, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    data = np.random.default_rng(size).bytes(size)
    rank = count - 1
    received = run_on_workers(
        count, lambda own: own.broadcast_bytes(rank, data if own.rank == rank else b"other")
    )
    assert same_of(received) == data


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("value", ["SGD(0.1)", "", "ü" * 1000, 3, None])
def test_nothing_is_raised_if_all_have_the_same(count, value):
    def part(own):
        own.check_same("Needed.", value, shown=f"{value} of {own.rank}")

    assert same_of(run_on_workers(count, part)) is None


@pytest.mark.parametrize(
    ("values", "shown", "received"),
    [
        (
            ["a, ü", "a", "", "a", "long " * 100],
            None,
            f"worker 0: a, ü; workers 1, 3: a; worker 2: ; worker 4: {'long ' * 100}",
        ),
        (["digest 0", "digest 1"], "a name", "worker 0: a name; worker 1: a name"),
    ],
)
def test_all_workers_name_what_each_of_them_has(values, shown, received):
    options = {} if shown is None else {"shown": shown}
    outcomes = run_on_workers(
        len(values), lambda own: own.check_same("All need it.", values[own.rank], **options)
    )
    assert {type(outcome) for outcome in outcomes} == {ValueError}
    assert {str(outcome) for outcome in outcomes} == {f"All need it. Received: {received}"}


def test_a_strategy_of_one_process_has_one_worker():
    workers = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])._workers
    assert (workers.rank, workers.count) == (0, 1)
    assert workers.gather([3, 4]).tolist() == [[3, 4]]
    assert workers.broadcast_bytes(0, b"abc") == b"abc"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_users_ask_for_the_place_of_a_worker(rank):
    place = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    place._workers = module.Workers(rank, 3, None, None)
    assert (place.rank, place.num_workers, place.is_first_worker) == (rank, 3, rank == 0)
