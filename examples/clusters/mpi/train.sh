#!/bin/bash
# Train on two hosts, two workers on each, with Open MPI (4 or 5).
#
#   examples/clusters/mpi/train.sh examples/train_digits.py
#
# Open MPI only starts the processes: they find each other by its variables. Gradients travel over UCX
# if it is faster, otherwise over TensorFlow's own connections. Nothing is compiled against MPI.

hosts=${HOSTS:-$(hostname):4} # such as HOSTS=node1:2,node2:2

# Where rank 0 runs, and a free port there: needed only if rank 0 is not on the host of mpirun.
#   -x TF_ADASUM_COORDINATOR=node1:12345
# The network that workers are reached at, on hosts that have several; an address works as well.
#   -x TF_ADASUM_INTERFACE=ib0
# CORES=8 gives each worker eight cores of its own. Otherwise all workers run on all cores, which is slower
# on CPUs. (By default, Open MPI binds each worker to a single core, or to a socket.)
bind=${CORES:+--map-by slot:PE=$CORES --bind-to core}
# Without a secret anybody who reaches a worker's port can take part in the start.
export TF_ADASUM_SECRET=$(openssl rand -hex 32)

exec mpirun --host "$hosts" ${bind:---bind-to none} --tag-output \
    -x TF_ADASUM_SECRET -x TF_CPP_MIN_LOG_LEVEL=2 python "$@"
