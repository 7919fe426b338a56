"""The exceptions that this package raises by a name of its own."""


class WorkerLostError(RuntimeError):
    """Another worker has ended, stopped, failed or cannot be reached: this one cannot go on.

    The message names it, or says what broke, and what to do. TensorFlow's collectives stay
    unusable until the process starts again; saving weights still works.
    """


class ReplicasDiffer(RuntimeError):
    """Replicas hold different values of a variable that they share; raised on all workers."""


class DamagedBackup(Exception):
    """A backup is cut off or damaged; the message names the file."""
