#!/bin/bash
# Train on two nodes, two workers on each; at the time limit stop with a backup, and go on later.
#
#   cd examples/clusters/slurm && sbatch train.sh
#
# Slurm sends SIGTERM to the workers two minutes before the limit. They agree on a batch, write
# their backup and exit with 75. Then the job goes back into the queue, and its next start goes on
# from the backup, with the same numbers as if there had been no limit.

#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --time=04:00:00 --signal=TERM@120
#SBATCH --requeue --open-mode=append
# With GPUs, one for each worker: #SBATCH --gpus-per-task=1
# Cores of each worker, one without this: #SBATCH --cpus-per-task=8
# and below, as srun does not take it over: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# Seconds for which workers wait for each other: nodes may need very different times to start.
export TF_ADASUM_START_TIMEOUT=300
# TensorFlow prints only errors, and some lines during its import.
export TF_CPP_MIN_LOG_LEVEL=2
# Without a secret anybody who reaches a worker's port can take part in the start.
export TF_ADASUM_SECRET=$(openssl rand -hex 32)

# The backup belongs on a file system that all nodes see. Without --kill-on-bad-exit, with which
# srun would kill workers that exit a moment later: those that lose another one end by themselves.
srun python train.py "backup-$SLURM_JOB_ID"
code=$?
if [ $code -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
