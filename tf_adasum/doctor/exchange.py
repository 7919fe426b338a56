"""Exchange gradients with the strategy, and measure it.

Each worker runs this module in a separate process (`run`), which can be ended even if TensorFlow
hangs:

    python -m tf_adasum.doctor.exchange FILE

The process writes the result, or the error, to the file.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster.timeouts import LEASE_SECONDS, POLL_SECONDS
from tf_adasum.doctor.findings import describe

BYTES = 2**22  # of the gradients of a replica
TIMES = 5
SECONDS = 150.0
LATE = f"not finished in {SECONDS:.0f} s"
_MODULE = "tf_adasum.doctor.exchange"
_SECONDS_TO_WAIT = 60.0  # for another worker


def run(is_stopped: Callable[[], bool]) -> dict[str, Any]:
    """Run the module `exchange` in a process, and end the process if it takes too long.

    Args:
        is_stopped: function that returns whether to end the process early.

    Returns:
        The results of `exchange`; only an "error" if the process has failed; an empty dict if
        it was ended early.
    """
    until = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(prefix="tf_adasum_doctor_") as folder:
        result, log = pathlib.Path(folder, "result.json"), pathlib.Path(folder, "log")
        command = [sys.executable, "-m", _MODULE, str(result)]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            while process.poll() is None:
                if is_stopped():
                    return {}
                if time.monotonic() > until:
                    return {"error": LATE}
                time.sleep(POLL_SECONDS)
            try:
                return json.loads(result.read_text())
            except (OSError, ValueError):
                lines = log.read_text(errors="replace").strip().splitlines() or [""]
                status = f"exit status {process.returncode}"
                return {"error": f"the process ended with {status}: {lines[-1]}"}
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(LEASE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(path: str) -> int:
    """Measure, write the results or the error to a file, and return the exit status."""
    try:
        found = measured()
    except BaseException as error:  # it is reported to worker 0
        found = {"error": describe(error)}
    with open(path, "w") as file:
        json.dump(found, file)
    return int("error" in found)


def measured() -> dict:
    """Return the devices of the strategy, and the measured times of the exchange.

    All replicas have the same gradients, so their Adasum must equal these gradients.
    """
    import tensorflow as tf

    import tf_adasum
    from tf_adasum.compat import tensorflow as tensorflow_compat

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=_SECONDS_TO_WAIT)
    strategy = tf_adasum.AdasumMirroredStrategy(communication_options=options)
    devices = [each.partition("device:")[2] for each in strategy.extended.worker_devices]
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    over = collectives.transport_summary or "TensorFlow's collectives"

    @tf.function(autograph=False)
    def exchange(gradients: Any) -> Any:
        def combine(own: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [own], options=strategy.gradient_reduction)[0]

        return strategy.run(combine, args=(gradients,))

    seconds = []
    with strategy.working_together():
        gradients = strategy.experimental_distribute_values_from_function(
            lambda context: tf.linspace(-1.0, 1.0, BYTES // 4)
        )
        expected = strategy.experimental_local_results(gradients)[0]
        for number in range(1 + TIMES):  # the first exchange traces the function
            begun = time.perf_counter()
            result = strategy.experimental_local_results(exchange(gradients))[0]
            first = float(result[0])  # wait for it
            if number:
                seconds.append(time.perf_counter() - begun)
            elif abs(first + 1.0) > 1e-5 or float(tf.reduce_max(abs(result - expected))) > 1e-5:
                raise ArithmeticError(
                    "the Adasum of equal gradients differs from these gradients; its first "
                    f"element is {first}, and -1 was expected"
                )
    found = {"bytes": BYTES, "seconds": sorted(seconds), "over": over}
    return {"devices": devices, "exchange": found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
