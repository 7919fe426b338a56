"""Start the worker processes of one training script, as ``torchrun`` does for PyTorch.

    tf-adasum-launch -n 4 train.py --epochs 3
    tf-adasum-launch -n 2 --devices-per-worker 2 -m package.train --epochs 3
    tf-adasum-launch -n 4 --nnodes 2 --node-rank 0 --coordinator node0:2222 train.py
    tf-adasum-launch -n 4 --nnodes 1:4 --coordinator node0:2222 train.py

Reading order: `command_line` (and `commands`, which the doctor also uses) -> `jobs` (one job) ->
`nodes` and `environments` (the environment of each worker, GPUs included) and `cpu_shares` (the
CPUs of each worker). `cluster.ports` finds and holds the workers' ports, `processes` runs the
processes, `output` shows their output, `log_filter` selects the lines of TensorFlow that are not
shown, and `failures` finds the worker that failed first. `elastic` runs jobs whose hosts may join
and leave, `membership` decides which hosts train, and `job_leader` publishes the decisions. `run`
starts workers from a notebook.

The launcher uses only the standard library, so it starts at once and never initialises a GPU.
"""

from tf_adasum.launch.command_line import main
from tf_adasum.launch.environments import visible_gpus, worker_environments
from tf_adasum.launch.jobs import GRACE_SECONDS, launch
from tf_adasum.launch.nodes import Nodes

__all__ = ["GRACE_SECONDS", "Nodes", "launch", "main", "visible_gpus", "worker_environments"]
