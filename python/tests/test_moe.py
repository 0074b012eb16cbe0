"""Dispatch and combine on four ranks, compared with a plain MoE in NumPy."""

import json
import os
import tempfile
import unittest

import support
from plain_moe import (
    TYPES,
    expected_rows,
    expected_sums,
    np,
    quantise,
    routes_of,
    run_experts,
    tokens_of,
)
from support import epa2a

RANKS, EXPERTS, TOPK, HIDDEN, MAX = 4, 8, 3, 256, 9
COUNTS = [9, 0, 5, 1]
LAYOUTS = ["expert_padded", "expert_packed", "rank_packed", "rank_padded"]
LOCAL = EXPERTS // RANKS


def make(comm, **shape):
    shape = {"max_tokens": MAX, "hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "dtype": "bf16", **shape}
    return epa2a.Moe(comm, **shape)


def inputs(comm, dtype="bf16", absent=True):
    x = tokens_of(comm.rank, COUNTS[comm.rank], HIDDEN, dtype)
    return (x, *routes_of(comm.rank, COUNTS[comm.rank], EXPERTS, TOPK, absent))


def check_sums(out, x, index, weights, dtype="bf16"):
    wanted = expected_sums(x, index, weights)
    # Each of the TOPK outputs and the sum are rounded to dtype.
    step = 2.0**-8 if dtype == "bf16" else 2.0**-11
    bound = 2 * step * (np.abs(x.astype(np.float32)) * ((index + 1) * weights).clip(0).sum(1)[:, None]) + 1e-3
    assert out.dtype == TYPES[dtype] and out.shape == x.shape, (out.dtype, out.shape)
    assert (np.abs(out.astype(np.float32) - wanted) <= bound).all()


def run_expert_layout(comm, dtype, recv, layout, index_type):
    moe = make(comm, dtype=dtype, recv=recv, layout=layout)
    x, index, weights = inputs(comm, dtype)
    got = moe.dispatch(x, index.astype(index_type), weights, host_counts=True)
    wanted = expected_rows(comm.rank, RANKS, COUNTS, HIDDEN, EXPERTS, TOPK, dtype, True)
    assert got.count.tolist() == [len(rows) for rows in wanted]
    assert got.counts == [*got.count.tolist(), sum(got.count)]
    assert got.row is None and got.topk_idx is None and got.topk_weights is None
    y = got.y
    flat = y.reshape(-1, HIDDEN)
    rows = got.x.reshape(-1, HIDDEN)
    for e, wanted_rows in enumerate(wanted):
        begin, n = int(got.start[e]), int(got.count[e])
        received = rows[begin : begin + n]
        assert got.source_token[begin : begin + n].tolist() == [t for _, t, _ in wanted_rows]
        for source in range(RANKS):
            first, count = int(got.source_range[e, source]) >> 32, int(got.source_range[e, source]) & 0xFFFFFFFF
            assert [s for s, _, _ in wanted_rows[first : first + count]] == [source] * count
        if n:
            original = np.stack([row for _, _, row in wanted_rows])
            if recv == "fp8":
                codes, scale = quantise(original, 128)
                assert (received.view(np.uint8) == codes.view(np.uint8)).all()
                assert (got.x_scale.reshape(-1, HIDDEN // 128)[begin : begin + n] == scale).all()
            else:
                assert (received.view(np.uint16) == original.view(np.uint16)).all()
            flat[begin : begin + n] = run_experts(original, comm.rank * LOCAL + e, dtype)
    assert (got.x_scale is not None) == (recv == "fp8")
    check_sums(moe.combine(got), x, index, weights, dtype)
    out = np.empty_like(x)
    assert moe.combine(got, y, out=out) is out  # a repeated combine, into memory of the caller
    check_sums(out, x, index, weights, dtype)
    moe.close()


def run_rank_layout(comm, dtype, recv, layout):
    moe = make(comm, dtype=dtype, recv=recv, layout=layout, options="algorithm=ll_v2")
    x, index, weights = inputs(comm, dtype)
    got = moe.dispatch(x, index, weights)
    for source in range(RANKS):
        packed = int(got.source_range[source])
        first, count = packed >> 32, packed & 0xFFFFFFFF
        theirs, weight = routes_of(source, COUNTS[source], EXPERTS, TOPK, True)
        here = (theirs >= comm.rank * LOCAL) & (theirs < (comm.rank + 1) * LOCAL)
        tokens = np.flatnonzero(here.any(axis=1))
        assert got.source_token[first : first + count].tolist() == tokens.tolist()
        local = np.where(here, theirs - comm.rank * LOCAL, -1)[tokens]
        assert (got.topk_idx[first : first + count] == local).all()
        assert (got.topk_weights[first : first + count][local >= 0] == weight[tokens][local >= 0]).all()
        rows = tokens_of(source, COUNTS[source], HIDDEN, dtype)[tokens]
        factor = np.where(here, (theirs + 1) * weight, 0).sum(1)[tokens]
        got.y[first : first + count] = (rows.astype(np.float32) * factor[:, None]).astype(TYPES[dtype])
    used = [range(int(r) >> 32, (int(r) >> 32) + (int(r) & 0xFFFFFFFF)) for r in got.source_range]
    used = [row for rows in used for row in rows]
    for e in range(LOCAL):
        begin = int(got.start[e])
        rows = got.row[begin : begin + got.count[e]].tolist()
        assert sorted(rows) == [row for row in used if e in got.topk_idx[row]]
    out, returned = moe.combine(got, topk_weights=got.topk_weights, return_weights=True)
    check_sums(out, x, index, weights, dtype)
    assert (returned == np.where(index >= 0, weights, 0)).all()
    moe.close()


def run_matrix(comm):
    for dtype in ("bf16", "f16"):
        for recv in (None, "fp8"):
            for layout in LAYOUTS[:2]:
                run_expert_layout(comm, dtype, recv, layout, np.int64 if dtype == "f16" else np.int32)
            for layout in LAYOUTS[2:]:
                run_rank_layout(comm, dtype, recv, layout)


def run_scale_forms(comm):
    x, index, weights = inputs(comm)
    moe = make(comm, recv="fp8")
    plain = moe.dispatch(x, index, weights)
    moe.discard(plain)
    groups = HIDDEN // 128
    for by_group in (False, True):
        pow2 = moe.dispatch(x, index, weights, pow2_scales=True, scales_by_group=by_group)
        moe.discard(pow2)
        exponents = moe.dispatch(x, index, weights, ue8m0=True, scales_by_group=by_group)
        moe.discard(exponents)
        order = (0, 2, 1) if by_group else (0, 1, 2)
        for e in range(LOCAL):
            n = plain.count[e]
            floats = pow2.x_scale.transpose(order)[e, :n]
            assert floats.shape == (n, groups)
            assert (floats == 2 ** np.ceil(np.log2(plain.x_scale[e, :n]))).all()
            words = np.ascontiguousarray(exponents.x_scale.transpose(order)[e, :n])
            assert words.dtype == np.int32 and words.shape == (n, 1)
            found = words.view(np.uint8)[:, :groups].astype(np.int32)
            assert (found == np.log2(floats).astype(np.int32) + 127).all()
    moe.close()


def run_quantised_input(comm):
    moe = make(comm, recv="fp8")
    x, index, weights = inputs(comm)
    codes, scale = quantise(x, 128)
    one = moe.dispatch(x, index, weights)
    moe.discard(one)
    two = moe.dispatch(codes, index, weights, x_scale=scale)
    moe.discard(two)
    bits = moe.dispatch(codes.view(np.uint8), index, weights, x_scale=scale)  # integers carry FP8
    moe.discard(bits)
    for e in range(LOCAL):
        n = one.count[e]
        for other in (two, bits):
            assert (one.x[e, :n].view(np.uint8) == other.x[e, :n].view(np.uint8)).all()
            assert (one.x_scale[e, :n] == other.x_scale[e, :n]).all()
    moe.close()


def run_routes(comm):
    moe = make(comm)
    x, index, weights = inputs(comm)
    first = moe.dispatch(x, index, weights, keep_routes=True)
    second = moe.dispatch_again(first, (2 * x.astype(np.float32)).astype(x.dtype))
    for e in range(LOCAL):
        n = first.count[e]
        assert (second.x[e, :n].astype(np.float32) == 2 * first.x[e, :n].astype(np.float32)).all()
    for scale, got in ((1, first), (2, second), (1, first)):
        y = np.zeros_like(got.x)
        for e in range(LOCAL):
            y[e, : got.count[e]] = run_experts(got.x[e, : got.count[e]], comm.rank * LOCAL + e, "bf16")
        check_sums(moe.combine(got, y), (scale * x.astype(np.float32)).astype(x.dtype), index, weights)
    moe.close()


def run_halves_and_views(comm):
    moe = make(comm, in_flight=2)
    x, index, weights = inputs(comm)
    before = np.zeros(LOCAL, np.int32)
    got = moe.dispatch_send(x, index, weights, seen=before, host_counts=True)
    moe.test()
    assert got.wait() is got
    assert before.tolist() == got.count.tolist() == got.counts[:-1]
    for e in range(LOCAL):
        got.y[e, : got.count[e]] = run_experts(got.x[e, : got.count[e]], comm.rank * LOCAL + e, "bf16")
    pending = moe.combine_send(got)
    check_sums(pending.wait(), x, index, weights)
    copied = moe.dispatch(x, index, weights)
    moe.discard(copied)
    outputs = set()
    for _ in range(5):  # views of each set
        got = moe.dispatch(x, index, weights, views=True)
        outputs.add(id(got.y))
        assert got.source_range.tolist() == copied.source_range.tolist()
        for begin, n in zip(got.start.tolist(), got.count.tolist()):
            assert got.source_token[begin : begin + n].tolist() == copied.source_token[begin : begin + n].tolist()
        for e in range(LOCAL):
            n = got.count[e]
            got.y[e, :n] = run_experts(got.x[e, :n], comm.rank * LOCAL + e, "bf16")
        check_sums(moe.combine(got), x, index, weights)
    assert len(outputs) == 2  # arrays over the same memory are the same objects
    # Outputs in the memory of an earlier dispatch, rows with a stride, integers for bf16.
    wide = np.zeros((COUNTS[comm.rank], HIDDEN + 16), x.dtype)
    wide[:, :HIDDEN] = x
    kept = moe.dispatch(wide[:, :HIDDEN], index, weights)
    again = moe.dispatch(x.view(np.uint16), np.asfortranarray(index), weights, into=kept)
    assert again.x is kept.x
    moe.close()


def run_late_weights(comm):
    moe = make(comm, options={"algorithm": "ll_v1"})
    x, index, weights = inputs(comm)
    got = moe.dispatch(x, index)
    for e in range(LOCAL):
        got.y[e, : got.count[e]] = run_experts(got.x[e, : got.count[e]], comm.rank * LOCAL + e, "bf16")
    masked = index.copy()
    masked[:, 0] = -1
    check_sums(moe.combine(got, topk_weights=weights, topk_idx=masked), x, masked, weights)
    bias = np.full_like(x, 3)
    biased = moe.combine(got, topk_weights=weights, bias=bias).astype(np.float32)
    plain = moe.combine(got, topk_weights=weights).astype(np.float32)
    assert (np.abs(biased - plain - 3) <= np.abs(biased) / 128).all()
    moe.close()


def run_comm(comm):
    assert comm.facts["transport"] == "shm" and comm.device == "cpu" and comm.ranks == RANKS
    comm.check()
    comm.barrier()
    comm.sync()
    memory = comm.empty((3, 5), "f32")
    memory[:] = comm.rank
    assert memory.shape == (3, 5) and memory.sum() == 15 * comm.rank
    need = epa2a.Moe.need(RANKS, max_tokens=MAX, hidden=HIDDEN, experts=EXPERTS, topk=TOPK)
    assert need.rows == LOCAL * RANKS * MAX and need.routing_bytes > 0 and need.algorithm
    return comm.rank


def run_trace(comm, path):
    moe = make(comm, recv="bf16")
    x, index, weights = inputs(comm)
    with moe.trace(path):
        got = moe.dispatch(x, index, weights)
        moe.combine(got, got.x)
        got = moe.dispatch_send(x, index, weights)
        got.wait()
        moe.combine_send(got, got.x).wait()
        try:
            with moe.trace(path):
                pass
        except epa2a.ArgumentError as error:
            text = str(error)
    moe.combine(moe.dispatch(x, index, weights), got.x)  # not recorded
    comm.barrier()
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    try:
        with moe.trace(path + ".failed"):
            raise KeyError
    except KeyError:
        pass
    return document, text, os.path.exists(path + ".failed")


class MoeTest(unittest.TestCase):
    def ranks(self, function, *arguments, **options):
        return epa2a.spawn(function, RANKS, *arguments, **options)

    def test_layouts_types_and_indices(self):
        self.ranks(run_matrix)

    def test_forms_of_scales(self):
        self.ranks(run_scale_forms)

    def test_quantised_input(self):
        self.ranks(run_quantised_input)

    def test_routes_serve_several_combines_and_dispatches(self):
        self.ranks(run_routes)

    def test_halves_views_and_memory_of_the_caller(self):
        self.ranks(run_halves_and_views)

    def test_weights_choices_and_bias_at_combine(self):
        self.ranks(run_late_weights)

    def test_trace_has_the_calls_of_all_ranks(self):
        calls = ["dispatch", "combine", "dispatch_send", "dispatch_recv", "combine_send", "combine_recv"]
        with tempfile.TemporaryDirectory() as folder:
            for document, text, failed in self.ranks(run_trace, os.path.join(folder, "trace.json")):
                self.assertIn("with", text)
                self.assertFalse(failed)
                events = [e for e in document["traceEvents"] if e["ph"] == "X"]
                for rank in range(RANKS):
                    of_rank = [e for e in events if e["pid"] == rank]
                    self.assertEqual([e["name"] for e in of_rank], calls)
                    self.assertEqual({e["args"]["tokens"] for e in of_rank}, {COUNTS[rank]})
                    begins = [e["ts"] for e in of_rank]
                    self.assertEqual(begins, sorted(begins))
                    self.assertGreaterEqual(begins[0], 0)
                # No rank combines before each rank has begun its dispatch.
                last = max(e["ts"] for e in events if e["name"] == "dispatch")
                self.assertLess(last, min(e["ts"] + e["dur"] for e in events if e["name"] == "combine"))

    def test_comm(self):
        self.assertEqual(self.ranks(run_comm), [0, 1, 2, 3])

    def test_need_of_a_device_rejects_what_create_rejects(self):
        if "cuda" not in epa2a.build().partition(";")[0]:
            self.skipTest("the build has no CUDA")
        shape = dict(max_tokens=MAX, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, options="algorithm=ll_v1")
        self.assertEqual(epa2a.Moe.need(RANKS, 0, layout="expert_packed", **shape).algorithm, "ll_v1")
        with self.assertRaisesRegex(epa2a.Unsupported, "EPA2A_EXPERT_PACKED"):
            epa2a.Moe.need(RANKS, 0, layout="expert_padded", **shape)

    def test_spawned_processes_need_no_fork(self):
        self.assertEqual(epa2a.spawn(run_comm, RANKS, method="spawn"), [0, 1, 2, 3])


if __name__ == "__main__":
    support.main()
