"""A small residual network, with layer normalization instead of batch normalization."""

import dataclasses
import functools

import keras
import tensorflow as tf

from experiments.models.model import Model
from experiments.simulation import layers


@dataclasses.dataclass(frozen=True)
class ResNet(Model):
    """A convolution, stages of residual blocks, the mean over positions, a dense layer.

    A block is twice: layer normalization, ReLU, convolution. The first convolution halves height
    and width, and so does the first block of each stage but the first; its shortcut is a
    convolution.

    Attributes:
        shape: of an image: height, width, channels; a signal has a height of 1.
        kernel: height and width of the convolutions' kernels.
        widths: channels of each stage.
        blocks: of each stage.
    """

    shape: tuple[int, int, int] = (1, 40, 1)
    kernel: tuple[int, int] = (1, 5)
    widths: tuple[int, ...] = (16, 32)
    blocks: int = 2

    @property
    def example(self):
        """An image and its class."""
        return tf.TensorSpec(self.shape), tf.TensorSpec([], tf.int32)

    def _strides(self):
        """Yield width and stride of each block."""
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks):
                yield width, 2 if stage and not block else 1

    def keras(self):
        """Return a new Keras model; its layers have the names that `logits` knows."""

        def convolution(name, x, width, kernel=None, stride=1):
            kernel = kernel or self.kernel
            layer = keras.layers.Conv2D(width, kernel, stride, padding="same", name=name)
            return layer(x)

        def normalized(name, x):
            return keras.layers.ReLU()(keras.layers.LayerNormalization(name=name)(x))

        inputs = keras.layers.Input(self.shape)
        x = convolution("first", inputs, self.widths[0], stride=2)
        for number, (width, stride) in enumerate(self._strides()):
            a, b, c = (f"{letter}{number}" for letter in "abc")
            shortcut = convolution(c, x, width, 1, stride) if stride > 1 else x
            y = convolution(a, normalized(f"norm_{a}", x), width, stride=stride)
            x = convolution(b, normalized(f"norm_{b}", y), width) + shortcut
        x = keras.layers.GlobalAveragePooling2D()(normalized("norm", x))
        return keras.Model(inputs, keras.layers.Dense(10, name="dense")(x))

    @functools.cached_property
    def _paths(self):
        return [variable.path for variable in self.keras().trainable_variables]

    def logits(self, weights, x):
        """Return the logits ``[N, B, 10]``."""
        own = dict(zip(self._paths, weights, strict=True))

        def convolution(name, x, stride=1):
            return layers.convolution(x, own[f"{name}/kernel"], own[f"{name}/bias"], stride)

        def normalized(name, x):
            gamma, beta = own[f"{name}/gamma"], own[f"{name}/beta"]
            return tf.nn.relu(layers.layer_normalization(x, gamma, beta))

        x = convolution("first", x, 2)
        for number, (_, stride) in enumerate(self._strides()):
            a, b, c = (f"{letter}{number}" for letter in "abc")
            shortcut = convolution(c, x, stride) if stride > 1 else x
            y = convolution(a, normalized(f"norm_{a}", x), stride)
            x = convolution(b, normalized(f"norm_{b}", y)) + shortcut
        x = tf.reduce_mean(normalized("norm", x), axis=[2, 3])
        return layers.dense(x, own["dense/kernel"], own["dense/bias"])
