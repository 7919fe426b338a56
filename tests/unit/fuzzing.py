"""How many random cases, and which: the same ones on every run unless more are asked for.

TF_ADASUM_FUZZ=10 takes ten times as many, other ones for each `--hypothesis-seed`.
"""

import os

import hypothesis

MORE = int(os.environ.get("TF_ADASUM_FUZZ", "0"))
PHASES = [
    one for one in hypothesis.Phase if one.name not in os.environ.get("NOPHASE", "").split(",")
]


def cases(count):
    """Settings of a test that takes so many random cases."""
    return hypothesis.settings(
        max_examples=count * max(1, MORE),
        derandomize=not MORE,
        database=None,
        deadline=None,  # TensorFlow traces, and the machine may be busy
        print_blob=True,
        phases=PHASES,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.function_scoped_fixture,  # they are the same for all cases
        ],
    )
