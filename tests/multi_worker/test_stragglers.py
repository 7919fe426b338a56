"""One worker is slower than the others: StragglerReport names it, on all of them."""

import pytest
from scenarios import assert_close, on
from scenarios import stragglers as scenarios


@on("2x1")
@pytest.mark.parametrize("slow", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_slow_dataset(group, slow):
    own, other = group.run(scenarios.train, slow=slow, seconds=0.05)
    assert_close([other], own)
    assert own["slowest_worker"].tolist()[1:] == [slow, slow]
    for epoch in (1, 2):
        steps = [own[f"step_ms/worker_{rank}"][epoch] for rank in (0, 1)]
        waiting = [own[f"waiting_ms/worker_{rank}"][epoch] for rank in (0, 1)]
        # The dataset sleeps for 50 ms in each step. After a stall of the machine, batches are ready
        # for some steps, so their median may be a little shorter.
        assert min(steps) >= 45 and steps[0] == pytest.approx(steps[1], rel=0.2)
        assert waiting[1 - slow] > 25, "of the 50 ms for which the other one sleeps"
        assert waiting[slow] < 0.5 * waiting[1 - slow]
