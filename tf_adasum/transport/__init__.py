"""The transport of gradients between workers: TensorFlow's collectives or UCX.

UCX is a library that MPI implementations use for shared memory, TCP and RDMA. Here, UCX sends
gradients that are on CPUs. The code that uses `aggregation.groups` is the same with both
transports.

Read the modules in this order: `argument` (the argument and the environment variable),
`network_interface` (where UCX listens), `library` (UCX in this process, and its mesh of
connections), `selection` (which transports work, and which one all workers use), `collectives` (the
collectives of a replica).
"""
