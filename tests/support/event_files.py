"""What TensorBoard shows of a folder, read by TensorBoard's own reader."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def scalars_in(folder):
    """Return what was written to the event files of a folder.

    Returns:
        Dict from tags to lists of pairs, the step and the value, in the order of writing. A tag
        with other values than scalars, such as histograms, has None in their place.
    """
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})  # 0: all
    accumulator.Reload()
    return {
        tag: [(event.step, _scalar(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
    }


def _scalar(proto):
    array = tensor_util.make_ndarray(proto)
    return float(array) if array.ndim == 0 and array.dtype.kind == "f" else None
