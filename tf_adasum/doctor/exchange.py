"""Exchange gradients with the strategy, and measure it.

Each worker runs this module in a separate process:

    python -m tf_adasum.doctor.exchange FILE

The process writes the result, or the error, to the file. If it takes too long, the doctor ends the
process.
"""

import json
import sys
import time
from typing import Any

from tf_adasum.doctor.findings import describe

BYTES = 2**22  # of the gradients of a replica
TIMES = 5
_SECONDS_TO_WAIT = 60.0  # for another worker


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
