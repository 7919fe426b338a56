"""Detects the cluster, and connects its workers before TensorFlow starts and while they train.

Worker 0 serves a store. Each other worker has one connection to it at a time, which from step 3 on
stays to its end, and none to other workers. `AdasumMirroredStrategy()` calls `resolver.resolve`
(step 1) and `tf_adasum.startup.start` (the others):

    worker 1                                   worker 0
    1 only if no TF_CONFIG or resolver has the addresses: `detection` finds the worker's rank, the
      number of workers and the coordinator's address, and `rendezvous.join` sends:
      own address, number of     ─── key 1 ──▶ store at the coordinator's address: `StartRound`
      workers, version           ◀─addresses── compares them; the addresses of all workers
    2 `rendezvous.meet`, in the same connection; without 1, the store is at worker 0's own port:
      own settings, versions     ─── key 1 ──▶ `StartRound` compares those of all
                                 ◀──result──── ok, or an error, which all workers raise
      the result has arrived     ─── key 1 ──▶ worker 0 waits for it, for at most 10 s
    3 the store closes its port (`StoreServer.hand_over`). Without 1, TensorFlow listens there next;
      after 1, at another port, which `join` has chosen. The connections stay, but nobody can
      connect any more
    4 a thread of each worker begins the failure detector (`health.monitor`). Every second, and at
      once after a failure:
      own status                 ─── key 1 ──▶ `HealthMonitor` of worker 0
                                 ◀─statuses─── the statuses of all that matter, as one short value
    5 TensorFlow starts its servers. The other workers wait until worker 0's port answers. All
      exchange their ranks, and training begins

The key is 1/RUN, where RUN is a random number of this start of the worker.

A failure: worker 2's process is killed while workers 0 and 1 are in `fit`. The connection of worker
2 ends, so worker 0 sets its state to "lost", and sends the statuses. On each worker, `diagnosis`
decides from the statuses alone: this worker is in a call, so it cannot continue. It prints why, and
ends TensorFlow's collectives. They raise an error, which `fit` replaces by a WorkerLostError that
names worker 2. A worker in no call with the others raises this error at its next call.

During the start:

* If a worker does not start, worker 0 prints its name every 10 s. After the start timeout, 60 s for
  1 and 60 s for 2, all workers that are there raise a TimeoutError that names it.
* If a worker is silent for 5 s during 1 and 2, its session is over. Worker 0 waits until the start
  timeout for a new session of this worker. In 2, a worker whose connection has ended is lost if no
  new one comes within 5 s.
* If worker 0 is killed during 1, the others call again until the start timeout. In 2, they stop
  calling when the port has refused them for 5 s, or when a new worker 0 answers: after 1, it sends
  other addresses.
* During 5, nothing can end TensorFlow's start. A failure is printed, and TensorFlow's own timeout
  or a guard process (`start_timeout`) ends the worker.

During training:

* If worker 0 is killed, each other worker loses its connection, and decides the same by itself.
* A process that ends in order, even by an exception, sends "ended" first, and is not lost. A worker
  that has waited for it in a collective for 2 s raises an error that says so. After worker 0 has
  ended, the others get no statuses any more.
* If an exception leaves `fit`, the worker sends "failed"; if the script does not catch it, "ended"
  with the same reason follows. The others in that call raise an error with this reason after they
  have waited for 2 s.
* If a process is suspended, or a network cut, its connection is silent. Nobody is lost while
  collectives end. If none has ended for 30 s, worker 0 counts the silent worker as lost
  (`health.heartbeat_detector`). A worker that was cut off counts worker 0 as lost. One that was
  suspended reads, when it goes on, that the others have given up because of it.
* If the link between two other workers is cut, all wait in a collective. After 3 s they test their
  links to TensorFlow's ports, and after 30 s they raise an error that names the link
  (`health.reachability`).
* If a worker is alive but joins no collective, the others wait for 600 s, or for at most 120 s if
  all wait (`health.diagnosis`).
* If a worker gets SIGTERM, and `BackupAndRestore` handles it, its status asks for a stop. Worker 0
  sends the first stop point that no worker has passed (`health.graceful_stop`).

Reading order: `tf_adasum.startup` and `resolver`, which call the steps; `tasks` and `detection`
(which workers there are), `channel`, `store` and `session` (the store), `rendezvous` (a start as
each worker sees it), `start_round` with `members` and `messages` (as worker 0 sees it),
`start_timeout`; then `health.monitor`.
"""
