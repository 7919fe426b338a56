"""Jobs of a real Slurm that lose time or a node; what `srun` starts is in test_starters.py."""

import os
import pathlib
import sys
import time

import pytest
from support.launching import eventually
from support.pace import PACE

from tf_adasum.cluster import ports

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 200 * PACE


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
        """Slurm would let the job wait for two minutes; each update delays it a little."""
        slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        time.sleep(5)
        shown = slurm_cluster.run("scontrol", "show", "job", job, check=False).stdout
        return "Restarts=1" in shown and "JobState=RUNNING" in shown

    eventually(lambda: said("exit status 75"), SECONDS)
    eventually(starts_again, SECONDS)
    eventually(lambda: len(list(made.glob("*.npz"))) == 4, SECONDS)
    assert said("resuming at epoch")
    assert_as_launched(made)


# Notes its round and the number of workers, and stays until the file "finish" is there.
ELASTIC = """
import os, pathlib, sys, time

folder = pathlib.Path(sys.argv[1])
size = os.environ.get("TF_ADASUM_WORLD_SIZE", "1")
(folder / f"round-{os.environ['TF_ADASUM_RESTART_COUNT']}-{size}").touch()
while not (folder / "finish").exists():
    time.sleep(0.05)
"""


def test_an_elastic_job_loses_a_node_and_gets_another(slurm_cluster, tmp_path):
    """With --no-kill, Slurm ends neither the job nor its other tasks if a node fails."""
    (tmp_path / "train.py").write_text(ELASTIC)
    with ports.free_ports(1) as (port,):
        pass

    def submit(coordinator, *options):
        launch = (
            f"{sys.executable} -m tf_adasum.launch --nnodes 1:2 -n 1 "
            f"--coordinator {coordinator}:{port} train.py {tmp_path}"
        )
        # Here all nodes are one machine, so the launcher of the first node has to start first.
        script = f"#!/bin/bash\nsrun --no-kill sh -c 'sleep $SLURM_PROCID; exec {launch}'\n"
        (tmp_path / "job.sh").write_text(script)
        return slurm_cluster.run(
            *["sbatch", "--parsable", "--no-kill", "--ntasks-per-node=1", *options, "job.sh"],
            environment={"PYTHONPATH": str(ROOT), "TF_ADASUM_SECRET": "key"},
            cwd=tmp_path,
        ).stdout.strip()

    job = submit("$(scontrol show hostnames | head -1)", "--nodes=2", "--output=log")
    eventually((tmp_path / "round-0-2").exists)
    first = slurm_cluster.run("squeue", "-h", "-j", job, "-o", "%B").stdout.strip()
    (lost,) = {"n2", "n10"} - {first}
    with slurm_cluster.failed(lost):
        eventually((tmp_path / "round-1-1").exists)
    submit(first, f"--nodelist={lost}", "--output=log2")
    eventually((tmp_path / "round-2-2").exists)
    (tmp_path / "finish").touch()
    eventually(lambda: not slurm_cluster.run("squeue", "-h", check=False).stdout)
    assert "round 2: 1 worker on 1 host" in (tmp_path / "log").read_text()
    assert "round 3: 2 workers on 2 hosts" in (tmp_path / "log2").read_text()
