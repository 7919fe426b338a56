"""Detects the cluster, and connects its workers before TensorFlow starts and while they train.

Each worker except worker 0 keeps one connection to worker 0's store, from its start to its end. The
store is at the coordinator's address. If TF_CONFIG or `cluster_resolver` gives all addresses, it is
at worker 0's own port, and the start begins at 2:

    worker 1                                   worker 0
    1 `rendezvous.join`: where are the others?
      own address and version    ──member/1──▶ `StartRound`
                                 ◀─addresses── the addresses of all workers
    2 `rendezvous.meet`: do all have the same settings, and reach each other?
      each worker listens at its own port
                                 ◀───probe──── `PortProbes`: worker 0 tests all of these ports,
                                               every other worker some of them
      own settings, and ports
      that it cannot reach       ──member/1──▶ `StartRound` compares the settings of all
                                 ◀──result──── ok, or an error, which all workers raise
    3 all stop listening at their ports, so that TensorFlow can; worker 0 listens at a new port
      for workers that reconnect (`store.hand_over`)
    4 `health`: every second, and at once after a failure
      status of worker 1         ──member/1──▶ `HealthMonitor` of worker 0
                                 ◀─statuses─── the statuses that matter as one short value
    5 `startup.start`: TensorFlow starts, while 4 runs; then training begins

The key is member/1/RUN, where RUN is a random number of this start of the worker.

A failure: worker 2's process is killed.

    worker 2          worker 0                             worker 1
    is killed ─ ✕ ──▶ the connection ends: state "lost"
                      statuses: 2 "lost" ────────────────▶ `diagnosis`: am I in a call? yes
                      `diagnosis`: am I in a call? yes     prints why, ends collectives,
                      prints why, ends collectives,        status "aborted"
                      status "aborted"
    WorkerLostError, which names worker 2, is raised in these calls on workers 0 and 1

* If worker 0 is killed, the only connection of each other worker ends, so each decides this by
  itself. A process that ends in order sends "ended" first, and is not lost.
* If a network is cut, a connection is silent. Nobody is lost while collectives end. If none has
  ended for 30 s, worker 0 counts the silent worker as lost, and that worker counts worker 0 as lost
  (`health.heartbeat_detector`). If only the link between two other workers is cut, all wait, test
  their links, and end after 30 s (`health.reachability`).
* If a worker gets SIGTERM, and `BackupAndRestore` handles it, its status asks for a stop. Worker 0
  sends the first stop point that no worker has passed (`health.graceful_stop`).

Reading order: `startup` and `resolver`, which call the steps; `tasks` and `detection` (which
workers there are), `channel`, `store` and `store_client` (the store), `session`, `rendezvous` with
`participant` (a start as each worker sees it), `start_round` with `members` and `messages` (as
worker 0 sees it), `port_probes`; then `health.monitor`.
"""
