"""The names of Triton-distributed, with its calls: a layer per rank, a context per matrix."""

import json
import os
import tempfile
import unittest

import support
from plain_moe import TYPES, expected_rows, expected_sums, np, quantise, routes_of, run_experts, tokens_of
from support import epa2a

RANKS, EXPERTS, TOPK, HIDDEN, MAX = 2, 4, 2, 256, 6
COUNTS = [6, 3]
LOCAL = EXPERTS // RANKS


def run_layer(comm, folder):
    os.chdir(folder)
    layer = epa2a.EPLowLatencyAllToAllLayer(
        max_m=MAX,
        hidden=HIDDEN,
        topk=TOPK,
        online_quant_fp8=True,
        rank=comm.rank,
        num_experts=EXPERTS,
        local_world_size=RANKS,
        world_size=RANKS,
        fp8_gsize=128,
        dtype=np.dtype(TYPES["bf16"]),
        enable_profiling=True,
        comm=comm,
    )
    x = tokens_of(comm.rank, COUNTS[comm.rank], HIDDEN, "bf16")
    index, weights = routes_of(comm.rank, COUNTS[comm.rank], EXPERTS, TOPK)
    wanted = expected_rows(comm.rank, RANKS, COUNTS, HIDDEN, EXPERTS, TOPK, "bf16")
    for signal in (1, 1, 2):
        assert layer.dispatch_ctx.signal_val == layer.combine_ctx.signal_val == signal
        token, scale, count, meta = layer.dispatch(send_tokens=x, send_scales=None, topk_indices=index)
        assert token.shape == (LOCAL, RANKS * MAX, HIDDEN) and scale.shape == (LOCAL, RANKS * MAX, HIDDEN // 128)
        assert meta.recv_token_source_indices.shape == (LOCAL, RANKS * MAX)
        assert meta.recv_token_source_count_and_start.shape == (LOCAL, RANKS)
        y = np.zeros(token.shape, x.dtype)
        for e, rows in enumerate(wanted):
            assert count[e] == len(rows)
            assert meta.recv_token_source_indices[e, : len(rows)].tolist() == [t for _, t, _ in rows]
            if rows:
                original = np.stack([row for _, _, row in rows])
                codes, scales = quantise(original, 128)
                assert (token[e, : len(rows)].view(np.uint8) == codes.view(np.uint8)).all()
                assert (scale[e, : len(rows)] == scales).all()
                y[e, : len(rows)] = run_experts(original, comm.rank * LOCAL + e, "bf16")
        out = layer.combine(send_tokens=y, topk_indices=index, topk_weights=weights, dispatch_meta=meta)
        sums = expected_sums(x, index, weights)
        assert np.abs(out.astype(np.float32) - sums).max() <= 2.0**-7 * np.abs(sums).max()
    paths = layer.dump_dispatch_trace(), layer.dump_combine_trace()
    layer.finalize()
    return paths


def run_ag_gemm(comm):
    a = np.random.default_rng(comm.rank).standard_normal((4, 64)).astype(np.float16)
    b = np.random.default_rng(9).standard_normal((16, 64)).astype(np.float16)
    context = epa2a.create_ag_gemm_context(
        a, b, comm.rank, RANKS, max_M=4 * RANKS, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, stages=3, comm=comm
    )
    whole = np.concatenate([np.random.default_rng(r).standard_normal((4, 64)).astype(np.float16) for r in range(RANKS)])
    c = context(a)
    wanted = whole.astype(np.float32) @ b.astype(np.float32).T
    assert np.abs(c.astype(np.float32) - wanted).max() <= 2.0**-10 * np.abs(wanted).max()
    context.finalize()


def run_wrong_rank(comm):
    try:
        epa2a.create_ep_ll_a2a_ctx(MAX, HIDDEN, TOPK, EXPERTS, True, 128, None, RANKS, comm.rank + 1, comm=comm)
    except epa2a.ArgumentError as error:
        return str(error)


class Seeds(unittest.TestCase):
    def test_layer_and_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank, paths in enumerate(epa2a.spawn(run_layer, RANKS, folder)):
                names = [f"prof/ll_{name}_RANK_{rank}.json" for name in ("dispatch", "combine")]
                self.assertEqual(list(paths), names)
                for path in paths:
                    with open(os.path.join(folder, path), encoding="utf-8") as file:
                        events = json.load(file)["traceEvents"]
                    self.assertEqual(len(events), 3)
                    self.assertTrue(all(event["dur"] > 0 and event["pid"] == rank for event in events))

    def test_ag_gemm_context(self):
        epa2a.spawn(run_ag_gemm, RANKS)

    def test_wrong_rank_is_an_error(self):
        for rank, text in enumerate(epa2a.spawn(run_wrong_rank, RANKS)):
            self.assertIn(f"rank {rank} of {RANKS}", text)


if __name__ == "__main__":
    support.main()
