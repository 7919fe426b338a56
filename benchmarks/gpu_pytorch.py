"""The operations of the kernels in plain PyTorch, which kernels_gpu.py measures as baselines."""

import functools

import numpy as np
from support.cuda_library import PAIRWISE_COMBINE, SEGMENT_GRAM, SEGMENT_WEIGHTED_SUM

# The allowed relative errors of PyTorch, which also rounds intermediate results to the operands'
# type.
OF_PYTORCH = {"float16": 0.01, "bfloat16": 0.05, "float32": 1e-3, "float64": 1e-9}


def plain_pytorch(torch, operation, segments, device="cuda"):
    """Return an operation in eager PyTorch, and in a form that torch.compile can fuse.

    For one segment, it uses `torch.dot` and matrix products; for several, `torch.segment_reduce`
    over products. All except matrix products is computed in float32, or in float64 for float64.
    """
    one_segment = len(segments) == 2
    offsets = torch.tensor(segments, device=device)
    lengths = torch.diff(offsets)

    def wide(x):
        return x if x.dtype == torch.float64 else x.float()

    def fused_dot(x, y):
        if one_segment:
            return (x * y).sum()
        return torch.segment_reduce(x * y, "sum", offsets=offsets)

    def eager_dot(x, y):
        return torch.dot(x, y) if one_segment else fused_dot(x, y)

    def spread(c_S):
        if one_segment:
            return c_S
        return torch.repeat_interleave(c_S, lengths, output_size=int(segments[-1]))

    def pairwise(dot, a, b):
        x, y = wide(a), wide(b)
        xy, xx, yy = dot(x, y), dot(x, x), dot(y, y)
        c_x, c_y = 1 - xy / (2 * xx), 1 - xy / (2 * yy)
        return (spread(c_x) * x + spread(c_y) * y).to(a.dtype)

    def gram(rows):
        if one_segment:
            return (rows @ rows.T)[None]
        x = wide(rows)
        of_pairs = [torch.stack([fused_dot(u, v) for v in x], dim=-1) for u in x]
        return torch.stack(of_pairs, dim=-2)

    def weighted_sum(rows, c_SR):
        x = wide(rows)
        terms = [spread(c.to(x.dtype)) * row for c, row in zip(c_SR.T, x, strict=True)]
        return functools.reduce(torch.add, terms).to(rows.dtype)

    def product_sum(rows, c_SR):
        return (c_SR.to(rows.dtype) @ rows)[0]

    return {
        PAIRWISE_COMBINE: (
            functools.partial(pairwise, eager_dot),
            functools.partial(pairwise, fused_dot),
        ),
        SEGMENT_GRAM: (gram, gram),
        SEGMENT_WEIGHTED_SUM: (product_sum if one_segment else weighted_sum, weighted_sum),
    }[operation]


def baselines(bench, what, dtype, operation, segments, sets, expected):
    """Return PyTorch's calls on the same buffers, if they run and give the right numbers.

    `sets` has the arguments of each call, as tensors.
    """
    if not bench.device.torch:  # a dry run
        return {}
    torch = bench.device.torch
    eager, fusible = plain_pytorch(torch, operation, segments)
    makers = {"PyTorch": lambda: eager}
    if bench.with_compile:
        torch.compiler.reset()  # otherwise, it uses eager mode after some shapes
        makers["torch.compile"] = lambda: torch.compile(fusible, dynamic=False)
    ways = {}
    for name, make in makers.items():
        try:
            function = make()
            actual = function(*sets[0]).double().cpu().numpy()
        except Exception as error:  # continue without a baseline that fails
            lines = str(error).strip().splitlines() or [""]
            bench.notes.append(f"{what}, {name}: {type(error).__name__}: {lines[0][:200]}")
            continue
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        if not error <= OF_PYTORCH[dtype.name]:
            bench.notes.append(f"{what}, {name}: not timed, wrong by {error:.1e} of the norm")
            continue
        ways[name] = [functools.partial(function, *tensors) for tensors in sets]
    return ways
