"""A killed training resumes with every row of its epoch once, and with the same bits."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

from scenarios import on
from scenarios import resuming_data as scenarios

# `make test` resumes each kind of data, and one kind at each place; `make test-slow` does the rest.
CASES = [
    pytest.param(kind, place, marks=[pytest.mark.always] * is_chosen)
    for kind in scenarios.DATA
    for place in scenarios.PLACES
    for is_chosen in [place == "later epoch" or kind == "shuffled, global seed"]
]


@on("2x1")
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_resumes_with_the_same_rows(group, tmp_path, kind, place):
    def run(stage):
        arguments = {"kind": kind, "place": place, "folder": str(tmp_path)}
        return group.run(scenarios.train, stage=stage, **arguments)

    stages = [run(stage) for stage in ("unbroken", "killed", "resumed")]
    assert scenarios.compared(kind, place, *stages) == (0, 0, True)
