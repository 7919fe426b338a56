"""LAMB's arguments, with exclusions of variables, and its configuration."""

import json
import warnings

import pytest

# With Keras 2, LAMB is the LAMB of Addons: see test_addons.py.
pytest.importorskip("keras", minversion="3")

import keras
import tensorflow as tf

from tf_adasum.optimizers import LAMB


def test_config_round_trip():
    options = {"learning_rate": 0.5, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-4}
    options |= {"weight_decay": 0.3, "exclude_from_weight_decay": ["bias", "norm"]}
    options |= {"exclude_from_layer_adaptation": [], "use_ema": True, "ema_momentum": 0.8}
    options |= {"gradient_accumulation_steps": 2, "name": "mine", "global_clipnorm": 3.0}
    config = LAMB(**options).get_config()
    assert json.loads(json.dumps(config)) == config
    assert {name: config[name] for name in options} == options
    assert LAMB.from_config(config).get_config() == config
    serialized = keras.optimizers.serialize(LAMB(**options))
    assert serialized["registered_name"] == "tf_adasum>LAMB"
    assert keras.optimizers.deserialize(serialized).get_config() == config


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


BAD = [("beta_1", 1.0), ("beta_2", -0.1), ("epsilon", -1e-9), ("weight_decay", float("inf"))]
BAD += [("exclude_from_weight_decay", ["bias", "("]), ("exclude_from_layer_adaptation", 3)]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_arguments_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` of LAMB must.*") as error:
        LAMB(**{name: value})
    assert str(error.value).endswith(f"Received: {name}={value!r}")
