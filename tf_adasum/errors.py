"""The exceptions of this package, and the code at the end of messages."""


def see(code: str) -> str:
    """Return the end of a message: the command that prints its answer in docs/troubleshooting.md.

    Args:
        code: the code of the answer, such as "TFA-501".

    Example:
        >>> see("TFA-501")
        '(tf-adasum-doctor --explain TFA-501)'
    """
    return f"(tf-adasum-doctor --explain {code})"


class WorkerLostError(RuntimeError):
    """Another worker ended, stopped, failed or cannot be reached, so this worker cannot continue.

    The message names that worker or the broken connection, and what to do. TensorFlow's
    collectives cannot be used any more in this process; you can still save weights.

    Example:
        >>> try:
        ...     history = model.fit(x, y, verbose=0)
        ... except tf_adasum.WorkerLostError as error:
        ...     model.save_weights("last.weights.h5")
        ...     raise
    """


class ReplicasDiffer(RuntimeError):
    """Replicas hold different values of a variable that should be equal; raised on all workers.

    The message names the first such variable and the replicas.

    Example:
        >>> try:
        ...     strategy.check_replicas()
        ... except tf_adasum.ReplicasDiffer as error:
        ...     print(error)
    """


class DamagedBackup(Exception):
    """A backup is cut off or damaged; the message names the file."""
