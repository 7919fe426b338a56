"""Run a training script on Ray, and continue when workers or nodes are lost or added.

    pip install "ray[train]"
    python examples/clusters/ray/elastic.py --workers 1 4 train.py --epochs 10

The script needs no change: it creates the strategy and trains with `BackupAndRestore`. It runs in
the folder in which you start this program, which all nodes have to share. Ray starts all workers
again after each change, and training resumes from the backup. The output of all workers is in this
terminal, and in Ray's logs.
"""

import argparse
import os
import runpy
import sys

import ray.train
from ray.train.tensorflow import TensorflowTrainer


def run_script(config):
    """Run the script on this worker, as Python would."""
    os.chdir(config["folder"])  # Ray starts workers in a folder of its own
    sys.argv = config["command"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs=2, default=(1, 4), metavar=("MIN", "MAX"))
    parser.add_argument("--use-gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments")
    arguments = parser.parse_args()
    TensorflowTrainer(
        run_script,
        train_loop_config={"command": arguments.command, "folder": os.getcwd()},
        scaling_config=ray.train.ScalingConfig(
            num_workers=tuple(arguments.workers),
            use_gpu=arguments.use_gpu,
            elastic_resize_monitor_interval_s=10,  # Ray's default waits 60 s for new nodes
        ),
        run_config=ray.train.RunConfig(
            failure_config=ray.train.FailureConfig(max_failures=20),  # errors of the script, too
        ),
    ).fit()
