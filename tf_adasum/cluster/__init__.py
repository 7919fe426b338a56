"""Detects the cluster, and connects its workers before TensorFlow starts and while they train.

Worker 0 serves a store. Each other worker has one connection to it, from its start to its end, and
none to other workers. `AdasumMirroredStrategy()` calls (`startup.start`):

    worker 1                                   worker 0
    1 `rendezvous.join`, only if no TF_CONFIG or resolver has the addresses. Then `detection` finds
      the worker's rank, the number of workers and the coordinator's address:
      own address and version    ──member/1──▶ store at the coordinator's address (`StartRound`)
                                 ◀─addresses── the addresses of all workers
    2 `rendezvous.meet`, in the same connection; without 1, the store is at worker 0's own port:
      own settings               ──member/1──▶ `StartRound` compares the settings of all
                                 ◀──result──── ok, or an error, which all workers raise
    3 the store closes its port (`StoreServer.hand_over`). Without 1, TensorFlow listens there next;
      after 1, at another port, which `join` has chosen. The connections stay, but nobody can
      connect any more
    4 a thread of each worker begins the failure detector (`health.monitor`). Every second, and at
      once after a failure:
      own status                 ──member/1──▶ `HealthMonitor` of worker 0
                                 ◀─statuses─── the statuses of all that matter, as one short value
    5 TensorFlow starts its servers, that of worker 0 first, workers exchange their ranks, and
      training begins

The key is member/1/RUN, where RUN is a random number of this start of the worker.

A failure: worker 2's process is killed while workers 0 and 1 are in `fit`. The connection of worker
2 ends, so worker 0 sets its state to "lost", and sends the statuses. On each worker, `diagnosis`
decides from the statuses alone: this worker is in a call, so it cannot continue. It prints why, and
ends TensorFlow's collectives. They raise an error, which `fit` replaces by a WorkerLostError that
names worker 2. A worker in no call with the others raises this error at its next call.

* If worker 0 is killed, each other worker loses its connection, and decides the same by itself.
  During 1 and 2, it calls again, until the start timeout, or in 2 until the port has refused it
  for 5 s, or a new worker 0 sends other addresses.
* If a worker is silent for 5 s during 1 and 2, worker 0 waits for it to come back. It is lost if
  its connection ends in 2, and no new one comes within 5 s.
* A process that ends in order, even by an exception, sends "ended" first, and is not lost. A worker
  that has waited for it in a collective for 2 s raises an error that says so. After worker 0 has
  ended, the others get no statuses any more.
* If an exception leaves `fit`, the worker lives and sends "failed". The others in that call raise
  an error with its reason after they have waited for 2 s.
* If a network is cut, a connection is silent. Nobody is lost while collectives end. If none has
  ended for 30 s, worker 0 counts the silent worker as lost, and that worker counts worker 0 as lost
  (`health.heartbeat_detector`).
* If the link between two other workers is cut, all wait in a collective. After 3 s they test their
  links to TensorFlow's ports, and after 30 s they end (`health.reachability`).
* If a worker is alive but joins no collective, the others wait for 600 s, or for at most 120 s if
  all wait (`health.diagnosis`).
* If a worker gets SIGTERM, and `BackupAndRestore` handles it, its status asks for a stop. Worker 0
  sends the first stop point that no worker has passed (`health.graceful_stop`).

Reading order: `startup` and `resolver`, which call the steps; `tasks` and `detection` (which
workers there are), `channel`, `store` and `store_client` (the store), `session`, `rendezvous` with
`participant` (a start as each worker sees it), `start_round` with `members` and `messages` (as
worker 0 sees it); then `health.monitor`.
"""
