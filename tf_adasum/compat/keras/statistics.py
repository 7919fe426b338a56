"""Averages the statistics of replicas, and combines their local steps (Keras 2 and 3)."""

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
