"""Transport: what carries gradients between workers, TensorFlow's collectives or UCX.

UCX is a library for shared memory, TCP and RDMA, on which MPI implementations build. Here it
carries gradients that live on CPUs; all that is above `aggregation.groups` stays as it is.

In reading order: `choice` (the argument and the variable), `interface` (where to listen), `library`
(UCX in this process), `mesh` (the connections of a process), `talk` and `trial` (which ways work,
and which one all workers take), `collectives` (those of a replica).
"""
