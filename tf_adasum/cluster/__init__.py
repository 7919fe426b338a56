"""Detects the cluster, and connects its workers before TensorFlow starts and while they train.

A start is one session with worker 0's store. It is at the coordinator's address, or at worker 0's
port in TF_CONFIG; then all addresses are known, and the start begins at 2:

    worker 1                                   worker 0
    1 `rendezvous.join`: where are the others?
      own address and version    ──member/1──▶ `StartRound`
                                 ◀─addresses── the addresses of all workers
    2 `rendezvous.meet`: do all have the same settings, and reach each other?
      each worker listens at its own port
                                 ◀───probe──── `PortProbes`: worker 0 tests each of these ports
      own settings, and ports
      that it cannot reach       ──member/1──▶ `StartRound` compares the settings of all
                                 ◀──result──── ok, or an error, which all workers raise
    3 all free their ports for TensorFlow; the session stays (`store.hand_over`)
    4 `health`: every second
      status of worker 1         ──member/1──▶ `HealthMonitor` of worker 0
                                 ◀─statuses─── the statuses of all as one short value

A failure, for example the end of worker 2's process:

    worker 2          worker 0                             worker 1
    is killed ─ ✕ ──▶ the connection ends: state "lost"
                      `diagnosis`: can I continue? no
                      prints why, ends collectives
                      statuses: 0 "aborted", 2 "lost" ───▶ `diagnosis`: can I continue? no
                                                           prints why, ends collectives
    WorkerLostError, which names worker 2, is raised on workers 0 and 1

If worker 0's process ends, the connections of all others end, and each of them decides so. If a
connection is silent, nobody is lost as long as collectives end (`health.heartbeat_detector`).

Reading order: `tasks` and `detection` (which workers there are), `channel`, `store` and
`store_client` (the store), `session`, `rendezvous` with `participant` (a start as each worker sees
it), `start_round` with `members` and `messages` (as worker 0 sees it), `port_probes`.
"""
