"""LAMB's arguments, with exclusions of variables, and its configuration."""

import json
import warnings

import pytest

# With Keras 2, LAMB is the LAMB of Addons: see test_addons.py.
pytest.importorskip("keras", minversion="3")

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.optimizers import LAMB


def test_config_round_trip():
    options = {
        "learning_rate": 0.5,
        "beta_1": 0.8,
        "beta_2": 0.9,
        "epsilon": 1e-4,
        "weight_decay": 0.3,
        "exclude_from_weight_decay": ["bias", "norm"],
        "exclude_from_layer_adaptation": [],
        "use_ema": True,
        "ema_momentum": 0.8,
        "ema_overwrite_frequency": 3,
        "loss_scale_factor": 4.0,
        "gradient_accumulation_steps": 2,
        "name": "mine",
        "global_clipnorm": 3.0,
    }
    config = LAMB(**options).get_config()
    assert json.loads(json.dumps(config)) == config
    assert {name: config[name] for name in options} == options
    assert LAMB.from_config(config).get_config() == config
    serialized = keras.optimizers.serialize(LAMB(**options))
    assert serialized["registered_name"] == "tf_adasum>LAMB"
    assert keras.optimizers.deserialize(serialized).get_config() == config


def test_exclusions_match_paths_of_layers():
    keras.utils.set_random_seed(5)
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.LayerNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(LAMB(0.1, 0.9, 0.999, 1e-6, 0.1, "dense(_[0-9]+)?/kernel$"), "mse")
    before = [one.numpy() for one in model.trainable_variables]
    x = np.random.RandomState(6).standard_normal((32, 4)).astype("float32")
    model.train_on_batch(x, np.sum(x[:, :2], axis=1, keepdims=True))
    kinds = set()
    for one, old in zip(model.trainable_variables, before, strict=True):
        kind = one.path.rpartition("/")[2]
        if kind in ("kernel", "gamma"):  # the others start at 0
            kinds.add(kind)
            change = np.linalg.norm(one.numpy() - old) / np.linalg.norm(old)
            # The trust ratio makes every step η ‖w‖ long.
            assert (abs(change - 0.1) < 1e-6) == (kind == "gamma"), (one.path, change)
    assert kinds == {"kernel", "gamma"}


def test_one_warning_names_the_patterns_that_match_nothing():
    variables = [tf.Variable([1.0], name=name) for name in ("dense/kernel", "dense/bias")]
    optimizer = LAMB(
        exclude_from_weight_decay=["bias", "layernorm"],
        exclude_from_layer_adaptation=["scale", "layernorm", "kernel"],
    )
    with pytest.warns(UserWarning) as caught:
        optimizer.build(variables)
    (warning,) = [str(one.message) for one in caught if "LAMB" in str(one.message)]
    assert "by 'layernorm', 'scale', because" in warning
    assert "dense/kernel, dense/bias" in warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LAMB(exclude_from_weight_decay=["bias", "kernel"]).build(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beta_1", 1.0),
        ("beta_2", -0.1),
        ("epsilon", -1e-9),
        ("weight_decay", float("inf")),
        ("exclude_from_weight_decay", ["bias", "("]),
        ("exclude_from_weight_decay", {"bias": True}),
        ("exclude_from_layer_adaptation", 3),
    ],
)
def test_bad_arguments_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` of LAMB must.*") as error:
        LAMB(**{name: value})
    assert str(error.value).endswith(f"Received: {name}={value!r}")


def test_the_method_of_keras_for_exclusions_is_refused():
    optimizer = LAMB(exclude_from_weight_decay=["bias"])
    with pytest.raises(ValueError, match=r"to the constructor: LAMB\(exclude_from_weight_decay="):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
