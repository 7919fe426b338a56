"""What `fit` and custom loops do between steps, for Keras 2 and 3."""

import tensorflow as tf

from tf_adasum.compat.keras.optimizers import is_ours, optimizers_of, optimizers_within


def average_statistics(model):
    """Average the statistics of a model's replicas. Of a model without our strategy, do nothing."""
    strategy = model.distribute_strategy
    if is_ours(strategy) and variables_so_far(model):
        synchronize(model)
        strategy.average_statistics(model)


def synchronize(model):
    """Combine the local steps of a model's optimizers now, so that replicas have equal weights."""
    for optimizer in optimizers_of(model):
        for each in optimizers_within(optimizer):
            if hasattr(each, "synchronize"):
                each.synchronize()


def variables_so_far(model):
    """Return a list of the variables that a model has now. More may be created later.

    The attribute `built` is not used, because it stays False for models without a method `call`,
    such as most GANs.
    """
    try:
        return list(model.variables)
    except ValueError:  # Keras 2, of models that are not built yet
        return []


def replaceable_dataset(dataset, next_dataset):
    """Return a `tf.data.Dataset` that another dataset can replace when an epoch begins.

    Args:
        dataset: the first dataset.
        next_dataset: function that is called when an epoch begins. It returns the dataset to use
            from this epoch on, or None to keep the current dataset. With Keras 2, it gets the
            number of the epoch as its argument. With Keras 3, it gets no argument.
    """
    dataset = dataset.with_options(tf.data.Options())  # the user's object does not change
    dataset.next_dataset = next_dataset
    return dataset
