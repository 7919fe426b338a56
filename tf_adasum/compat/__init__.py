"""The only package of tf_adasum that uses private names of TensorFlow and Keras."""
