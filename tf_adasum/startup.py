"""Start the workers: the rendezvous, the failure detector, and then TensorFlow.

TensorFlow's own start waits for missing workers without any message, in some cases forever. So the
workers first join a rendezvous (`cluster.rendezvous`), at which they compare their settings. A
guard ends this process if TensorFlow's start does not return (`cluster.start_timeout`).
"""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_adasum import environment_variables
from tf_adasum.aggregation import Scheme
from tf_adasum.aggregation.rules import AggregationRule
from tf_adasum.arguments import check
from tf_adasum.cluster import ports, rendezvous, start_timeout
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import PATIENCE_SECONDS
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import LAUNCHER, WorkerLostError, hint, see
from tf_adasum.health import monitor
from tf_adasum.transport import argument, library, selection
from tf_adasum.transport.collectives import UcxTransport
from tf_adasum.workers import agreement
from tf_adasum.workers.workers import Workers, texts_of_all


def options_of_collectives(
    options: tensorflow_compat.CommunicationOptions | None,
) -> tensorflow_compat.CommunicationOptions:
    """Return the argument `communication_options` of a strategy without the timeout.

    For a timeout, TensorFlow would keep one thread for each collective. `HealthMonitor` limits the
    wait with one thread for all collectives.

    Raises:
        ValueError: for an object of another class.
    """
    options = tensorflow_compat.CommunicationOptions() if options is None else options
    is_valid = isinstance(options, tensorflow_compat.CommunicationOptions)
    expected = "must be tf.distribute.experimental.CommunicationOptions"
    check("communication_options", options, is_valid, expected)
    return tensorflow_compat.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack, implementation=options.implementation
    )


_LONGEST_REFUSAL = 1000  # characters


@contextlib.contextmanager
def refusing_together(cluster: Cluster | None) -> Iterator[None]:
    """If the arguments of one worker are refused, let all workers raise an error without waiting.

    Args:
        cluster: the cluster; None without a cluster.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if cluster is not None and cluster not in monitor.monitors:
            why = f"{type(error).__name__}: {error}"[:_LONGEST_REFUSAL]
            refused = {agreement.ARGUMENTS: f"refused ({why})"}
            with contextlib.suppress(OSError, ValueError, WorkerLostError):
                # The others get the error, too.
                rendezvous.meet(cluster, refused, PATIENCE_SECONDS).close()
            rendezvous.forget(cluster)
        raise


def reduction_size(local_reduction: str | None, cluster: Cluster | None, devices: int) -> int:
    """Return the number of replicas that are averaged before the rule combines the averages.

    If `local_reduction` is "mean", it is the number of replicas of a host. If None, it is 1.

    Args:
        local_reduction: the strategy's argument, "mean" or None.
        cluster: the cluster; None without a cluster.
        devices: the number of this worker's devices.

    Raises:
        ValueError: if `local_reduction` has another value, or if hosts have different numbers of
            workers.
    """
    if local_reduction is None:
        return 1
    is_mean = local_reduction == "mean"
    check("local_reduction", local_reduction, is_mean, "must be 'mean' or None")
    if cluster is None:
        return devices
    averaged = replicas_per_host(cluster, devices)
    if averaged is None:
        raise ValueError(
            "local_reduction='mean' needs the same number of workers on every host, and workers of "
            f"one host next to each other in the cluster. Received: {', '.join(cluster.addresses)}"
        )
    return averaged


def replicas_per_host(cluster: Cluster | None, devices: int) -> int | None:
    """Return the number of replicas on each host; None if it differs, or without a cluster.

    Args:
        cluster: the cluster; None without a cluster.
        devices: the number of this worker's devices.
    """
    workers = cluster and cluster.workers_per_host()
    return workers and devices * workers


_log = logging.getLogger("tf_adasum")


def summary(workers: int, devices: int, rule: AggregationRule, transport: str) -> str:
    """Return the line that worker 0 prints at the start: workers, replicas, transport and rule.

    Args:
        workers: the number of workers.
        devices: the number of devices of each worker.
        rule: the aggregation rule.
        transport: the transport of the gradients between workers; "" on one worker.

    Example:
        >>> summary(4, 2, tf_adasum.rules.Sum(), "UCX")
        '4 workers, 8 replicas over UCX, rule Sum'
    """
    over = f" over {transport}" if transport else ""
    topology = f"{_count(workers, 'worker')}, {_count(workers * devices, 'replica')}{over}"
    return f"{topology}, rule {type(rule).__name__}"


def details(source: str, workers: int, devices: int, scheme: Scheme, transport: str = "") -> str:
    """Return how the cluster was detected, the rule with its arguments, and the transport.

    Args:
        source: where the cluster was detected, such as "TF_CONFIG"; "" without a cluster.
        workers: the number of workers.
        devices: the number of devices of each worker.
        scheme: the rule and the plan.
        transport: the transport, and the trial that chose it. Defaults to "": no trial was made.

    Example:
        >>> details("TF_CONFIG", 4, 1, Scheme(tf_adasum.rules.Sum(), 4))
        'TF_CONFIG: 4 workers x 1 device, rule Sum(), radix plan [4]'
    """
    topology = f"{_count(workers, 'worker')} x {_count(devices, 'device')}"
    over = f", over {transport}" if transport else ""
    return f"{source or 'no cluster found'}: {topology}, {scheme.summary()}{over}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


def report(
    cluster: Cluster | None,
    devices: int,
    scheme: Scheme,
    extended: tensorflow_compat.GradientAggregatingExtended,
) -> None:
    """On worker 0, print the `summary` and log the `details`.

    Args:
        cluster: the cluster; None without a cluster.
        devices: the number of devices of each worker.
        scheme: the rule and the plan.
        extended: the strategy's `extended`.
    """
    if cluster and cluster.rank > 0:
        return
    workers = len(cluster.addresses) if cluster else 1
    collectives = tensorflow_compat.cross_device_ops(extended)
    transport = "UCX" if collectives.transport else "TensorFlow's collectives"
    is_by_hand = cluster is None and devices == 1 and LAUNCHER not in os.environ
    more = "; to use more, start it with tf-adasum-launch" if is_by_hand else ""
    hint(summary(workers, devices, scheme.rule, transport if workers > 1 else "") + more)
    source = cluster.source if cluster else ""
    _log.info(details(source, workers, devices, scheme, collectives.transport_summary))


def start(
    strategy: tf.distribute.Strategy,
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    cluster: Cluster | None,
    *,
    settings: dict,
    options: tensorflow_compat.CommunicationOptions,
    start_timeout: float | None,
    timeout: float | None,
    devices: tuple[str, ...],
    cross_device_ops: Callable,
    transport: str,
) -> tuple[
    tensorflow_compat.GradientAggregatingExtended, monitor.HealthMonitor | monitor.NullMonitor
]:
    """Connect the workers, start TensorFlow, and return the strategy's `extended`.

    Args:
        strategy: the strategy that is being created.
        resolver: the strategy's cluster resolver.
        cluster: the cluster; None without a cluster.
        settings: the settings that must match on all workers, see `workers.agreement.settings`.
        options: the options of the strategy's collectives.
        start_timeout: seconds to wait for the other workers at the start; None for the default.
        timeout: seconds to wait for a worker that runs, later; None for the default.
        devices: names of this worker's devices.
        cross_device_ops: function that makes the `AdasumCrossDeviceOps`.
        transport: the transport of the gradients, "tensorflow", "ucx" or "auto".

    Returns:
        The strategy's `extended`, and the failure detector.

    Raises:
        RuntimeError: on several workers, if TensorFlow has already run an operation.
        OSError, TimeoutError, ValueError, WorkerLostError: as for `AdasumMirroredStrategy`.
    """
    seconds = environment_variables.start_timeout(start_timeout)
    deadline = time.monotonic() + seconds

    def make():
        return tensorflow_compat.GradientAggregatingExtended(
            strategy,
            resolver,
            options,
            local_devices=devices,
            cross_device_ops=cross_device_ops,
            register_timeout=seconds * 0.8,  # so that TensorFlow's error precedes the guard's
            heartbeat_timeout=seconds + 5,  # so that the failure detector names the worker first
        )

    if cluster is None:
        return make(), monitor.NullMonitor()
    with _held_port(cluster), contextlib.ExitStack() as if_it_fails:
        if_it_fails.callback(rendezvous.forget, cluster)  # so that the workers can join again
        health = monitor.begin(cluster, settings, timeout, seconds)
        is_first = health.status.state == "starting"
        if is_first:
            with _starting_tensorflow(cluster, seconds, health):
                if cluster.rank > 0:
                    ports.wait_for_server(cluster.addresses[0])
                extended = make()
        if_it_fails.pop_all()
    if is_first:
        _announce(extended, health)
    # Later, TensorFlow already runs, and the other workers may be busy. So the failure detector
    # limits the wait for them, as in every call.
    limit = max(1.0, deadline - time.monotonic()) if is_first else None
    with (
        health.call(tensorflow_compat.collective_error_of),
        _naming_the_others(cluster, limit or health.collective_timeout, health),
    ):
        if not is_first:
            extended = make()
            _announce(extended, health)
        collectives = tensorflow_compat.cross_device_ops(extended)
        collectives.exchange_ranks(tensorflow_compat.first_replica(extended), _timeout(limit))
        gather = functools.partial(collectives.gather_from_workers, options=_timeout(None))
        if not is_first:
            Workers(cluster.rank, len(cluster.addresses), gather, None).check_same(
                "All workers have to make their strategies in the same order, with the same "
                "settings.",
                ", ".join(f"{name}: {value}" for name, value in settings.items()),
                code="TFA-211",
            )
        _connect(extended, cluster, transport, gather, health)
    if is_first and cluster.rank > 0 and LAUNCHER in os.environ:
        keras_compat.hide_progress_bars()  # only the first worker has one
    return extended, health


def _connect(extended, cluster, transport, gather, health):
    """If UCX is chosen and works, let it send the gradients; a single process sends nothing."""
    collectives = tensorflow_compat.cross_device_ops(extended)
    if transport == argument.TENSORFLOW or collectives.all_local:
        return
    devices = collectives.local_devices
    share = functools.partial(texts_of_all, gather=gather)
    choice = selection.select(cluster, transport, devices, share)
    collectives.transport_summary = choice.summary
    if choice.mesh is None:
        return
    health.reachability.ucx_ports = choice.endpoints
    collectives.transport = UcxTransport(
        choice.mesh, devices=len(devices), first_replica=tensorflow_compat.first_replica(extended)
    )


def _end_collectives(message):
    """End all operations in which this process waits for other workers."""
    library.abort(message)
    selection.forget()
    tensorflow_compat.abort_collectives(message)


def _timeout(seconds):
    return tensorflow_compat.CommunicationOptions(timeout_seconds=seconds)


def _announce(extended, health):
    """Let the failure detector count and end collectives."""
    counters = tensorflow_compat.cross_device_ops(extended).counters
    if counters is not None:
        health.started(counters.read, _end_collectives)


@contextlib.contextmanager
def _starting_tensorflow(cluster, seconds, health) -> Iterator[None]:
    """Limit the start of TensorFlow, and raise errors that say what to do if it fails."""
    try:
        with (
            start_timeout.bounded(cluster, seconds),
            health.call(tensorflow_compat.collective_error_of),
        ):
            yield
    except BaseException as error:
        if health.status.state == "starting":
            health.stop()
        is_unknown = isinstance(error, tf.errors.UnknownError)
        if is_unknown and "Could not start gRPC server" in str(error):
            ports.listening_socket(cluster).close()  # or raise an error that names the port
        if isinstance(error, RuntimeError) and "at program startup" in str(error):
            raise RuntimeError(
                "On several workers AdasumMirroredStrategy must be created before TensorFlow runs "
                f"its first operation: move it to the top of the script. {see('TFA-204')}"
            ) from error
        raise


def _held_port(cluster) -> contextlib.AbstractContextManager:
    """Hold this worker's port between the rendezvous and the start of TensorFlow's server."""
    if ports.can_be_held():
        # Holding fails if the port is in use. If another process uses it, the rendezvous reports
        # which one. TensorFlow may also use the port, for another strategy of this process.
        with contextlib.suppress(OSError):
            return ports.hold(cluster.host_and_port(cluster.rank)[1], shared=True)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _naming_the_others(cluster, seconds, health) -> Iterator[None]:
    """Raise an error that names the missing workers; TensorFlow reports only a timeout."""
    try:
        yield
    except tf.errors.DeadlineExceededError as error:
        others = [rank for rank in range(len(cluster.addresses)) if rank != cluster.rank]
        cut = health.status.unreachable
        raise TimeoutError(
            f"{cluster.names[cluster.rank]} has waited {seconds:.0f} s at the start of a strategy, "
            f"but not all of {cluster.named(others)} have joined"
            f"{cut and f'; it cannot reach {cut}'}. All workers have to make the "
            "same strategies, in the same order. Restart all workers, or wait longer with "
            f"AdasumMirroredStrategy(start_timeout=...). {see('TFA-211')}"
        ) from error
