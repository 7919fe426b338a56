"""Where the time of a step on a GPU goes, from a trace of TensorFlow's profiler."""

import collections
import re
from pathlib import Path

import report

GAP = 10_000  # nanoseconds without a kernel or a copy that count as a gap
# The first pattern that matches the name of a kernel decides its group.
GROUPS = {
    "Adasum kernels": r"adasum|pairwise|segment_gram|weighted_sum",
    "NCCL": r"nccl",
    "copies": r"memcpy|memset",
    "concat and split": r"concat|split|slice",
    "matrix products and convolutions": (
        r"gemm|conv|cudnn|xmma|cutlass|nchw|nhwc|winograd|wgrad|dgrad"
    ),
    "other kernels": r"",
}


def section(key, folder):
    """Return the table of groups and the largest gaps, as text."""
    model, precision, _, strategy = key
    events = _events(folder)
    title = f"**{model}, {precision}, {strategy}.** "
    if not events:
        return title + "The trace has no events of a GPU."
    seconds, counts = collections.Counter(), collections.Counter()
    gaps = []
    end, before = events[0][0], "the start"
    for start, duration, name in events:
        group = next(g for g, pattern in GROUPS.items() if re.search(pattern, name, re.I))
        seconds[group] += duration
        counts[group] += 1
        if start - end > GAP:
            gaps.append((start - end, before, name))
        if start + duration > end:
            end, before = start + duration, name
    window = end - events[0][0]
    idle = sum(gap for gap, _, _ in gaps)
    busy = sum(seconds.values())
    rows = [
        [group, counts[group], f"{seconds[group] / busy:.1%}"] for group in GROUPS if counts[group]
    ]
    # Between two `fit` calls and epochs, the host prepares the data.
    largest = [
        f"{gap / 1e6:.2f} ms after `{_short(a)}`, before `{_short(b)}`"
        for gap, a, b in sorted(gaps, reverse=True)[:5]
    ]
    return (
        f"{title}{window / 1e6:.0f} ms traced; no kernel for {idle / window:.1%} of it, in "
        f"{len(gaps)} gaps above {GAP // 1000} µs.\n\n"
        + report.table(["group", "kernels", "share of the GPU's time"], rows)
        + "\n\nLargest gaps: "
        + "; ".join(largest)
        + "."
    )


def _short(name):
    return re.sub(r"<.*|\(.*", "", name)[:60]


def _events(folder):
    """Return (start, duration, name) in nanoseconds of all kernels and copies, sorted."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    events = []
    for path in Path(folder).rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            for line in plane.lines:
                if not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    start = line.timestamp_ns + event.offset_ps // 1000
                    name = plane.event_metadata[event.metadata_id].name
                    events.append((start, event.duration_ps // 1000, name))
    return sorted(events)
