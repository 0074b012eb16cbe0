#!/usr/bin/env python3
"""test_deep_ep_masks.py [--torch | --cuda] [TEST...]: masked ranks in low-latency mode, on 4 processes in host
memory, or with --cuda on GPUs. The last rank is lost: it makes no call, or is killed. The rows and
sums of the other ranks are compared with NumPy."""

import itertools
import os
import signal
import tempfile
import time
import unittest

from deep_ep_support import (
    CUDA, RANKS, array, comm_like, dequantised, difference, epa2a, main, np, require, run_ranks, tensor
)  # fmt: skip
from epa2a import deep_ep
from test_deep_ep_low_latency import FORMS, Problem, buffer_for

LOST = RANKS - 1


def masks_of(buffer):
    status = tensor(np.full(RANKS, 7, np.int32))
    buffer.low_latency_query_mask_buffer(status)
    return [r for r, mask in enumerate(array(status)) if mask == 1]


def check_rows(p, seed, live, rows, count, seen, handle):
    """Checks the rows of the live ranks: counts, order, contents."""
    src_info, ranges = array(handle[0]), array(handle[1])
    require(src_info.shape == (p.local, RANKS * p.tokens) and ranges.shape == (p.local, RANKS), src_info.shape)
    for e in range(p.local):
        at = 0
        for r in range(RANKS):
            sent = (Problem(r, seed).idx == p.rank * p.local + e).any(1) if r in live else np.zeros(1, bool)
            n = int(sent.sum())
            require(ranges[e, r] & 0xFFFFFFFF == n and (n == 0 or ranges[e, r] >> 32 == at), e, r, ranges[e], n)
            require((src_info[e, at : at + n] == np.nonzero(sent)[0]).all(), e, r)
            wanted = Problem(r, seed).noise[sent] if r in live else np.zeros((0, p.hidden))
            require(n == 0 or difference(wanted, rows[e, at : at + n]) < 1e-3, e, r)
            at += n
        require(at == count[e] == seen[e], e, at, count[e], seen[e])


def dispatch(buffer, seed, live, form=(False, False, False), hooked=False):
    """Dispatches and checks the rows of the live ranks. Returns the rows in BF16 and the handle."""
    p = Problem(buffer.rank, seed)
    fp8, pow2, ue8m0 = form
    seen = tensor(np.zeros(p.local, np.int32))
    recv, count, handle, _, hook = buffer.low_latency_dispatch(
        tensor(p.noise), tensor(p.idx), p.tokens, p.experts, use_fp8=fp8, round_scale=pow2, use_ue8m0=ue8m0,
        cumulative_local_expert_recv_stats=seen, return_recv_hook=hooked,
    )  # fmt: skip
    hook() if hooked else None
    rows = dequantised(array(recv[0]), array(recv[1])) if fp8 else array(recv).copy()
    require(rows.shape == (p.local, RANKS * p.tokens, p.hidden), rows.shape)
    require(tuple(handle[2:]) == (p.tokens, p.hidden, p.experts), handle[2:])
    check_rows(p, seed, live, rows, array(count), array(seen), handle)
    return rows, handle


def combine(buffer, seed, live, rows, handle, hooked=False, zero_copy=False, rounded=False, bound=1e-5):
    """Combines the rows. The experts of masked ranks contribute nothing."""
    p = Problem(buffer.rank, seed)
    y = tensor(rows)
    if zero_copy:
        buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = y
        y = None
    sums, _, hook = buffer.low_latency_combine(
        y, tensor(p.idx), tensor(p.weights), handle, use_logfmt=rounded, zero_copy=zero_copy, return_recv_hook=hooked
    )
    hook() if hooked else None
    counts = (p.idx >= 0) & np.isin(p.idx // p.local, live)
    wanted = p.noise.astype(np.float64) * np.where(counts, p.weights, 0).sum(1, keepdims=True)
    found = difference(wanted, array(sums))
    require(found < bound, hooked, zero_copy, found)


def step(buffer, seed, live, form=(False, False, False), **how):
    """Dispatches and combines. Returns the rows and the handle."""
    rows, handle = dispatch(buffer, seed, live, form, how.get("hooked", False))
    combine(buffer, seed, live, rows, handle, bound=1e-3 if form[0] else 1e-5, **how)
    return rows, handle


def absent_rank(comm, fifo):
    """A masked rank makes no call, and takes part again without its mask."""
    everyone, live = range(RANKS), range(LOST)
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    old = step(buffer, 1, everyone)
    if comm.rank == LOST:
        open(fifo).close()  # until rank 0 opens the file
    else:
        buffer.low_latency_update_mask_buffer(LOST, True)
        require(masks_of(buffer) == [LOST], masks_of(buffer))
        combine(buffer, 1, live, *old)  # of the dispatch with all ranks
        for form, hooked in itertools.product(FORMS, (False, True)):
            step(buffer, 2, live, form, hooked=hooked, zero_copy=hooked)
        step(buffer, 3, live, rounded=True)
        if comm.rank == 0:
            open(fifo, "w").close()
    buffer.low_latency_clean_mask_buffer()
    require(masks_of(buffer) == [], masks_of(buffer))
    comm.barrier()
    step(buffer, 4, everyone)
    buffer.destroy()


def wait_for_end(buffer):
    """Waits for the end of the last rank, which the others find in their masks."""
    limit = time.monotonic() + 60
    while masks_of(buffer) != [LOST]:
        require(time.monotonic() < limit, masks_of(buffer))


def ended_rank(comm):
    """The process of a rank has ended before the next dispatch, which leaves the rank out."""
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    step(buffer, 1, range(RANKS))
    comm.allgather(b"")  # no rank is in a call of the library
    if comm.rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end(buffer)
    for seed in (2, 3):
        step(buffer, seed, range(LOST))
    buffer.low_latency_clean_mask_buffer()
    require(masks_of(buffer) == [LOST], "an ended process has no mask")
    step(buffer, 4, range(LOST))
    buffer.destroy()


def rank_that_ends_in_a_call(comm, fifo, call):
    """The process of a rank ends while the others wait in a call, which they complete without this rank."""
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    step(buffer, 1, range(RANKS))
    rows, handle = dispatch(buffer, 2, range(RANKS)) if call == "combine" else (None, None)
    comm.allgather(b"")  # no rank is in a call of the library
    if comm.rank == LOST:
        others = os.open(fifo, os.O_RDWR)  # also a writer, so no end of the file
        for _ in range(LOST):
            os.read(others, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    mode, begun = buffer._low_latency, getattr(buffer._low_latency, call)

    def entered(*arguments, **more):
        with open(fifo, "wb") as file:
            file.write(b".")
        return begun(*arguments, **more)

    setattr(mode, call, entered)
    if call == "combine":
        combine(buffer, 2, range(LOST), rows, handle)
    else:
        step(buffer, 2, range(LOST))
    require(masks_of(buffer) == [LOST], masks_of(buffer))
    for seed in (3, 4):
        step(buffer, seed, range(LOST))
    buffer.destroy()


def rank_that_leaves(comm, call):
    """A rank destroys its Buffer while the others allocate the memory of another shape, or clean the buffer."""
    with comm_like(comm, timeout=8.0) as own:
        buffer = buffer_for(own, Problem(comm.rank, 1), enable_shrink=True)
        step(buffer, 1, range(RANKS))
        if comm.rank != LOST:
            buffer.prepare(16, 1024, 16, 4) if call == "prepare" else buffer.clean_low_latency_buffer(32, 1024, 16)
            require(masks_of(buffer) == [LOST], masks_of(buffer))
            buffer.clean_low_latency_buffer(32, 1024, 16)
            step(buffer, 2, range(LOST))
        buffer.destroy()


def hung_rank(comm, fifo):
    """A rank makes no call. The others mask it after the time limit, in dispatch and on hosts in the meeting."""
    with comm_like(comm, timeout=8.0) as own:
        buffer = buffer_for(own, Problem(comm.rank, 1), enable_shrink=True)
        step(buffer, 1, range(RANKS))
        if comm.rank == 0:
            open(fifo).close()
        else:
            step(buffer, 2, range(1, RANKS))
            require(masks_of(buffer) == [0], masks_of(buffer))
            buffer.clean_low_latency_buffer(32, 1024, 16)
            step(buffer, 3, range(1, RANKS))
            if comm.rank == 1:
                open(fifo, "w").close()
        buffer.destroy()


def hung_combine(comm, fifo):
    """A rank dispatches and does not combine. The others mask it in combine."""
    with comm_like(comm, timeout=8.0) as own:
        buffer = buffer_for(own, Problem(comm.rank, 1), enable_shrink=True)
        step(buffer, 1, range(RANKS))
        for form, hooked in itertools.product(FORMS[:2], (False, True)):  # allocates all memory
            step(buffer, 1, range(RANKS), form, hooked=hooked)
        rows, handle = dispatch(buffer, 2, range(RANKS))
        if comm.rank == LOST:
            open(fifo).close()
        else:
            combine(buffer, 2, range(LOST), rows, handle)
            require(masks_of(buffer) == [LOST], masks_of(buffer))
            for form, hooked in itertools.product(FORMS[:2], (False, True)):
                step(buffer, 3, range(LOST), form, hooked=hooked, zero_copy=hooked)
            buffer.low_latency_clean_mask_buffer()
            require(masks_of(buffer) == [LOST], "a kernel's mask is removed")
            if comm.rank == 0:
                open(fifo, "w").close()
        buffer.destroy()


def graph_without_a_rank(comm, fifo):
    """A rank launches a graph once, and the others go on with the same graph."""
    import torch

    with comm_like(comm, timeout=8.0) as own:
        p = Problem(comm.rank, 9)
        buffer = buffer_for(own, p, enable_shrink=True)
        x, idx, weights, out = tensor(p.noise), tensor(p.idx), tensor(p.weights), tensor(p.noise.copy())
        seen = tensor(np.zeros(p.local, np.int32))
        buffer.prepare(p.tokens, p.hidden, p.experts, p.topk, False, False)

        def pair():
            rows, count, handle, _, _ = buffer.low_latency_dispatch(
                x, idx, p.tokens, p.experts, use_fp8=False, cumulative_local_expert_recv_stats=seen
            )
            buffer.low_latency_combine(rows, idx, weights, handle, out=out)
            return rows, count, handle

        pair()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            rows, count, handle = pair()
        for live in (range(RANKS), range(LOST), range(LOST)):
            if comm.rank == LOST and LOST not in live:
                continue
            out.zero_()
            seen.zero_()
            captured.replay()
            counts = (p.idx >= 0) & np.isin(p.idx // p.local, live)
            wanted = p.noise.astype(np.float64) * np.where(counts, p.weights, 0).sum(1, keepdims=True)
            require(difference(wanted, array(out)) < 1e-5, live)
            check_rows(p, 9, live, array(rows), array(count), array(seen), handle)
            require(masks_of(buffer) == [r for r in range(RANKS) if r not in live], masks_of(buffer))
        if comm.rank == LOST:
            open(fifo).close()
        elif comm.rank == 0:
            open(fifo, "w").close()
        del captured
        torch.cuda.synchronize()
        buffer.destroy()


def different_calls(comm):
    """Ranks that have ended different numbers of combines report this once."""
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    step(buffer, 1, range(RANKS))
    comm.allgather(b"")
    if comm.rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end(buffer)
    if comm.rank == 1:
        buffer._masks.calls -= 1  # as after a combine that failed on this rank only
    try:
        step(buffer, 2, range(LOST))
    except epa2a.Error as error:
        require("agree" in str(error), error)
    else:
        require(False, "different calls are accepted")
    step(buffer, 3, range(LOST))
    buffer.destroy()


def one_after_the_other(comm):
    """Ranks are masked in two steps, until one rank is left."""
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    step(buffer, 1, range(RANKS))
    for left in range(RANKS - 1, 0, -1):
        if comm.rank < left:
            for rank in range(left, RANKS):
                buffer.low_latency_update_mask_buffer(rank, True)
            step(buffer, left, range(left))
            step(buffer, left + 1, range(left))
    for rank in range(comm.rank):  # those that go on without this rank
        buffer.low_latency_update_mask_buffer(rank, True)
    buffer.destroy()


def different_masks(comm):
    """Ranks with different masks report the difference. The next dispatch may follow."""
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    if comm.rank != LOST:
        buffer.low_latency_update_mask_buffer(LOST, True)
        if comm.rank == 1:
            buffer.low_latency_update_mask_buffer(2, True)
        if comm.rank in (0, 1):
            try:
                step(buffer, 1, range(LOST))
            except epa2a.ArgumentError as error:
                require("masks" in str(error) and "equally" in str(error), error)
            else:
                require(False, "different masks are accepted")
        buffer.low_latency_update_mask_buffer(2, False)
        try:
            step(buffer, 1, range(LOST))
        except epa2a.ArgumentError as error:  # rank 2 met rank 0 before rank 1 did
            require(comm.rank == 2 and "equally" in str(error), error)
            step(buffer, 1, range(LOST))
    else:
        for rank in range(LOST):
            buffer.low_latency_update_mask_buffer(rank, True)
    buffer.destroy()


def bad_calls(comm):
    buffer = buffer_for(comm, Problem(comm.rank, 1), enable_shrink=True)
    without = buffer_for(comm, Problem(comm.rank, 1))
    for word, call in [
        ("rank_to_mask", lambda: buffer.low_latency_update_mask_buffer(RANKS, True)),
        ("rank_to_mask", lambda: buffer.low_latency_update_mask_buffer(-1, True)),
        ("rank_to_mask", lambda: buffer.low_latency_update_mask_buffer("1", True)),
        ("itself", lambda: buffer.low_latency_update_mask_buffer(comm.rank, True)),
        ("enable_shrink", lambda: without.low_latency_update_mask_buffer(0, True)),
    ]:
        try:
            call()
        except epa2a.ArgumentError as error:
            require(word in str(error), word, str(error))
        else:
            require(False, "no error about", word)
    require(masks_of(buffer) == masks_of(without) == [])
    buffer.destroy()
    without.destroy()


class Masks(unittest.TestCase):
    def test_absent_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "go"))
            run_ranks(absent_rank, os.path.join(folder, "go"))

    def run_with_lost_rank(self, function, *arguments):
        with self.assertRaises(epa2a.SpawnError) as caught:
            run_ranks(function, *arguments)
        self.assertEqual(list(caught.exception.failures), [LOST], str(caught.exception))

    def test_ended_rank(self):
        self.run_with_lost_rank(ended_rank)

    @unittest.skipIf(CUDA, "a call on a device returns before its kernels wait")
    def test_rank_that_ends_in_a_call(self):
        for call in ("dispatch", "combine"):
            with self.subTest(call=call), tempfile.TemporaryDirectory() as folder:
                os.mkfifo(os.path.join(folder, "go"))
                self.run_with_lost_rank(rank_that_ends_in_a_call, os.path.join(folder, "go"), call)

    @unittest.skipIf(CUDA, "a call on a device returns before its kernels wait")
    def test_rank_that_leaves(self):
        for call in ("prepare", "clean"):
            with self.subTest(call=call):
                run_ranks(rank_that_leaves, call)

    def run_with_fifo(self, function):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "go"))
            run_ranks(function, os.path.join(folder, "go"))

    def test_hung_rank(self):
        self.run_with_fifo(hung_rank)

    @unittest.skipUnless(CUDA, "needs GPUs")
    def test_hung_combine(self):
        self.run_with_fifo(hung_combine)

    @unittest.skipUnless(CUDA, "needs GPUs")
    def test_graph_without_a_rank(self):
        self.run_with_fifo(graph_without_a_rank)

    @unittest.skipIf(CUDA or RANKS < 4, "needs 4 ranks in host memory")
    def test_different_calls(self):
        self.run_with_lost_rank(different_calls)

    def test_one_after_the_other(self):
        run_ranks(one_after_the_other)

    @unittest.skipIf(RANKS < 4, "needs 4 ranks")
    def test_different_masks(self):
        run_ranks(different_masks)

    def test_bad_calls(self):
        run_ranks(bad_calls)


if __name__ == "__main__":
    main()
