"""How many random cases a test takes, and which.

By default it takes a fifth of them, the same ones if the same modules have been loaded: Hypothesis
draws some of the constants in them. TF_ADASUM_FUZZ=1 takes all, and other ones for each
`--hypothesis-seed`; 10 ten times as many.
"""

import os

import hypothesis
import hypothesis.strategies as st

SHORT_TEXTS = st.text(max_size=9)
TIMES = int(os.environ.get("TF_ADASUM_FUZZ", "0"))


def fuzz_settings(count):
    """Settings of a test that takes so many random cases."""
    return hypothesis.settings(
        max_examples=count * TIMES or max(5, count // 5),
        derandomize=not TIMES,
        database=None,
        deadline=None,  # TensorFlow traces, and the machine may be busy
        print_blob=True,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.function_scoped_fixture,  # they are the same for all cases
        ],
    )


def json_values(keys=SHORT_TEXTS):
    """A strategy for any JSON value; `keys` is that for the keys of its objects."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | SHORT_TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner),
        max_leaves=5,
    )
