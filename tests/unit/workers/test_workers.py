"""What workers send each other, without a network: each worker is a thread."""

import numpy as np
import pytest
from support.fake_workers import results_on_workers, run_on_workers

from tf_adasum.errors import see
from tf_adasum.workers import workers as module

COUNTS = [1, 2, 5]


def same(count, part):
    """What all workers got, which is the same."""
    results = results_on_workers(count, part)
    assert all(np.array_equal(result, results[0]) for result in results)
    return results[0]


@pytest.mark.parametrize("count", COUNTS)
def test_numbers_of_all_of_any_and_of_the_first(count):
    table = same(count, lambda own: own.gather([own.rank, -(2**62), own.count]))
    assert table.dtype == np.int64
    assert table.tolist() == [[rank, -(2**62), count] for rank in range(count)], "in their order"
    assert not same(count, lambda own: own.any(False))
    assert same(count, lambda own: own.any(own.rank == count - 1))
    number = same(count, lambda own: own.broadcast(10 + own.rank))
    assert number == 10 and isinstance(number, int)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_come_from_one_worker_whatever_the_others_hold(count, size, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    data = np.random.default_rng(size).bytes(size)
    rank = count - 1
    received = same(
        count, lambda own: own.broadcast_bytes(rank, data if own.rank == rank else b"other")
    )
    assert received == data


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
    outcomes = run_on_workers(
        len(values),
        lambda own: own.check_same("All need it.", values[own.rank], shown, code="TFA-405"),
    )
    assert {type(outcome) for outcome in outcomes} == {ValueError}
    assert {str(outcome) for outcome in outcomes} == {
        f"All need it. Received: {received} {see('TFA-405')}"
    }
