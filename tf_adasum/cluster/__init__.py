"""Detects the cluster, and connects its workers before TensorFlow starts and while they train.

TensorFlow's start names no missing worker, and nothing can end it. So all workers connect before:
worker 0 serves a store, to which each other worker has one connection at a time, and none to other
workers. Both ends first prove that they have the same secret (`channel`). `resolver.resolve` (step
1) and `tf_adasum.startup.start` (the others) are called by `AdasumMirroredStrategy()`:

    worker 1                                   worker 0
    1 only if no TF_CONFIG or resolver has the addresses: `detection` finds the worker's rank, the
      number of workers and the coordinator's address, and `rendezvous.join` sends:
      own address, number of     ─── key 1 ──▶ store at the coordinator's address: `StartRound`
      workers, version           ◀─addresses── compares them; the addresses of all workers
    2 `rendezvous.meet`, in the same connection; without 1, the store is at worker 0's own port,
      and each other worker listens at its own, so that no other program takes it:
      own settings, versions     ─── key 1 ──▶ `StartRound` compares those of all
                                 ◀──result──── ok, or an error, which all workers raise
      the result has arrived     ─── key 1 ──▶ worker 0 waits for it, for at most 10 s
    3 the store closes its port (`StoreServer.hand_over`). Without 1, TensorFlow listens there next;
      after 1, at another port, which `join` has chosen. The connections stay, but nobody can
      connect any more
    4 a thread of each worker begins the failure detector (`health.monitor`). Every second, and at
      once after a failure:
      own status                 ─── key 1 ──▶ `HealthMonitor` of worker 0
                                 ◀─statuses─── its own, those of workers that have stopped, and
                                               all while one waits; at most 60,000 characters
    5 TensorFlow starts its servers. The other workers wait until worker 0's port answers. All
      exchange their ranks, and training begins

The key is 1/RUN, where RUN is a random number of this start of the worker.

A failure: worker 2's process is killed while workers 0 and 1 are in `fit`. The connection of worker
2 ends, so worker 0 sets its state to "lost", and sends the statuses. On each worker, `diagnosis`
decides from the statuses alone: this worker is in a call, so it cannot continue. It prints why, and
ends TensorFlow's collectives. They raise an error, which `fit` replaces by a WorkerLostError that
names worker 2, within about a second. If TensorFlow's own error comes first, `fit` waits up to 4 s
for the statuses. A worker in no call with the others raises this error at its next call.

During the start:

* If a worker does not start, the others print its name every 10 s. After the start timeout, 60 s
  for 1 and 60 s for 2, all workers that are there raise a TimeoutError that names it.
* If a worker is silent for 5 s during 1 and 2, its session is over. Worker 0 waits until the start
  timeout for a new session of this worker. In 2, a worker whose connection has ended is lost if no
  new one comes within 5 s: all raise a WorkerLostError. After 1, a restarted worker is refused.
* If worker 0 is killed during 1, the others call again until the start timeout. In 2, they raise a
  WorkerLostError when the port has refused them for 5 s, or, after 1, when a new worker 0 sends
  other addresses. Without 1, they go on with the new worker 0.
* If a worker has another secret, it raises a ValueError after 5 s. The others do at the start
  timeout; without 1, 2 s after only such workers are missing.
* During 5, nothing can end TensorFlow's start. Worker 0 may hold Python's lock, and then prints and
  sends nothing. TensorFlow's own timeout, 0.8 of the start timeout, ends this worker's start, or
  its guard process (`start_timeout`) kills it when 5 has lasted for the start timeout.

During training:

* If worker 0 is killed, each other worker loses its connection, and decides the same by itself.
* A process that ends in order, even by an exception, sends "ended" first, and is not lost. A worker
  that has waited for it in a collective for 2 s raises an error that says so.
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
* If a worker is alive but joins no collective, the others wait for 600 s, or, if all wait, for 3 to
  120 s. Worker 0 and each other worker also compare their last calls, and raise an error at once
  if these are not the same (`health.diagnosis`, `health.call_log`).
* If a worker gets SIGTERM, and `BackupAndRestore` handles it, its status asks for a stop. Worker 0
  sends the first stop point that no worker has passed (`health.graceful_stop`).

Reading order: `tf_adasum.startup` and `resolver`, which call the steps; `tasks` and `detection`
(which workers there are), `channel`, `store` and `session` (the store), `rendezvous` (a start as
each worker sees it), `start_round` with `members` and `messages` (as worker 0 sees it),
`start_timeout`; then `health.monitor`.
"""
