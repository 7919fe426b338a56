"""Every private name of TensorFlow and Keras that the package touches."""
