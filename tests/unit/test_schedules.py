"""LinearScalingWarmup against its formula in exact arithmetic."""

import json
import math
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.schedules import LinearScalingWarmup

Schedules = keras.optimizers.schedules

# The factor is float64; it is rounded to float32, and so is its product: 2 · 6e-8.
TOLERANCE = 2.0**-23

STEPS = [0, 1, 2, 3, 7, 16, 17, 18, 40, 99, 100, 101, 250]


@keras.saving.register_keras_serializable("test_schedules")
class StepItself(Schedules.LearningRateSchedule):
    """The step that it is asked for, float64: shows ⌊t T / n⌋ itself."""

    def __call__(self, step):
        assert step.dtype == tf.int64
        return tf.cast(step, tf.float64)

    def get_config(self):
        return {}


def factor(t, scale, warmup, iterations):
    """1 + (S - 1) min(t / (w n), 1), exactly."""
    warmup_iterations = Fraction(warmup) * iterations
    progress = min(Fraction(t) / warmup_iterations, 1) if warmup_iterations else 1
    return 1 + (Fraction(scale) - 1) * progress


OPTIONS = {
    "LSW": {"scale": 8, "total_steps": 900},
    "LSW+": {"scale": 8, "total_steps": 900, "iterations": 180},
    "uneven": {"scale": 7, "total_steps": 1001, "warmup": 0.2, "iterations": 333},
    "fraction": {"scale": 2.5, "total_steps": 101, "warmup": 0.3},
    "longer": {"scale": 3, "total_steps": 17, "iterations": 100},
    "no warmup": {"scale": 4, "total_steps": 400, "warmup": 0},
    "all warmup": {"scale": 4, "total_steps": 400, "warmup": 1},
    "one": {"scale": 1, "total_steps": 100},
}


@pytest.mark.parametrize("how", ["eager", "traced", "xla"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_follows_its_formula(options, how):
    schedule = LinearScalingWarmup(StepItself(), **options)
    constant = LinearScalingWarmup(0.25, **options)
    n = options.get("iterations", math.ceil(options["total_steps"] / Fraction(options["scale"])))
    assert schedule.iterations == n

    def both(step):
        return schedule(step), constant(step)

    both = both if how == "eager" else tf.function(both, jit_compile=how == "xla")
    for t in STEPS:
        wanted = factor(t, options["scale"], options.get("warmup", 5 / 90), n)
        scaled, flat = both(tf.constant(t, tf.int64))
        inner = t * options["total_steps"] // n
        assert scaled.dtype == tf.float64 and flat.dtype == tf.float32
        np.testing.assert_allclose(scaled, float(inner * wanted), rtol=1e-15)
        np.testing.assert_allclose(flat, float(wanted / 4), rtol=TOLERANCE)


@pytest.mark.parametrize("total_steps", [2**24 + 3, 2**31 + 11, 10**9 + 7])
def test_the_inner_step_is_exact_for_long_runs(total_steps):
    """float32 would miss it by a hundred steps, int32 would overflow."""
    iterations = total_steps - 2
    schedule = LinearScalingWarmup(
        StepItself(), scale=1, total_steps=total_steps, iterations=iterations
    )
    for t in [1, iterations // 2 + 1, iterations - 1, iterations]:
        assert int(schedule(tf.constant(t, tf.int64))) == t * total_steps // iterations


def cosine():
    return Schedules.CosineDecay(0.3, 100, warmup_target=0.5, warmup_steps=10)


@pytest.mark.parametrize("iterations", [None, 40])
@pytest.mark.parametrize("inner", [cosine, StepItself, lambda: 0.1])
def test_serialization(inner, iterations):
    schedule = LinearScalingWarmup(
        inner(), scale=4, total_steps=100, warmup=0.25, iterations=iterations
    )
    config = schedule.get_config()
    assert config["iterations"] == iterations
    serialized = json.loads(json.dumps(Schedules.serialize(schedule)))
    assert serialized["registered_name"] == "tf_adasum>LinearScalingWarmup"
    for again in (Schedules.deserialize(serialized), LinearScalingWarmup.from_config(config)):
        assert again.get_config() == config
        assert [float(again(t)) for t in STEPS] == [float(schedule(t)) for t in STEPS]
