"""What workers do for test_replica_check.py: make replicas differ, and check them."""

import functools

import numpy as np
from support import keras_versions
from support.keras_versions import copies_of

from scenarios.basics import message_of
from scenarios.empty_replicas import model_with_everything, random_ids
from tf_adasum.compat import keras as keras_compat


def spoil(strategy, variable, replica):
    """Change a number of one replica's copy; return a function that takes it back."""
    worker, local = divmod(replica, len(strategy.extended.worker_devices))
    if worker != strategy.rank:
        return lambda: None
    copy = copies_of(strategy, variable)[local]
    value = np.array(copy.numpy())
    changed = value.copy()
    changed.flat[-1] += 1
    copy.assign(changed)
    return lambda: copy.assign(value)


VARIABLES = {
    "last": lambda model: model.get_layer("last").kernel,
    "embedding": lambda model: model.get_layer("embedding").embeddings,
    "frozen": lambda model: model.get_layer("frozen").kernel,
    "iteration": lambda model: model.optimizer.iterations,
}
if keras_versions.IS_KERAS_2:  # which does not mark it as shared by all replicas
    del VARIABLES["iteration"]


def check_spoiled(strategy, replica):
    """Check after a training, and again when one replica's copy of a variable has changed.

    Returns:
        For each variable its path, and the errors by default, of the model and of lists; then all
        errors of checks that find nothing, and the error of `fit` with the last variable changed.
    """
    model = model_with_everything(strategy)
    ids, y = random_ids(32)
    fit = functools.partial(model.fit, ids, y, batch_size=16, verbose=0)
    fit()
    results, nothing = {}, [message_of(strategy.check_replicas)]
    for name, find in VARIABLES.items():
        variable = find(model)
        others = [v for v in model.trainable_variables if v is not variable]
        take_back = spoil(strategy, variable, replica)
        results[f"{name} path"] = keras_compat.path_of(variable)
        results[f"{name} errors"] = [
            message_of(strategy.check_replicas),
            message_of(lambda: strategy._check_model(model)),
            message_of(lambda own=[*others, variable]: strategy.check_replicas(own)),
        ]
        nothing.append(message_of(lambda own=others: strategy.check_replicas(own)))
        if name != [*VARIABLES][-1]:
            take_back()
            nothing.append(message_of(strategy.check_replicas))
    return {**results, "nothing": nothing, "fit": message_of(fit)}
