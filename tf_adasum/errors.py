"""The exceptions with names of their own, and what messages end with."""


def see(code: str) -> str:
    """Return the end of a message: the command that shows its answer in docs/troubleshooting.md.

    Args:
        code: of the answer, which the page's heading begins with.

    Example:
        >>> see("TFA-501")
        '(tf-adasum-doctor --explain TFA-501)'
    """
    return f"(tf-adasum-doctor --explain {code})"


class WorkerLostError(RuntimeError):
    """Another worker has ended, stopped, failed or cannot be reached: this one cannot go on.

    The message names it, or says what broke, and what to do. TensorFlow's collectives stay
    unusable until the process starts again; saving weights still works.

    Example:
        >>> try:
        ...     history = model.fit(x, y, verbose=0)
        ... except tf_adasum.WorkerLostError as error:
        ...     model.save_weights("last.weights.h5")
        ...     raise
    """


class ReplicasDiffer(RuntimeError):
    """Replicas hold different values of a variable that they share; raised on all workers.

    The message names the first such variable and the replicas.

    Example:
        >>> try:
        ...     strategy.check_replicas()
        ... except tf_adasum.ReplicasDiffer as error:
        ...     print(error)
    """


class DamagedBackup(Exception):
    """A backup is cut off or damaged; the message names the file."""
