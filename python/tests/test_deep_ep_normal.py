#!/usr/bin/env python3
"""test_deep_ep_normal.py [--torch | --cuda] [TEST...]: normal mode on 4 processes in host memory, or with --cuda
on 2 or 4 GPUs.

test_calls_and_checks makes the calls and checks of DeepEP's test within a node: layout, rows in BF16
and FP8, with and without top-k, with a fixed number of rows, along the route of a handle, and sums of
rows and weights."""

import itertools
import unittest

from deep_ep_support import (
    BF16, CUDA, FP8, RANKS, array, dequantised, difference, epa2a, main, np, require, run_ranks, tensor
)  # fmt: skip
from epa2a import deep_ep

HIDDEN, EXPERTS, TOPK = 512, 16, 6
LOCAL = EXPERTS // RANKS


class Problem:
    def __init__(self, rank, tokens, topk=TOPK, seed=1):
        random = np.random.default_rng(100 * seed + rank)
        self.tokens = tokens
        self.noise = random.standard_normal((tokens, HIDDEN)).astype(BF16)
        self.marked = np.full((tokens, HIDDEN), rank, BF16)
        self.idx = np.argsort(random.random((tokens, EXPERTS)), axis=1)[:, :topk].astype(np.int64)
        self.idx[random.random((tokens, topk)) < 0.1] = -1
        self.idx = np.ascontiguousarray(self.idx)
        self.weights = random.standard_normal((tokens, topk)).astype(np.float32)
        owner = np.where(self.idx < 0, -1, self.idx // LOCAL)
        self.in_rank = np.stack([(owner == r).any(1) for r in range(RANKS)], 1)
        self.per_rank = self.in_rank.sum(0)
        self.per_expert = np.bincount(self.idx[self.idx >= 0], minlength=EXPERTS)
        amax = np.abs(self.noise.astype(np.float32)).reshape(tokens, HIDDEN // 128, 128).max(2)
        self.scales = np.maximum(amax, 1e-4).astype(np.float32) / np.float32(448)
        groups = self.noise.astype(np.float32).reshape(tokens, HIDDEN // 128, 128) / self.scales[:, :, None]
        self.codes = groups.reshape(tokens, HIDDEN).astype(FP8)


def check_layout(buffer, p):
    per_rank, rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(tensor(p.idx), EXPERTS)
    require(rdma is None and event.event is None)
    require((array(per_rank) == p.per_rank).all() and array(per_rank).dtype == np.int32, per_rank)
    require((array(per_expert) == p.per_expert).all() and array(per_expert).dtype == np.int32, per_expert)
    require((array(in_rank) == p.in_rank).all() and array(in_rank).dtype == bool, in_rank)
    return {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}


def check_rows(rank, problems, rows, part, handle):
    """Rows are in the order of source ranks, then of tokens. part(problem): the rows of a source."""
    wanted = np.concatenate([part(q)[q.in_rank[:, rank]] for q in problems])
    require(rows.shape == wanted.shape, rows.shape, wanted.shape)
    require((rows.astype(np.float32) == wanted.astype(np.float32)).all(), "rows differ")
    prefix = np.cumsum([q.per_rank for q in problems], axis=0)
    require((array(handle[0]) == prefix).all(), handle[0], prefix)


def check_choices(rank, problems, idx, weights, counts):
    chosen = np.concatenate([q.idx[q.in_rank[:, rank]] for q in problems])
    here = chosen // LOCAL == rank
    require((idx == np.where(here & (chosen >= 0), chosen % LOCAL, -1)).all(), "topk_idx differs")
    sent = np.concatenate([q.weights[q.in_rank[:, rank]] for q in problems])
    require((weights == np.where(here, sent, 0)).all(), "topk_weights differ")
    require(counts == [(idx == e).sum() for e in range(LOCAL)], counts)


def calls_and_checks(comm, tokens):
    problems = [Problem(r, tokens[r]) for r in range(RANKS)]
    p = problems[comm.rank]
    buffer = deep_ep.Buffer(comm, int(1e9), 0)
    layout = check_layout(buffer, p)
    config = deep_ep.Config(24, 8, 256)
    forms = {
        "marked": (tensor(p.marked), lambda q: q.marked),
        "noise": (tensor(p.noise), lambda q: q.noise),
        "fp8": ((tensor(p.codes), tensor(np.asfortranarray(p.scales))), lambda q: dequantised(q.codes, q.scales)),
    }
    number = np.maximum(p.in_rank.sum(1, keepdims=True), 1)
    for (name, (x, part)), topk, asynchronous in itertools.product(forms.items(), (False, True), (False, True)):
        arguments = dict(x=x, config=config, async_finish=asynchronous, **layout)
        if asynchronous:
            arguments["previous_event"] = buffer.capture()
        if topk:
            arguments |= {"topk_idx": tensor(p.idx), "topk_weights": tensor(p.weights)}
        recv, idx, weights, counts, handle, event = buffer.dispatch(**arguments)
        if asynchronous:
            event.current_stream_wait()

        def received(recv):
            return dequantised(array(recv[0]), array(recv[1])) if name == "fp8" else array(recv)

        rows = received(recv).copy()
        n = len(rows)
        check_rows(comm.rank, problems, rows, part, handle)
        require(counts == [sum(q.per_expert[comm.rank * LOCAL + e] for q in problems) for e in range(LOCAL)], counts)
        if topk:
            require(array(idx).dtype == np.int64)
            check_choices(comm.rank, problems, array(idx), array(weights), counts)
            for worst in (sum(tokens), 3 * RANKS * max(tokens)):
                more, more_idx, more_weights, none, _, event = buffer.dispatch(**arguments, num_worst_tokens=worst)
                if asynchronous:
                    event.current_stream_wait()
                require(none == [] and len(received(more)) == len(more_idx) == len(more_weights) == worst, worst)
                require(not CUDA or all(t.is_cuda for t in (more_idx, more_weights)), "host memory", worst)
                require((received(more)[:n] == rows).all() and (array(more_idx)[:n] == array(idx)).all())
                require((array(more_weights)[:n] == array(weights)).all() and (array(more_idx)[n:] == -1).all())
            aligned = buffer.dispatch(**arguments, expert_alignment=8)[3]
            require(aligned == [-(-c // 8) * 8 for c in counts], aligned)
        else:
            require(idx is None and weights is None)
            again, _, _, none, same, _ = buffer.dispatch(x, handle=handle, config=config)
            require(none == [] and (received(again) == rows).all() and same is handle, "a repetition differs")
            other = forms["noise" if name == "fp8" else "fp8"][0]  # another type of rows along the route
            buffer.dispatch(other, handle=handle)
        sent = tensor(rows)
        for _ in range(2):
            sums, sum_weights, event = buffer.combine(
                sent, handle, topk_weights=weights if topk else None, config=config, async_finish=asynchronous
            )
            if asynchronous:
                event.current_stream_wait()
            mean = array(sums).astype(np.float64) / number
            reached = p.in_rank.any(1)
            require(len(mean) == p.tokens and (mean[~reached] == 0).all())
            require(not reached.any() or difference(mean[reached], part(p)[reached]) < 5e-6, name, topk)
            if topk:
                wanted = np.where(p.idx < 0, 0, p.weights)
                require(p.tokens == 0 or difference(array(sum_weights), wanted) < 1e-9, name)
            else:
                require(sum_weights is None)
    buffer.destroy()


def sums_of_all_ranks(comm):
    """Combine adds the weights of all ranks, also in places without a choice, and the bias."""
    p = Problem(comm.rank, 9)
    buffer = deep_ep.Buffer(comm)
    recv, idx, weights, _, handle, _ = buffer.dispatch(
        tensor(p.marked), topk_idx=tensor(p.idx), topk_weights=tensor(p.weights), **check_layout(buffer, p)
    )
    value = np.float32(0.1) * (comm.rank + 1)
    filled = tensor(np.full(array(weights).shape, value, np.float32))
    bias = tensor(p.noise), tensor(p.marked)
    for b in (None, bias[0], bias):
        sums, totals, _ = buffer.combine(recv, handle, topk_weights=filled, bias=b)
        wanted = (p.in_rank * (np.float32(0.1) * np.arange(1, RANKS + 1))).sum(1, keepdims=True)
        require(np.allclose(array(totals), wanted, rtol=1e-6, atol=0), totals, wanted)
        plain = p.marked.astype(np.float64) * p.in_rank.sum(1, keepdims=True)
        for one in b if isinstance(b, tuple) else (b,):
            plain = plain + (0 if one is None else array(one).astype(np.float64))
        require(np.allclose(array(sums).astype(np.float64), plain, rtol=0.02, atol=0.02), "the bias is missing")
    buffer.destroy()


def bad_inputs(comm):
    p = Problem(comm.rank, 8)
    buffer = deep_ep.Buffer(comm)
    layout = check_layout(buffer, p)
    x, idx, weights = tensor(p.noise), tensor(p.idx), tensor(p.weights)
    recv, *_, handle, _ = buffer.dispatch(x, **layout)
    short = layout | {"is_token_in_rank": layout["is_token_in_rank"][1:]}
    wrong = [
        ("num_tokens_per_rank", lambda: buffer.dispatch(x)),
        ("is_token_in_rank", lambda: buffer.dispatch(x, **short)),
        ("topk_weights", lambda: buffer.dispatch(x, topk_idx=idx, **layout)),
        ("topk_idx", lambda: buffer.dispatch(x, handle, topk_idx=idx, topk_weights=weights)),
        ("x", lambda: buffer.dispatch(None, **layout)),
        ("x", lambda: buffer.dispatch(x[1:], handle)),
        ("x[0]", lambda: buffer.dispatch((x, x), **layout)),
        ("x", lambda: buffer.dispatch((x,), **layout)),
        ("expert_alignment", lambda: buffer.dispatch(x, expert_alignment=0, **layout)),
        ("handle", lambda: buffer.dispatch(x, handle=tuple(handle))),
        ("handle", lambda: buffer.combine(recv, tuple(handle))),
        ("x", lambda: buffer.combine(recv[1:], handle)),
        ("topk_weights", lambda: buffer.combine(recv, handle, topk_weights=weights[:0])),
        ("num_experts", lambda: buffer.get_dispatch_layout(idx, RANKS + 1)),
    ]
    for word, call in wrong:
        try:
            call()
        except (epa2a.Error, ValueError, TypeError) as error:
            require(word in str(error) and str(error).endswith("."), word, str(error))
        else:
            require(False, "no error about", word)
    buffer.combine(recv, handle)
    buffer.destroy()


def without_a_group(comm):
    comm._group = None  # as with the variables of torchrun
    calls_and_checks(comm, [3] * RANKS)


class Normal(unittest.TestCase):
    def test_calls_and_checks(self):
        run_ranks(calls_and_checks, [32] * RANKS)

    def test_uneven_tokens(self):
        run_ranks(calls_and_checks, [0, 5, 33, 1][-RANKS:])

    @unittest.skipIf(CUDA, "the ranks of a device need a group")
    def test_without_a_group(self):
        run_ranks(without_a_group)

    def test_sums_of_all_ranks(self):
        run_ranks(sums_of_all_ranks)

    def test_bad_inputs(self):
        run_ranks(bad_inputs)


if __name__ == "__main__":
    main()
