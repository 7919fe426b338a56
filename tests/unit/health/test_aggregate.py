"""The statuses of all workers as one value: nothing changes, and many equal ones are short."""

import dataclasses
import json

import hypothesis
import hypothesis.strategies as st
from support.fuzzing import fuzz_settings

from tf_adasum.health import aggregate
from tf_adasum.health.aggregate import message_with, statuses_in
from tf_adasum.health.diagnosis import Status

STATUS = st.builds(
    Status,
    state=st.sampled_from(["running", "failed", "lost"]),
    why=st.sampled_from(["", "a reason", "é" * 4000]),
    collectives_entered=st.integers(0, 3),
    waiting_seconds=st.sampled_from([0.0, 1.5, 12.25]),
    calls=st.sampled_from(["", "[]"]),
)


@fuzz_settings(100)
@hypothesis.given(st.dictionaries(st.integers(1, 30), STATUS, max_size=30), STATUS)
def test_what_is_sent_arrives(others, own):
    sent = {0: own, **others}
    message = json.loads(json.dumps(message_with(sent)))
    found = statuses_in(message, 0, 31)
    assert len(json.dumps(json.dumps(message))) < 1 << 16
    for rank, status in found.items():
        calls = status.calls if rank else own.calls
        seconds = sent[rank].waiting_seconds
        assert dataclasses.replace(sent[rank], calls=calls, waiting_seconds=0.0) == (
            dataclasses.replace(status, waiting_seconds=0.0)
        )
        assert abs(status.waiting_seconds - seconds) < 0.051
    if len({status.why for status in sent.values() if len(status.why) > 100}) == 0:
        assert found.keys() == sent.keys()


def test_of_too_many_the_ones_that_end_the_training_are_sent():
    statuses = {rank: Status("running", location=f"{'x' * 200}:{rank}") for rank in range(1000)}
    statuses[700] = Status("lost", "it has ended")
    statuses[701] = dataclasses.replace(statuses[701], waiting_seconds=40.0)
    found = statuses_in({"statuses": aggregate.aggregated(statuses)}, 0, 1000)
    assert {700, 701} <= found.keys() and 100 < len(found) < 1000
