"""Which lines of a worker's stderr the launcher leaves out, with workers that only write them."""

import pytest
from support.launching import run

# As TensorFlow 2.21 has written them.
HIDDEN = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795348209.550645   25372 port.cc:153] oneDNN custom operations are on.",
]
# As others have reported it of 2.15 and 2.18 for GPUs.
HIDDEN += [
    "2023-12-01 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] "
    "Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one "
    "has already been registered",
    "E0000 00:00:1730497080.565334   55183 cuda_blas.cc:1418] Unable to register cuBLAS factory: "
    "Attempting to register factory for plugin cuBLAS when one has already been registered",
]
# As TensorFlow 2.21 has written it of a worker that was killed, and 2.15 and earlier write it.
PEER = ':UNKNOWN:Error received from peer  {grpc_message:"recvmsg:Connection reset by peer"}'
GOES_ON = [
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
    "calling /tensorflow.WorkerService/RecvBuf:",
    PEER,
    "The error could be from a previous operation. Restart your program to reset.",
]
ABORTED = [
    "E0000 00:00:1795429932.988983    8693 ring_alg.cc:291] Aborting RingGather with UNAVAILABLE: "
    "Collective ops is aborted by: worker 0 (127.0.0.1:61356) was lost.",
    *GOES_ON,
    "E0000 00:00:1795429944.581418    9463 base_collective_executor.cc:252] "
    "BaseCollectiveExecutor::StartAbort UNAVAILABLE: recvmsg:Connection reset by peer",
    *GOES_ON,
    "2023-12-01 10:00:00.123456: E tensorflow/core/common_runtime/base_collective_executor.cc:249] "
    "BaseCollectiveExecutor::StartAbort CANCELLED: worker 1 was lost",
]
SHOWN = [
    "Traceback (most recent call last):",
    '  File "train.py", line 7',
    *GOES_ON,
    "E0000 00:00:1795429944.581418    9463 base_collective_executor.cc:252] "
    "BaseCollectiveExecutor::StartAbort INVALID_ARGUMENT: Incompatible shapes",
    *GOES_ON,
    "E0000 00:00:1730497080.565334   55183 cuda_blas.cc:1418] failed to create cublas handle",
    "E0000 00:00:1795348199.984059   25055 add_port.cc:83] Failed to add port to server",
    "E0000 00:00:1795348199.984137   25055 grpc_server_lib.cc:618] UNKNOWN: Could not start",
    "F0000 00:00:1795348199.984137   25055 device.h:18] Check failed",
    "W0000 00:00:1795348266.253352   28600 dataset.cc:997] Input will not be optimized",
    "E1122 11:50:08.587380391   25217 server_chttp2.cc:40] {}",
    "I1122 11:50:08.587380 140123 train.py:12] absl.logging of the user's",
    "I0000 00:00:1795348209.550645   25372 train.py:153] a file in Python",
    "> I0000 00:00:1795348209.550645   25372 port.cc:153] oneDNN",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR?",
    "the user's own",
    "",
]
ALL = ABORTED + SHOWN + HIDDEN + ABORTED


@pytest.mark.parametrize(
    ("level", "options", "seen"),
    [
        (None, [], SHOWN),
        ("0", [], ALL),
        ("x", [], ALL),
        ("2", ["--verbose"], ALL),
    ],
    ids=str,
)
def test_the_launcher_leaves_them_out_of_stderr(script, monkeypatch, level, options, seen):
    path = script(f"for line in {ALL!r}:\n    print(line); print(line, file=sys.stderr)\n")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    ended = run("-n", 2, *options, path)
    for text, expected in ((ended.stdout, ALL), (ended.stderr, seen)):
        of_workers = sorted(text.splitlines(), key=lambda line: line[:10])  # each in its order
        assert of_workers == [f"[worker {rank}] {line}" for rank in (0, 1) for line in expected]
