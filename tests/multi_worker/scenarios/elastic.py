"""What `test_elastic.py` trains: on some replicas, saved in every form, gone on with on others."""

import contextlib
import pathlib
import warnings

import keras
import numpy as np
import tensorflow as tf
from golden import saved_by_an_earlier_version as saved

from scenarios.callbacks import Interrupted
from tf_adasum.callbacks import BackupAndRestore


def devices_of(replicas):
    return [f"CPU:{index}" for index in range(replicas)]


def saved_training(kind, replicas, place):
    """Return a model that has taken some steps, and was saved in every form."""

    def interrupt(batch, logs):
        if batch == saved.SAVED_AFTER:
            raise Interrupted

    _, model = saved.compiled(kind, 1, devices_of(replicas))
    backup = BackupAndRestore(place / "backup", saved.SAVED_AFTER, delete_checkpoint=False)
    with contextlib.suppress(Interrupted):
        end = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
        saved.fit(model, callbacks=[backup, end])
    model.save(place / "model.keras")
    model.save_weights(place / "model.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(place / "checkpoint"))
    return model


def by_part(state):
    """Return values of `state_of`: of the six weights, of all, and of the counters of steps.

    Those of a replica's statistics are left out.
    """
    found = [(path, values) for path, _, values in state if "moving_" not in path]
    counted = [values for path, values in found if path.endswith("iteration")]
    assert [saved.SAVED_AFTER] in counted or [saved.STEPS] in counted
    values = [values for _, values in found]
    return values[:6], values, counted


def change_replicas(strategy, kind, folder, saved_on, restored_on):
    """Return for each form what was restored, and whether training ends as the unbroken one."""
    del strategy  # there are others
    folder = pathlib.Path(folder)
    model, results, ends = saved_training(kind, saved_on, folder), {}, {}
    weights, everything, counted = by_part(saved.state_of(model))
    for form in saved.FORMS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = saved.go_on(folder, kind, form, devices_of(restored_on))
        own_weights, own, own_counted = by_part(found["restored"])
        results |= {
            f"{form} same": own_weights == weights,
            f"{form} all same": own == everything,
            f"{form} iterations": own_counted == counted,
            f"{form} finite": bool(np.isfinite(found["losses"]).all()),
            f"{form} scale": found["scale"] or 0.0,
            f"{form} anew": any("is reset" in str(each.message) for each in caught),
        }
        ends[form] = by_part(found["end"])[1]
    saved.fit(model, saved.SAVED_AFTER, saved.STEPS - saved.SAVED_AFTER)
    expected = by_part(saved.state_of(model))[1]
    return results | {f"{form} end": end == expected for form, end in ends.items()}
