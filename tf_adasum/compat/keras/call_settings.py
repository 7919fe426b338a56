"""Describes a call as text, with every setting that must be the same on all workers.

Workers that run different programs would wait for each other forever. So each call of `fit`,
`evaluate`, `predict` and the `_on_batch` methods describes its model, the arguments of `compile`
and its own arguments. The workers compare hashes of the descriptions. They compare the descriptions
only if the hashes differ (`workers.workers`).
"""

import functools
import hashlib
import inspect
import os
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat

# Arguments of `fit` and other methods that may differ between workers. Callbacks may differ
# (`callbacks if rank == 0 else []`). Callbacks that wait for other workers are compared when
# training starts. Of data, only the kind is compared, see `_kind_of_data`.
NOT_COMPARED = ("self", "verbose", "callbacks", "return_dict", "reset_metrics")
DATA = ("x", "y", "sample_weight", "validation_data")

# Settings that are local to one process.
_OF_ONE_PROCESS = ("name", "seed", "built", "stop_training", "stop_evaluating", "stop_predicting")

_LONGEST_VALUE = 300  # characters


class Settings(dict):
    """The settings of a call: a dict from the name of each setting to its value, both str.

    Attributes:
        model: the `Settings` of the model, which many calls share. None without a model.
    """

    model: "Settings | None" = None

    @functools.cached_property
    def digest(self) -> int:
        """A 63-bit hash of all settings, with the settings of the model."""
        text = "\n".join(f"{key}={value}" for key, value in self.items())
        text += str(self.model.digest if self.model else "")
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def all(self) -> dict[str, str]:
        """Return all settings, beginning with the settings of the model."""
        return {**(self.model or {}), **self}


def settings_of(model: keras.Model, call: str, given: Mapping[str, Any]) -> Settings:
    """Return the `Settings` of a call.

    Args:
        model: the `keras.Model`.
        call: the name of the called method, such as "fit".
        given: all arguments of the call by name, with the default values.
    """
    settings = Settings(_of_compile(model))
    settings.model = _of_model(model)
    settings["keras.config.floatx"] = keras.backend.floatx()
    for name, value in given.items():
        if name in DATA:
            settings[f"{call}({name})"] = _kind_of_data(value, call.endswith("on_batch"))
        elif name not in NOT_COMPARED and name != "kwargs" and not name.startswith("_"):
            settings[f"{call}({name})"] = described(value)
    return settings


def described(value: Any) -> str:
    """Return a setting as text. Workers with the same setting get the same text."""
    text = _described(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[:_LONGEST_VALUE]}… (hash {digest})"


def _described(value):
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.7g}"  # a float32 variable rounds the value that was set
    if isinstance(value, str):  # paths may differ between workers, the names of files may not
        return repr(os.path.basename(value) if os.path.isabs(value) else value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, Mapping):
        if set(value) >= {"class_name", "config"}:  # an object that Keras has serialized
            return f"{value['class_name']}{_arguments(value['config'])}"
        items = (f"{key}: {_described(each)}" for key, each in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return "[" + ", ".join(map(_described, ordered)) + "]"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _kind_of_array(value)
    function = getattr(value, "fn", None) or getattr(value, "_fn", None)  # of a metric or a loss
    if getattr(function, "__name__", "") == "<lambda>":  # Keras warns when it serializes one
        return f"{type(value).__name__}(<lambda>)"
    if config := _config_of(value):
        return f"{type(value).__name__}{_arguments(config)}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return type(value).__name__


def _config_of(value):
    """Return `get_config()` of an object, or {} if the method is missing or raises an error."""
    if not hasattr(value, "get_config") or inspect.isclass(value):
        return {}
    try:
        config = value.get_config()
    except Exception:  # of the user's own class
        return {}
    return config if isinstance(config, Mapping) else {}


def _arguments(config):
    if not isinstance(config, Mapping):
        return f"({_described(config)})"
    pairs = ((key, each) for key, each in config.items() if key not in _OF_ONE_PROCESS)
    return "(" + ", ".join(f"{key}={_described(each)}" for key, each in pairs) + ")"


# ---- the model ---------------------------------------------------------------------------------

# For each model: its state when it was last described, and the description. To describe a thousand
# layers takes 40 ms. To check that they have not changed takes less than 1 ms.
_described_models: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _of_model(model):
    layers = list(model._flatten_layers(include_self=False))
    state = [(id(each), each.trainable, *map(len, _weights_of(each))) for each in layers]
    known = _described_models.get(model)
    if known and known[0] == state:
        return known[1]
    settings = Settings({"model": f"{type(model).__name__} with {len(layers)} layers"})
    for number, layer in enumerate(layers):
        settings[f"layer {number} of the model"] = _of_layer(layer)
    _described_models[model] = state, settings
    return settings


def _weights_of(layer):
    """Return the lists of a layer's own trainable and other variables, in Keras 3 or 2."""
    if hasattr(layer, "_trainable_variables"):
        return layer._trainable_variables, layer._non_trainable_variables
    return layer._trainable_weights, layer._non_trainable_weights


def _of_layer(layer):
    """Return class, settings and shapes of a layer as text.

    The name is left out, because each worker numbers the names of its layers separately.
    """
    settings = [f"{name}={_described(value)}" for name, value in _attributes(layer).items()]
    weights = [each for own in _weights_of(layer) for each in own]
    shapes = [f"{tf.as_dtype(each.dtype).name}{list(each.shape)}" for each in weights]
    trainable = f"trainable={layer.trainable}"
    return ", ".join([type(layer).__name__, *settings, trainable, *shapes])


def _attributes(layer):
    """Return the settings of a Keras layer from its attributes, because `get_config` takes 0.5 ms.

    For layers of other packages return {}, because their attributes may differ between workers.
    """
    if not type(layer).__module__.startswith("keras."):
        return {}
    found = {"dtype": getattr(getattr(layer, "dtype_policy", None), "name", None)}
    for name, value in vars(layer).items():
        if name.startswith("_") or name in _OF_ONE_PROCESS:
            continue
        is_setting = isinstance(value, bool | int | float | str | tuple)
        if is_setting or (inspect.isfunction(value) and name.endswith("activation")):
            found[name] = value
    return found


# ---- the arguments of `compile` ----------------------------------------------------------------


def _of_compile(model):
    """Describe the optimizer and the other arguments of `compile`.

    The optimizer is not read from Keras's record of these arguments, because saving in the HDF5
    format removes it from the record. In the scope of a strategy, the learning rate becomes a
    variable, which has worker 0's value on all workers. So its initial value on this worker is
    compared too.
    """
    optimizer, settings = getattr(model, "optimizer", None), {}
    if optimizer is not None:
        settings["optimizer"] = type(optimizer).__name__
        rate = getattr(optimizer, "_learning_rate", None)
        own = tensorflow_compat.own_initial_value(getattr(rate, "_value", rate))
        if own is not None:
            settings["optimizer.learning_rate, as created"] = _described(own)
        for key, each in _config_of(optimizer).items():
            if key not in _OF_ONE_PROCESS:
                settings[f"optimizer.{key}"] = described(each)
    config = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    for name, value in config.items():
        if name != "optimizer":
            settings[f"compile({name})"] = described(value)
    return settings


# ---- data --------------------------------------------------------------------------------------


def _kind_of_data(value, has_rows):
    """Return the kind of the data of a call; with `has_rows`, include the number of rows of arrays.

    For `_on_batch` methods nothing else compares this number.
    """
    if value is None:
        return "None"
    if isinstance(value, tf.data.Dataset | tf.distribute.DistributedDataset):
        return "a tf.data.Dataset"
    if isinstance(value, keras.utils.Sequence):
        return "a PyDataset"
    if hasattr(value, "__next__") or inspect.isgeneratorfunction(value):
        return "an iterator"
    shape = getattr(next(iter(tf.nest.flatten(value)), None), "shape", ())
    return f"{shape[0]} rows" if has_rows and len(shape) else "arrays"


def inputs_of(model):
    """Return the symbolic inputs of a functional model, or [] for other models."""
    try:
        return tf.nest.flatten(getattr(model, "inputs", None) or [])
    except (AttributeError, ValueError):  # of a Sequential that is not built
        return []


def _kind_of_array(value):
    """Return the dtype and shape of an array as text.

    It is not called for a data frame, because a data frame has no attribute `dtype`.
    """
    shape = list(value.shape)
    rows = f"{shape[0]} rows of " if shape else ""
    return f"{rows}{getattr(value.dtype, 'name', value.dtype)}{shape[1:]}"
