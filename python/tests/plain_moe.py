"""A plain MoE in NumPy: inputs of ranks, and the rows and sums that they expect. Tests that import this module
need NumPy and ml_dtypes."""

import support

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    support.skip(error)

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}


def tokens_of(rank, tokens, hidden, dtype):
    random = np.random.default_rng(1000 + rank)
    return random.standard_normal((tokens, hidden)).astype(TYPES[dtype])


def routes_of(rank, tokens, experts, topk, absent=False):
    """Returns indices and weights. absent: some choices are -1."""
    random = np.random.default_rng(2000 + rank)
    index = np.argsort(random.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    if absent and tokens:
        index[random.random((tokens, topk)) < 0.2] = -1
    return np.ascontiguousarray(index), random.random((tokens, topk)).astype(np.float32)


def quantise(x, group):
    """Returns codes and scales: the largest magnitude of a group has the code 448."""
    x = x.astype(np.float32).reshape(x.shape[0], x.shape[1] // group, group)
    largest = np.abs(x).max(axis=2)
    scale = np.where(largest == 0, np.float32(1), largest * np.float32(1 / 448)).astype(np.float32)
    codes = (x / scale[:, :, None]).astype(TYPES["fp8"])
    return codes.reshape(x.shape[0], x.shape[1] * group), scale


def expected_rows(rank, ranks, counts, hidden, experts, topk, dtype, absent=False):
    """Returns, for each local expert of a rank, a list of (source rank, token, row)."""
    local = experts // ranks
    rows = [[] for _ in range(local)]
    for source in range(ranks):
        x = tokens_of(source, counts[source], hidden, dtype)
        index, _ = routes_of(source, counts[source], experts, topk, absent)
        for t, e in zip(*np.nonzero((index >= rank * local) & (index < (rank + 1) * local))):
            rows[index[t, e] - rank * local].append((source, t, x[t]))
    return rows


def expected_sums(x, index, weights):
    """Expert e multiplies by e + 1. Returns float32 sums."""
    factor = np.where(index >= 0, (index + 1) * weights, 0).sum(axis=1)
    return x.astype(np.float32) * factor[:, None]


def run_experts(rows, expert, dtype):
    return (rows.astype(np.float32) * (expert + 1)).astype(TYPES[dtype])
