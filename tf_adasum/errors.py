"""What this package raises that no other exception says."""


class WorkerLostError(RuntimeError):
    """Another worker has ended, stopped or failed, so that this one cannot go on.

    The message names it and says what to do. TensorFlow's collectives stay unusable until the
    process starts again; saving weights still works.
    """
