"""The transport of gradients between workers: TensorFlow's collectives or UCX.

UCX is a library for shared memory, TCP and RDMA, on which MPI implementations build. Here it sends
gradients that are on CPUs; the code that uses `aggregation.groups` does not change.

In reading order: `choice` (the argument and the variable), `interface` (where to listen), `library`
(UCX in this process), `mesh` (the connections of a process), `talk` and `trial` (which transports
work, and which one all workers use), `collectives` (the collectives of a replica).
"""
