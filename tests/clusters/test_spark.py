"""Spark starts two workers of the example, each in an executor of its own on this machine."""

import shutil
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "clusters" / "spark" / "train.py"
# The context that the example's runner finds.
ON_A_LOCAL_CLUSTER = """
import runpy, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.python.worker.reuse": "false",
}.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
runpy.run_path(sys.argv.pop(1), run_name="__main__")
session.stop()
"""


@pytest.mark.slow
@pytest.mark.keras3_only("the example is written for Keras 3")
@pytest.mark.skipif(not shutil.which("java"), reason="not installed: java")
def test_two_executors_of_spark(training, tmp_path, monkeypatch):
    for package in ("pyspark", "spark_tensorflow_distributor"):
        pytest.importorskip(package, reason=f"not installed: {package}")
    monkeypatch.chdir(tmp_path)
    printed = training.run(
        *[sys.executable, "-c", ON_A_LOCAL_CLUSTER, EXAMPLE, "--epochs", "1"],
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(tmp_path),
        SPARK_WORKER_DIR=str(tmp_path / "work"),
    )
    assert "{'workers': 2, 'accuracy': [" in printed
