"""Layers on N replicas at once: equal weights, separate gradients.

Weights come as ``[N, ...]``, the same on every replica. What is linear in them is computed once
with those of the first replica, and only their gradient is computed replica by replica. All else,
such as biases, is TensorFlow's own broadcasting.

Shape legend: N replicas, M rows of each (of all dimensions but the last), I inputs, O outputs.
"""

import tensorflow as tf


@tf.custom_gradient
def matmul(x_NMI, w_NIO):
    """Return ``x w``, ``[N, M, O]``."""
    replicas, _, inputs = x_NMI.shape
    outputs = w_NIO.shape[-1]
    w_IO = w_NIO[0]
    y = tf.reshape(tf.reshape(x_NMI, [-1, inputs]) @ w_IO, [replicas, -1, outputs])

    def gradient(dy_NMO):
        dx = tf.matmul(tf.reshape(dy_NMO, [-1, outputs]), w_IO, transpose_b=True)
        return (
            tf.reshape(dx, [replicas, -1, inputs]),
            tf.matmul(x_NMI, dy_NMO, transpose_a=True),
        )

    return y, gradient


def dense(x, kernel, bias=None):
    """Return ``x kernel + bias`` on the last dimension of x, which has a static shape."""
    replicas, *middle, inputs = x.shape
    y = matmul(tf.reshape(x, [replicas, -1, inputs]), kernel)
    if bias is not None:
        y += bias[:, None]
    return tf.reshape(y, [replicas, *middle, kernel.shape[-1]])


def convolution(x, kernel, bias, stride=1):
    """Return the 2D convolution ``[N, B, H', W', O]`` of ``[N, B, H, W, I]``, padded to "same"."""
    return _convolution(x, kernel, stride) + bias[:, None, None, None]


def _convolution(x, kernel, stride):
    replicas, batch, *image = x.shape
    strides = [1, stride, stride, 1]
    same = {"strides": strides, "padding": "SAME"}

    @tf.custom_gradient
    def of_shared_kernel(x, kernel):
        flat = tf.reshape(x, [replicas * batch, *image])
        y = tf.nn.conv2d(flat, kernel[0], strides, "SAME")
        shape = y.shape

        def gradient(dy):
            dx = tf.nn.conv2d_transpose(
                tf.reshape(dy, shape), kernel[0], flat.shape, strides, "SAME"
            )
            dw = [
                tf.raw_ops.Conv2DBackpropFilter(
                    input=x[i], filter_sizes=kernel.shape[1:], out_backprop=dy[i], **same
                )
                for i in range(replicas)
            ]
            return tf.reshape(dx, x.shape), tf.stack(dw)

        return tf.reshape(y, [replicas, batch, *shape[1:]]), gradient

    return of_shared_kernel(x, kernel)


def max_pooling(x, size):
    """Return the maxima of fields of ``size``, as (rows, columns); what is left over is cut off."""
    flat = tf.reshape(x, [-1, *x.shape[2:]])
    pooled = tf.nn.max_pool2d(flat, size, size, "VALID")
    return tf.reshape(pooled, [*x.shape[:2], *pooled.shape[1:]])


def layer_normalization(x, gamma, beta, epsilon=1e-3):
    """Normalize the last dimension, as Keras does."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    middle = [None] * (len(x.shape) - 2)
    gamma, beta = (own[(slice(None), *middle)] for own in (gamma, beta))
    return (x - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta


@tf.custom_gradient
def embedding(indices_NM, table_NVD):
    """Return the rows ``[N, M, D]`` of a table."""
    replicas, size, width = table_NVD.shape
    y = tf.gather(table_NVD[0], indices_NM)

    def gradient(dy_NMD):
        chosen = tf.one_hot(indices_NM, size, dtype=dy_NMD.dtype)
        return None, tf.matmul(chosen, tf.reshape(dy_NMD, [replicas, -1, width]), transpose_a=True)

    return y, gradient
