"""Errors of TensorFlow if another worker is the cause: texts of TensorFlow 2.15 and 2.21."""

import pytest
import tensorflow as tf

from tf_adasum.compat.tensorflow import collective_error_of
from tf_adasum.health.diagnosis import CollectiveError

RESET = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 29, in <module>

Collective ops is aborted by: recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling \
/tensorflow.WorkerService/RecvBuf:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_multi_step_on_iterator_1215]"""
NESTED = """Collective ops is aborted by: Collective ops is aborted by: Socket closed
The error could be from a previous operation."""
FIRST = """Socket closed
Additional GRPC error information from remote target /job:chief/task:0 while calling RecvBuf:"""
UNHEALTHY = (
    "Error reported from /job:worker/task:1: The following tasks are unhealthy "
    "(stopped sending heartbeats)"
)
OTHER_CALL = "Collective instance 7 expected type 0 and data_type 9 but got type 1 and data_type 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RESET, CollectiveError("recvmsg:Connection reset by peer", ("worker 0",))),
        (NESTED, CollectiveError("Socket closed", ())),
        (FIRST, CollectiveError("Socket closed", ("chief 0",))),
        (
            f"Collective ops is aborted by: {UNHEALTHY}:\n/job:worker/replica:0/task:1",
            CollectiveError(UNHEALTHY, ("worker 1",)),
        ),
        (
            f"{OTHER_CALL}\n\t [[{{{{node Reduce}}}}]] [Op:f]",
            CollectiveError(OTHER_CALL, differ=True),
        ),
    ],
    ids=["reset", "nested", "first", "heartbeats", "other call"],
)
@pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.InternalError])
def test_what_broke_and_which_worker_it_was(kind, text, expected):
    assert collective_error_of(kind(None, None, text)) == expected


def test_errors_of_this_worker():
    assert collective_error_of(ValueError("Collective ops is aborted by: me")) is None
    assert collective_error_of(tf.errors.InternalError(None, None, "no memory")) is None
    own = tf.errors.UnavailableError(None, None, "the bucket does not answer")
    assert collective_error_of(own) == CollectiveError(), "it may come from others"
