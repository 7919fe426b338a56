"""Measure exchanges of gradients with the strategy.

Each worker runs this module in a separate process:

    python -m tf_adasum.doctor.exchange FILE

The process writes the result, or the error, to the file. If it takes too long, the doctor ends the
process.
"""

import json
import sys
import time

from tf_adasum.doctor.findings import describe

MIB = 2**20
SIZES = (4 * MIB, 64 * MIB)  # of the gradients of a replica, in bytes
MOST_TIMES = 5
SECONDS_FOR_A_SIZE = 5.0  # a size that takes longer is exchanged fewer times, or skipped
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
    """Return the devices of the strategy, and the measured times for each size."""
    import tensorflow as tf

    import tf_adasum
    from tf_adasum.compat import tensorflow as tensorflow_compat

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=_SECONDS_TO_WAIT)
    strategy = tf_adasum.AdasumMirroredStrategy(communication_options=options)
    devices = [each.partition("device:")[2] for each in strategy.extended.worker_devices]
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    over = collectives.transport_summary or "TensorFlow's collectives"

    @tf.function(autograph=False)
    def exchange(gradients):
        def combine(own):
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [own], options=strategy.gradient_reduction)[0]

        return strategy.run(combine, args=(gradients,))

    def times_of(size):
        """Return the seconds of each exchange, sorted.

        All replicas have the same gradients, so their Adasum must equal these gradients.
        """
        gradients = strategy.experimental_distribute_values_from_function(
            lambda context: tf.linspace(-1.0, 1.0, size // 4)
        )
        expected = strategy.experimental_local_results(gradients)[0]
        seconds = []
        for number in range(1 + MOST_TIMES):  # the first exchange traces the function
            begun = time.perf_counter()
            result = strategy.experimental_local_results(exchange(gradients))[0]
            first = float(result[0])  # wait for it
            took = time.perf_counter() - begun
            if number:
                seconds.append(took)
            elif abs(first + 1.0) > 1e-5 or float(tf.reduce_max(abs(result - expected))) > 1e-5:
                raise ArithmeticError(
                    "the Adasum of equal gradients differs from these gradients; its first "
                    f"element is {first}, and -1 was expected"
                )
            is_long = (number + 1) * took > SECONDS_FOR_A_SIZE and bool(seconds)
            if strategy.workers.broadcast(int(is_long)):  # all workers stop, or none
                break
        return sorted(seconds)

    found = []
    with strategy.working_together():
        for size in SIZES:
            expected = found and found[-1]["seconds"][0] * size / found[-1]["bytes"]
            if strategy.workers.broadcast(int(bool(found) and expected > SECONDS_FOR_A_SIZE)):
                found.append({"bytes": size, "left_out": True, "expected_seconds": expected})
            else:
                found.append({"bytes": size, "seconds": times_of(size), "over": over})
    return {"devices": devices, "exchanges": found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
