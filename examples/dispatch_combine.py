"""Dispatch and combine of a mixture-of-experts layer on 4 ranks of this machine, without a GPU.

pip install numpy, and the package epa2a; then: python3 dispatch_combine.py"""

import epa2a
import numpy as np

RANKS, EXPERTS, TOPK, TOKENS, HIDDEN = 4, 8, 2, 64, 1024


def run_rank(comm):
    moe = epa2a.Moe(comm, max_tokens=TOKENS, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, dtype="f16")
    random = np.random.default_rng(comm.rank)
    x = random.standard_normal((TOKENS, HIDDEN)).astype(np.float16)
    experts = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :TOPK]
    weights = np.full((TOKENS, TOPK), 0.5, np.float32)

    got = moe.dispatch(x, experts, weights)
    for e in range(moe.local_experts):  # expert e multiplies by e + 1
        rows = got.x[e, : got.count[e]]
        got.y[e, : got.count[e]] = rows * (comm.rank * moe.local_experts + e + 1)
    sums = moe.combine(got)

    wanted = x * (weights * (experts + 1)).sum(axis=1, keepdims=True)
    return sum(got.count), np.abs(sums - wanted).max()


if __name__ == "__main__":
    for rank, (rows, error) in enumerate(epa2a.spawn(run_rank, RANKS)):
        print(f"rank {rank}: {rows} rows, largest error {error:.3f}")
        assert error < 0.1
