#!/usr/bin/env python3
"""test_deep_ep_low_latency.py [--torch | --cuda] [TEST...]: low-latency mode on 4 processes in host memory, or
with --cuda on 2 or 4 GPUs.

test_calls_and_checks makes the calls and checks of DeepEP's test of the same mode: all forms of rows,
hooks and events, one and two dispatches before a combine, zero copy, and equal bits in a repetition.
The inputs are arrays of NumPy, or with --torch tensors of torch."""

import itertools
import types
import unittest

from deep_ep_support import (
    BF16, CUDA, RANKS, array, dequantised, difference, epa2a, main, np, require, run_ranks, tensor
)  # fmt: skip
from epa2a import deep_ep
from epa2a.deep_ep import buffer as buffer_module
from epa2a.deep_ep import low_latency

# Values of x identify the rank: rank - OFFSET. BF16 represents integers up to 256.
OFFSET = 128
# A form of rows: use_fp8, round_scale, use_ue8m0.
FORMS = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]


# ---- inputs ----


class Problem:
    def __init__(self, rank, seed, tokens=32, hidden=1024, experts=16, topk=4):
        random = np.random.default_rng(1000 * seed + rank)
        self.rank, self.tokens, self.hidden, self.experts, self.topk = rank, tokens, hidden, experts, topk
        self.local = experts // RANKS
        marked = np.full((tokens, hidden), rank - OFFSET, BF16)
        marked[:, -128:] = np.arange(tokens).reshape(-1, 1)
        self.marked = marked
        self.noise = (random.standard_normal((tokens, hidden)) * 0.1).astype(BF16)
        order = np.argsort(random.random((tokens, experts)), axis=1)
        self.idx = np.ascontiguousarray(order[:, :topk]).astype(np.int64)
        for _ in range(10):
            self.idx[random.integers(tokens), random.integers(topk)] = -1
        self.weights = np.abs(random.standard_normal((tokens, topk))).astype(np.float32)

    def expected(self, x):
        """Returns the sums of a combine whose expert outputs are the received rows."""
        return x.astype(np.float64) * np.where(self.idx < 0, 0, self.weights).sum(1, keepdims=True)


def buffer_for(comm, p, **arguments):
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(p.tokens, p.hidden, comm.ranks, p.experts)
    return deep_ep.Buffer(
        comm, num_rdma_bytes=hint, low_latency_mode=True, num_qps_per_rank=p.local, explicitly_destroy=True,
        **arguments
    )  # fmt: skip


# ---- checks ----


def check_rows(p, idx, x, rows, counts, seen, src_info, ranges, rounded):
    """Checks counts, order and contents of the rows of each local expert."""
    for e in range(p.local):
        expert = p.rank * p.local + e
        n = int(counts[e])
        begin, count = ranges[e] >> 32, ranges[e] & 0xFFFFFFFF
        sent = (idx == expert).sum((1, 2))
        require(n == seen[e] == count.sum() == sent.sum(), expert, n, seen[e], count, sent)
        require((count == sent).all() and (begin == np.cumsum(count) - count).all(), expert, begin, count)
        for r in range(RANKS):
            tokens = src_info[e, begin[r] : begin[r] + count[r]]
            require((tokens == np.nonzero((idx[r] == expert).any(1))[0]).all(), expert, r, tokens)
            if x is p.marked and not rounded:
                received = rows[e, begin[r] : begin[r] + count[r]].astype(np.float32)
                require((received[:, :-128] == r - OFFSET).all(), expert, r)
                require((received[:, -128:] == tokens[:, None]).all(), expert, r)
        if x is p.marked and rounded and n != 0:
            require(difference(rows[e, :n, -1], src_info[e, :n]) < 0.007, expert)


def run_once(comm, buffer, p, idx):
    """Dispatches and combines in all forms. Returns the bytes of all results."""
    outcome = []
    calls = 0
    for x, hooked, form in itertools.product((p.marked, p.noise), (False, True), FORMS):
        fp8, rounded, ue8m0 = form
        calls += 1
        for _ in range(calls % 2 + 1):
            seen = tensor(np.zeros(p.local, np.int32))
            recv, count, handle, event, hook = buffer.low_latency_dispatch(
                tensor(x), tensor(p.idx), p.tokens, p.experts, use_fp8=fp8, round_scale=rounded, use_ue8m0=ue8m0,
                cumulative_local_expert_recv_stats=seen, async_finish=not hooked, return_recv_hook=hooked,
            )  # fmt: skip
            hook() if hooked else event.current_stream_wait()
        n = comm.ranks * p.tokens
        words = p.hidden // 512 if ue8m0 else p.hidden // 128
        shapes = [tuple(t.shape) for t in (recv if fp8 else (recv,))]
        require(shapes == [(p.local, n, p.hidden), (p.local, n, words)][: len(shapes)], shapes)
        if fp8:
            scales = array(recv[1])
            require(scales.strides[1] == 4, "scales of a group are not adjacent", scales.strides)
            rows = dequantised(array(recv[0]), scales)
        else:
            rows = array(recv).copy()
        require(tuple(handle[2:]) == (p.tokens, p.hidden, p.experts), handle[2:])
        counts = array(count)
        check_rows(p, idx, x, rows, counts, array(seen), array(handle[0]), array(handle[1]), rounded)
        for e in range(p.local):
            outcome.append(rows[e, : counts[e]].tobytes())
        for zero_copy in (False, True):
            y = tensor(rows)
            if zero_copy:
                buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = y
            out = tensor(np.full((p.tokens, p.hidden), np.nan, BF16))
            combined, event, hook = buffer.low_latency_combine(
                y, tensor(p.idx), tensor(p.weights), handle, async_finish=not hooked, zero_copy=zero_copy,
                return_recv_hook=hooked, out=out,
            )  # fmt: skip
            hook() if hooked else event.current_stream_wait()
            require(combined is out, "the result is not `out`")
            sums = array(combined)
            bound = 0.007 if rounded else 9e-4 if fp8 else 1e-5
            found = difference(p.expected(x), sums)
            require(not np.isnan(sums.astype(np.float32)).any() and found < bound, form, hooked, zero_copy, found)
            outcome.append(sums.tobytes())
    return outcome


def calls_and_checks(comm, *shape):
    p = Problem(comm.rank, 1, *shape)
    idx = np.stack([Problem(r, 1, *shape).idx for r in range(comm.ranks)])
    buffer = buffer_for(comm, p)
    require(buffer.group_size == RANKS and buffer.rank == comm.rank, buffer.rank)
    first = run_once(comm, buffer, p, idx)
    buffer.clean_low_latency_buffer(p.tokens, p.hidden, p.experts)
    require(first == run_once(comm, buffer, p, idx), "a repetition has other bits")
    buffer.destroy()


def forms_agree(comm):
    """Rounded scales are powers of two, and the exponents are those of the scales."""
    p = Problem(comm.rank, 2)
    buffer = buffer_for(comm, p)
    got = []
    for ue8m0 in (False, True):
        (rows, scales), count, *_ = buffer.low_latency_dispatch(
            tensor(p.noise), tensor(p.idx), p.tokens, p.experts, round_scale=True, use_ue8m0=ue8m0
        )
        got.append((array(rows).view(np.uint8), array(scales), array(count)))
    (codes, scales, count), (same_codes, words, _) = got
    for e, n in enumerate(count):
        require((np.frexp(scales[e, :n])[0] == 0.5).all(), "a scale is not a power of two")
        require((codes[e, :n] == same_codes[e, :n]).all(), "the codes differ")
        exponents = np.ascontiguousarray(words[e, :n]).view(np.uint8).astype(np.int32)
        require((np.ldexp(np.float32(1), exponents - 127) == scales[e, :n]).all(), "the exponents differ")
    buffer.destroy()


def two_batches(comm, order):
    """Two dispatches are open, as in engines that alternate between two batches. Each call ends by its
    hook, which runs late or not at all before the next call."""
    problems = [Problem(comm.rank, seed) for seed in (3, 4)]
    p = problems[0]
    buffer = buffer_for(comm, p)
    for _ in range(3):
        handles, rows = [], []
        for q in problems:
            got = buffer.low_latency_dispatch(
                tensor(q.noise), tensor(q.idx), q.tokens, q.experts, use_fp8=False, return_recv_hook=True
            )
            handles.append(got[2])
            rows.append(got[0])
        got[4]()
        for i in order:
            q = problems[i]
            out, event, hook = buffer.low_latency_combine(
                rows[i], tensor(q.idx), tensor(q.weights), handles[i], return_recv_hook=True
            )
            require(event.event is None, "an event without async_finish")
            hook()
            hook()
            require(difference(q.expected(q.noise), array(out)) < 1e-5, order, i)
    buffer.destroy()


def inputs_may_change(comm):
    """The caller changes its inputs between a call and its hook."""
    p = Problem(comm.rank, 5)
    buffer = buffer_for(comm, p)
    x, idx, weights = p.noise.copy(), p.idx.copy(), p.weights.copy()
    rows, _, handle, _, hook = buffer.low_latency_dispatch(
        tensor(x), tensor(idx), p.tokens, p.experts, use_fp8=False, return_recv_hook=True
    )
    require(getattr(rows, "base", None) is None)  # no part of a block of NumPy
    x[:], idx[:] = 0, -1
    hook()
    y = array(rows).copy()
    out, _, hook = buffer.low_latency_combine(
        tensor(y), tensor(p.idx), tensor(weights), handle, return_recv_hook=True
    )
    y[:], weights[:] = 0, 0
    hook()
    require(difference(p.expected(p.noise), array(out)) < 1e-5)
    buffer.destroy()


def uneven_tokens(comm):
    """Ranks have different numbers of tokens, and rank 0 has none. Choices masked in combine do not count."""
    p = Problem(comm.rank, 6)
    buffer = buffer_for(comm, p)
    n = comm.rank * 7
    x, idx, weights = (np.ascontiguousarray(a[:n]) for a in (p.noise, p.idx, p.weights))
    rows, count, handle, *_ = buffer.low_latency_dispatch(tensor(x), tensor(idx), p.tokens, p.experts, use_fp8=False)
    all_ = np.concatenate([Problem(r, 6).idx[: r * 7] for r in range(comm.ranks)])
    wanted = [(all_ == comm.rank * p.local + e).sum() for e in range(p.local)]
    require(list(array(count)) == wanted, count, wanted)
    idx[:, 1] = -1
    out, *_ = buffer.low_latency_combine(rows, tensor(idx), tensor(weights), handle)
    require(tuple(out.shape) == (n, p.hidden), out.shape)
    sums = x.astype(np.float64) * np.where(idx < 0, 0, weights).sum(1, keepdims=True)
    require(n == 0 or difference(sums, array(out)) < 1e-5)
    buffer.destroy()


class Group:
    """A group as torch.distributed has it: rank and size are methods."""

    def __init__(self, group):
        self.allgather = group.allgather
        self.rank = lambda: group.rank
        self.size = lambda: group.size


def own_group(comm):
    """A Buffer over a group of the caller has a comm of its own. Its queries have DeepEP's forms."""
    p = Problem(comm.rank, 7)
    group = Group(comm._group)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(p.tokens, p.hidden, RANKS, p.experts)
    buffer = deep_ep.Buffer(group, 0, hint, True)
    require(buffer.group is group and buffer.group_size == RANKS and buffer.rank == comm.rank)
    buffer.prepare(p.tokens, p.hidden, p.experts, p.topk)
    masks = tensor(np.full(RANKS, 7, np.int32))
    buffer.low_latency_query_mask_buffer(masks)
    buffer.low_latency_clean_mask_buffer()
    require(not array(masks).any(), masks)
    rows, _, handle, event, hook = buffer.low_latency_dispatch(
        tensor(p.noise), tensor(p.idx), p.tokens, p.experts, use_fp8=False, async_finish=True
    )
    require(hook is None and event.event is not None)
    with event:
        pass
    out, event, hook = buffer.low_latency_combine(rows, tensor(p.idx), tensor(p.weights), handle, async_finish=True)
    event.current_stream_wait()
    require(hook is None and difference(p.expected(p.noise), array(out)) < 1e-5)
    buffer.destroy()
    buffer.destroy()
    try:
        buffer.get_next_low_latency_combine_buffer(handle)
    except epa2a.Error as error:
        require("destroyed" in str(error), error)
    else:
        require(False, "a destroyed Buffer accepts calls")


def rows_with_gaps(comm):
    """The first dispatch of a shape and later ones accept tokens with gaps between the rows."""
    p = Problem(comm.rank, 11)
    buffer = buffer_for(comm, p)
    wide, idx, weights = tensor(np.repeat(p.noise, 2, 1)), tensor(p.idx), tensor(p.weights)
    for _ in range(2):
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            wide[:, : p.hidden], idx, p.tokens, p.experts, use_fp8=False
        )
        require(len(handle) == 5 and handle[3] == p.hidden, handle)
        out, *_ = buffer.low_latency_combine(rows, idx, weights, handle)
        require(difference(p.expected(array(wide)[:, : p.hidden]), array(out)) < 1e-5)
    buffer.destroy()


def bad_inputs(comm):
    """Each wrong call raises an error that names the argument, and has no effect on the next call."""
    p = Problem(comm.rank, 8)
    buffer = buffer_for(comm, p)
    x, idx, weights = tensor(p.noise), tensor(p.idx), tensor(p.weights)

    def dispatch(x=x, idx=idx, most=p.tokens, experts=p.experts, **more):
        return buffer.low_latency_dispatch(x, idx, most, experts, **more)

    rows, _, handle, *_ = dispatch(use_fp8=False)

    def combine(y=rows, idx=idx, weights=weights, handle=handle, **more):
        return buffer.low_latency_combine(y, idx, weights, handle, **more)

    few = tensor(np.zeros(1, np.int32))
    stats = "cumulative_local_expert_recv_stats"
    wrong = [
        ("x", lambda: dispatch(x=None)),
        ("x", lambda: dispatch(x=tensor(p.noise.astype(np.float32)))),
        ("x", lambda: dispatch(x=x[0])),
        ("x", lambda: dispatch(x=x[:, ::2])),
        ("x", lambda: dispatch(x=tensor(np.ascontiguousarray(p.noise[:, :192])))),
        ("topk_idx", lambda: dispatch(idx=idx[:5])),
        ("topk_idx", lambda: dispatch(idx=tensor(p.idx.astype(np.float32)))),
        ("topk_idx", lambda: dispatch(idx=tensor(np.full_like(p.idx, p.experts)))),
        ("experts", lambda: dispatch(experts=p.experts + 1)),
        ("tokens", lambda: dispatch(tensor(np.repeat(p.noise, 2, 0)), tensor(np.repeat(p.idx, 2, 0)))),
        ("num_rdma_bytes", lambda: dispatch(most=64 * p.tokens)),
        (stats, lambda: dispatch(cumulative_local_expert_recv_stats=few)),
        ("use_ue8m0", lambda: dispatch(use_ue8m0=True)),
        ("async_finish", lambda: dispatch(async_finish=True, return_recv_hook=True)),
        ("dispatch_wait_recv_cost_stats", lambda: dispatch(dispatch_wait_recv_cost_stats=idx)),
        ("use_nvfp4", lambda: dispatch(use_nvfp4=True)),
        ("x", lambda: combine(y=rows[0, :3])),
        ("x", lambda: combine(y=x)),
        ("topk_idx", lambda: combine(idx=idx[:5])),
        ("topk_idx", lambda: combine(idx=tensor((p.idx + 1) % p.experts))),
        ("topk_weights", lambda: combine(weights=None)),
        ("topk_weights", lambda: combine(weights=tensor(p.weights.astype(np.float64)))),
        ("out", lambda: combine(out=x[:5])),
        ("handle", lambda: combine(handle=tuple(handle))),
        ("use_logfmt", lambda: combine(use_logfmt=True, zero_copy=True)),
        ("overlap", lambda: combine(overlap=True)),
        ("mask", lambda: buffer.low_latency_update_mask_buffer(1, True)),
        ("mask_status", lambda: buffer.low_latency_query_mask_buffer(few)),
        ("topk_idx", lambda: buffer.get_dispatch_layout(idx[0], p.experts)),
        ("new_num_sms", lambda: buffer.set_num_sms(3)),
        ("low_latency_mode", lambda: deep_ep.Buffer(comm).get_next_low_latency_combine_buffer(handle)),
        ("group", lambda: deep_ep.Buffer(None)),
    ]
    for word, call in wrong:
        try:
            call()
        except (epa2a.Error, ValueError, TypeError) as error:
            require(word in str(error), word, str(error))
        else:
            require(False, "no error about", word)
    out, *_ = combine()
    require(difference(p.expected(p.noise), array(out)) < 1e-5)
    buffer.destroy()


def nearest_logfmt(x):
    """Returns a BF16 row with the nearest values of LogFMT-10, of a table of the values of each group."""
    exact, out = x.astype(np.float64), x.copy()
    part = 1024 if len(x) % 1024 == 0 else 512
    for first in range(0, len(x), part):
        groups = [slice(at, at + 128) for at in range(first, first + part, 128)]
        sizes = [np.abs(exact[group]) for group in groups]
        if not all(size.max() < 1 and size.min() < size.max() for size in sizes):
            continue
        for group, size in zip(groups, sizes):
            low = max(np.log2(size.min()) if size.min() > 0 else -np.inf, np.log2(size.max()) - 32)
            table = np.append(0, 2 ** np.linspace(low, np.log2(size.max()), 511))
            nearest = table[np.abs(size[:, None] - table).argmin(1)]
            out[group] = np.copysign(nearest, exact[group]).astype(BF16)
    return out


def logfmt_values(comm, hidden):
    """With one choice of weight 1 the sums are the expert outputs as values of LogFMT-10."""
    p = Problem(comm.rank, 11, 16, hidden, 8, 1)
    p.weights[:] = 1
    x = p.noise.astype(np.float32)
    x[1, 7] = 0  # a range of 32 octaves
    x[2, 3], x[3, 130] = 1, -1.5  # parts that keep their values
    x[4, :128] = 0.25  # equal magnitudes
    x[5] *= 2.0**-40
    x[6, 9] = np.nan
    x[7, 5] = -x[7, 6]
    p.noise = x.astype(BF16)
    buffer = buffer_for(comm, p)
    for hooked in (False, True):
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            tensor(p.noise), tensor(p.idx), p.tokens, p.experts, use_fp8=False, return_recv_hook=hooked
        )
        hook() if hooked else None
        y = array(rows).copy()
        sums, _, hook = buffer.low_latency_combine(
            tensor(y), tensor(p.idx), tensor(p.weights), handle, use_logfmt=True, return_recv_hook=hooked
        )
        hook() if hooked else None
        got = array(sums)
        for t in np.nonzero(p.idx[:, 0] >= 0)[0]:
            wanted = nearest_logfmt(p.noise[t])
            same = (got[t].view(np.uint16) == wanted.view(np.uint16)) | (np.isnan(p.noise[t]) & np.isnan(got[t]))
            # A value near the middle of two values of the format has one of them.
            require(same.mean() > 0.99, t, same.mean())
            a, b = got[t][~same].astype(np.float64), p.noise[t][~same].astype(np.float64)
            require((np.abs(a - b) <= np.abs(b) * 0.03).all(), t, a, b)
        outcome = (p.idx >= 0) & (np.arange(p.tokens) > 7)[:, None]
        plain = p.noise[outcome[:, 0]].view(np.uint16) == got[outcome[:, 0]].view(np.uint16)
        require(plain.mean() < 0.9, "the values are not rounded", plain.mean())
    buffer.destroy()


def graph(comm):
    """The replay of a captured dispatch and combine has the bits of eager calls."""
    import torch

    p = Problem(comm.rank, 9)
    buffer = buffer_for(comm, p)
    x, idx, weights, out = tensor(p.noise), tensor(p.idx), tensor(p.weights), tensor(p.noise.copy())
    for fp8, hooked in itertools.product((False, True), (False, True)):
        buffer.prepare(p.tokens, p.hidden, p.experts, p.topk, fp8, hooked)

        def pair():
            rows, _, handle, _, hook = buffer.low_latency_dispatch(
                x, idx, p.tokens, p.experts, use_fp8=fp8, return_recv_hook=hooked
            )
            hook() if hooked else None
            y = rows[0].to(torch.bfloat16) if fp8 else rows
            _, _, hook = buffer.low_latency_combine(y, idx, weights, handle, out=out, return_recv_hook=hooked)
            hook() if hooked else None

        pair()
        pair()
        eager = array(out)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            pair()
            pair()
        for _ in range(3):
            out.zero_()
            captured.replay()
            require((array(out).view(np.uint16) == eager.view(np.uint16)).all(), fp8, hooked)
        del captured
        torch.cuda.synchronize()
    buffer.destroy()


def kernel_names(comm):
    """A call is one kernel, whose name has a namespace; with a hook, two launches of the same kernel."""
    import torch

    p = Problem(comm.rank, 10)
    buffer = buffer_for(comm, p)
    x, idx, weights = tensor(p.noise), tensor(p.idx), tensor(p.weights)
    y = tensor(np.zeros((p.local, comm.ranks * p.tokens, p.hidden), BF16))
    for hooked in (False, True):
        buffer.prepare(p.tokens, p.hidden, p.experts, p.topk, True, hooked)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            _, _, handle, _, hook = buffer.low_latency_dispatch(
                x, idx, p.tokens, p.experts, return_recv_hook=hooked
            )
            hook() if hooked else None
            _, _, hook = buffer.low_latency_combine(y, idx, weights, handle, return_recv_hook=hooked)
            hook() if hooked else None
            torch.cuda.synchronize()
        counts = {row.key: row.count for row in profile.key_averages()}
        for name in ("dispatch", "combine"):
            found = {key: n for key, n in counts.items() if name in key}
            require(list(found.values()) == [2 if hooked else 1], name, hooked, counts)
            require(f"::{name}" in next(iter(found)), found)
    buffer.destroy()


# ---- tests ----


class LowLatency(unittest.TestCase):
    def test_calls_and_checks(self):
        run_ranks(calls_and_checks)

    def test_shapes(self):
        for shape in ((1, 512, 8, 1), (7, 2048, 32, 6), (33, 512, 16, 9)):
            with self.subTest(shape=shape):
                run_ranks(calls_and_checks, *shape)

    def test_forms_agree(self):
        run_ranks(forms_agree)

    def test_two_batches(self):
        for order in ((0, 1), (1, 0)):
            run_ranks(two_batches, order)

    def test_inputs_may_change_before_the_hook(self):
        run_ranks(inputs_may_change)

    def test_uneven_tokens(self):
        run_ranks(uneven_tokens)

    def test_own_group(self):
        run_ranks(own_group)

    def test_logfmt(self):
        for hidden in (512, 1024, 1536):
            with self.subTest(hidden=hidden):
                run_ranks(logfmt_values, hidden)

    def test_memory_of_a_handle_is_kept(self):
        class Kept:
            calls = 0

            def record_stream(self, _):
                self.calls += 1

        received = types.SimpleNamespace(x=Kept(), routing=Kept())
        sources = Kept(), Kept()
        handle = low_latency.Handle(received, lambda: (*sources, 8, 512, 4))
        buffer_module.keep_memory([handle], None)
        self.assertEqual([k.calls for k in (received.x, received.routing, *sources)], [1, 1, 0, 0])
        self.assertEqual(tuple(handle[2:]), (8, 512, 4))
        buffer_module.keep_memory([handle], None)
        self.assertEqual([k.calls for k in (received.x, received.routing, *sources)], [2, 2, 1, 1])

    def test_rows_with_gaps(self):
        run_ranks(rows_with_gaps)

    @unittest.skipIf(CUDA, "the library does not read the indices of a device")
    def test_bad_inputs(self):
        run_ranks(bad_inputs)

    @unittest.skipUnless(CUDA, "needs GPUs")
    def test_graph(self):
        run_ranks(graph)

    @unittest.skipUnless(CUDA, "needs GPUs")
    def test_kernel_names(self):
        run_ranks(kernel_names)

    def test_devices(self):
        """The options for CUDA devices are valid for all shapes of DeepEP's test."""
        if "cuda" not in epa2a.build().partition(";")[0]:
            self.skipTest("the build has no CUDA")
        for hidden, topk, tokens, hooked in itertools.product((2048, 7168), (1, 8, 16), (1, 256), (False, True)):
            for fp8 in (False, True):
                shape = low_latency.shape_of(tokens, hidden, 288, topk, 0, fp8, hooked)
                self.assertEqual(epa2a.Moe.need(2, 0, **shape).overlaps, hooked)


if __name__ == "__main__":
    main()
