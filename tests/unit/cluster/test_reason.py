"""Exceptions in one line."""

import pytest

from tf_adasum.cluster.error_file import reason_of

TRACE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 29, in <module>

  File "keras/src/backend/tensorflow/trainer.py", line 399, in fit

"""
OLD_TRACE = """Graph execution error:

Detected at node 'PyFunc' defined at (most recent call last):
    File "train.py", line 29, in <module>
      model.fit(x)
Node: 'PyFunc'
"""


@pytest.mark.parametrize("trace", [TRACE, OLD_TRACE])
def test_what_happened_at_a_node(trace):
    text = "the values differ\nReceived: 1\n\t [[{{node PyFunc}}]] [Op:__inference_f_12]"
    assert reason_of(RuntimeError(trace + text)) == "RuntimeError: the values differ"
    text = "2 root error(s) found.\n  (0) INTERNAL: no\n\t [[{{node PyFunc}}]]"
    assert reason_of(RuntimeError(trace + text)) == "RuntimeError: (0) INTERNAL: no"


def test_an_exception_of_python_within_tensorflow():
    text = TRACE + "KeyError: 'a'\nTraceback (most recent call last):\n\n\t [[{{node PyFunc}}]]"
    assert reason_of(RuntimeError(text)) == "KeyError: 'a'"


def test_other_exceptions():
    assert reason_of(ValueError("a\nb")) == "ValueError: a"
    of_keras = "Exception encountered when calling LSTM.call().\n\n\x1b[1mno rows\x1b[0m\n\nArgs"
    assert reason_of(ValueError(of_keras)) == "ValueError: no rows"
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert reason_of(SystemExit(0)) == "SystemExit"
    assert reason_of(SystemExit("no")) == "SystemExit: no"
    assert len(reason_of(ValueError("x" * 10**6))) < 400
