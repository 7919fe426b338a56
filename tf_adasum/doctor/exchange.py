"""Combine equal gradients of the replicas of all workers, which are their own Adasum.

Each worker runs this module in a new process, because a strategy has to be created before
TensorFlow does anything else, and because a process can be ended:

    python -m tf_adasum.doctor.exchange
"""

import subprocess
import sys
from typing import Any

from tf_adasum.doctor.findings import FAIL, OK, Finding
from tf_adasum.environment_variables import DEFAULT_START_TIMEOUT

SECONDS = 150.0
_ELEMENTS = 2**20


def check_exchange() -> list[Finding]:
    """Run this module; its last line is the result, or the error."""
    command = [sys.executable, "-m", __name__]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    (*_, line) = "", *(ended.stderr if ended.returncode else ended.stdout).strip().splitlines()
    if ended.returncode:
        text = f"the process ended with exit status {ended.returncode}: {line}"
        return [Finding(FAIL, "exchange", text)]
    return [Finding(OK, "exchange", line)]


def main() -> None:
    """Combine gradients on all replicas, and print over which transport."""
    import tensorflow as tf

    import tf_adasum
    from tf_adasum.compat import tensorflow as tensorflow_compat

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=DEFAULT_START_TIMEOUT)
    strategy = tf_adasum.AdasumMirroredStrategy(communication_options=options)
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    over = collectives.transport_summary or "TensorFlow's collectives"

    @tf.function(autograph=False)
    def errors() -> Any:
        def error() -> Any:
            own = tf.linspace(-1.0, 1.0, _ELEMENTS)
            context = tf.distribute.get_replica_context()
            (combined,) = context.all_reduce("SUM", [own], options=strategy.gradient_reduction)
            return tf.reduce_max(abs(combined - own))

        return strategy.run(error)

    worst = max(map(float, strategy.experimental_local_results(errors())))
    if not worst <= 1e-5:
        sys.exit(f"Adasum of equal gradients differs from them by {worst}")
    print(f"{strategy.num_replicas_in_sync} replicas combine gradients over {over}")


if __name__ == "__main__":
    main()
