"""What the worker processes do for `test_trackers.py`: train with the callbacks of trackers."""

import contextlib
import os

import mlflow.keras
import mlflow.tensorflow

from scenarios.callbacks import compiled_model, fit


def train_with_mlflow(strategy, store, way):
    """Train as a user of MLflow does; return what `logs` had.

    Args:
        strategy: the strategy.
        store: folder of the store.
        way: "callback", on every worker, as in one process; "run", the same within a run that
            worker 0 starts; "autolog", which worker 0 switches on; "models", the same as
            `mlflow.autolog()` does it, with the model and its signature.
    """
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer ones ask for a database instead
    mlflow.set_tracking_uri(f"file:{store}")
    is_first, run = strategy.rank == 0, contextlib.nullcontext()
    if is_first:
        mlflow.set_experiment(way)
    if way == "run" and is_first:
        run = mlflow.start_run(run_name="of worker 0")
    if way == "autolog" and is_first:
        mlflow.keras.autolog(log_models=False, log_datasets=False)
    if way == "models" and is_first:  # it calls `predict`
        mlflow.tensorflow.autolog(log_datasets=False)
    given = [] if way in ("autolog", "models") else [mlflow.keras.MlflowCallback()]
    model = compiled_model(strategy, seed=1)
    try:
        with run:
            history = fit(model, given, epochs=3)
            mlflow.flush_async_logging()
    finally:
        if is_first:
            mlflow.keras.autolog(disable=True)
            mlflow.tensorflow.autolog(disable=True)
            while mlflow.active_run():
                mlflow.end_run()
    return history.history
