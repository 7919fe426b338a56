"""Trackers on several workers: one run, which has everything once."""

import numpy as np
import pytest

missing = "MLflow is not installed: pip install mlflow-skinny pandas"
pytest.importorskip("mlflow.keras", reason=missing, exc_type=ImportError)
from mlflow import tracking  # noqa: E402
from scenarios import on  # noqa: E402
from scenarios import trackers as scenarios  # noqa: E402  (it imports MLflow)


@on("2x1")
@pytest.mark.parametrize("way", ["callback", "run", "autolog", "models"])
@pytest.mark.keras3_only("MLflow's callback for Keras 2 is another one")
def test_mlflow_has_one_run_with_each_epoch_once(group, way, tmp_path, monkeypatch):
    own, other = group.run(scenarios.train_with_mlflow, store=str(tmp_path), way=way)
    np.testing.assert_array_equal(other["loss"], own["loss"])
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = tracking.MlflowClient(f"file:{tmp_path}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FINISHED" and run.data.params
    logged = client.get_metric_history(run.info.run_id, "loss")
    if way == "models":  # MLflow adds the best epoch once more, in one process as well
        assert len(logged) == 4 and logged.pop().step == 0
    assert [metric.step for metric in logged] == [0, 1, 2]
    np.testing.assert_array_equal([metric.value for metric in logged], own["loss"])
