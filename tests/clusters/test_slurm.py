"""Workers that `srun` starts, on two nodes of a real Slurm."""

import os
import pathlib

import pytest
from support.launching import eventually

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 400


@pytest.mark.slow
def test_srun_trains_as_the_launcher(training, assert_as_launched, slurm_cluster, tmp_path):
    ended = slurm_cluster.run(
        *["srun", "-N", "2", "-n", "4", "--kill-on-bad-exit=1", *training.command, str(tmp_path)],
        environment=training.environment,
        timeout=SECONDS,
    )
    assert "tf_adasum: 4 workers, 4 replicas over " in ended.stderr
    assert_as_launched(tmp_path)


# What the example's script starts: it is cut in its fourth epoch or so, wherever that is.
TRAIN = """
import runpy, sys

sys.argv = ["train.py", {folder!r}, sys.argv[1], "30"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.keras3_only("Keras 2 backs up by itself, and knows no signals")
def test_a_job_that_its_time_limit_cuts_goes_on_when_it_is_requeued(
    training, assert_as_launched, slurm_cluster, tmp_path
):
    made = tmp_path / "made"
    made.mkdir()
    python, script = training.command
    (tmp_path / "train.py").write_text(TRAIN.format(folder=str(made), script=script))
    # Four minutes, a minute of them for the backup; Slurm may be a minute early.
    limit = ["--time=4", "--signal=TERM@60", "--nodes=2", "--ntasks-per-node=2", "--output=log"]
    path = f"{os.path.dirname(python)}:{os.environ['PATH']}"
    job = slurm_cluster.run(
        *["sbatch", "--parsable", *limit, str(ROOT / "examples/clusters/slurm/train.sh")],
        environment={**training.environment, "PATH": path},
        cwd=tmp_path,
    ).stdout.strip()
    log = tmp_path / "log"

    def said(word):
        return log.exists() and word in log.read_text()

    def starts_again():
        """Slurm would let it wait for two minutes."""
        slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        shown = slurm_cluster.run("scontrol", "show", "job", job, check=False).stdout
        return "Restarts=1" in shown and "JobState=RUNNING" in shown

    eventually(lambda: said("exit status 75"), SECONDS)
    eventually(starts_again, SECONDS)
    eventually(lambda: len(list(made.glob("*.npz"))) == 4, SECONDS)
    assert said("resuming at epoch")
    assert_as_launched(made)
