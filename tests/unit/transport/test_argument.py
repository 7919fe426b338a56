"""Which transport a strategy takes, by its argument and by the variable."""

import pytest

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.transport import argument


@pytest.mark.parametrize(
    ("given", "variable", "message"),
    [
        ("mpi", "ucx", "`transport` must be one of auto, tensorflow, ucx. .*transport='mpi'"),
        (3, None, "`transport` must be one of .* Received: transport=3"),
        (None, "UCX", "variable TF_ADASUM_TRANSPORT must be .* TF_ADASUM_TRANSPORT='UCX'"),
    ],
)
def test_another_name_is_refused(given, variable, message):
    environment = {} if variable is None else {TRANSPORT: variable}
    with pytest.raises(ValueError, match=message):
        argument.requested(given, ["CPU:0"], environment)


def test_ucx_carries_no_gradients_of_gpus():
    with pytest.raises(ValueError, match=r"GPU:0, GPU:1\).*Received: transport='ucx' .*TFA-213"):
        argument.requested("ucx", ["GPU:0", "GPU:1"], {})
    assert argument.requested("auto", ["GPU:0"], {}) == "auto", "which other workers may have, too"
    assert "NCCL (devices GPU:0)" in argument.unsupported_reason(["CPU:0", "GPU:0"])
    assert argument.unsupported_reason(["/device:CPU:0", "cpu:1"]) == ""


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, None, "auto"),
        (None, "ucx", "ucx"),
        ("auto", "tensorflow", "auto"),
        ("ucx", "tensorflow", "ucx"),
    ],
)
def test_the_argument_counts_before_the_variable(given, variable, expected):
    environment = {} if variable is None else {TRANSPORT: variable}
    assert argument.requested(given, ["CPU:0", "CPU:1"], environment) == expected
