"""What users set from outside of the script."""

import pytest

from tf_adasum import environment_variables
from tf_adasum.environment_variables import START_TIMEOUT

pytestmark = pytest.mark.version_independent


def test_how_long_to_wait_at_the_start():
    assert environment_variables.start_timeout(None, {}) == 60.0
    assert environment_variables.start_timeout(None, {START_TIMEOUT: ""}) == 60.0
    assert environment_variables.start_timeout(None, {START_TIMEOUT: "900"}) == 900.0
    assert environment_variables.start_timeout(7.0, {START_TIMEOUT: "900"}) == 7.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1 minute", " ", "١x"])
def test_a_timeout_that_is_none(text):
    for given in (None, 7.0):
        with pytest.raises(ValueError, match=START_TIMEOUT) as raised:
            environment_variables.start_timeout(given, {START_TIMEOUT: text})
        assert str(raised.value).endswith(f"Received: {START_TIMEOUT}={text!r}")
