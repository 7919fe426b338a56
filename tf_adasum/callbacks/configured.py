"""Configured: the configuration of a callback, with which Keras saves and creates it again."""

import typing

import keras


class Configured:
    """Base class of callbacks that Keras can save by the arguments of their constructor.

    Attributes:
        arguments: the names of the arguments, which are also attributes.
    """

    arguments: tuple[str, ...] = ()

    def get_config(self) -> dict[str, typing.Any]:
        """Return the constructor's arguments; functions are saved by their registered names."""
        serialize = keras.saving.serialize_keras_object
        return {name: serialize(getattr(self, name)) for name in self.arguments}

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Any:
        """Return a callback made from what `get_config` returned."""
        deserialize = keras.saving.deserialize_keras_object
        return cls(**{name: deserialize(value) for name, value in config.items()})
