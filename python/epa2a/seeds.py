"""The interface of Triton-distributed's low-latency layer and of its AllGather with GEMM.

The names and argument orders equal those of Triton-distributed. The keyword `comm` passes an existing
Comm; without it, the ranks connect by the variables of torchrun. Arrays of torch and NumPy are
accepted."""

import os

from . import arrays
from .ag_gemm import AgGemm
from .comm import Comm
from .errors import ArgumentError
from .moe import Moe
from .trace import Calls, write


class DispatchMetaInfo:
    """Facts about a dispatch that combine needs.

    recv_token_source_indices          int32 [local experts, ranks * max_m]: token at its source rank.
    recv_token_source_count_and_start  int64 [local experts, ranks]: begin << 32 | count."""

    def __init__(self, received):
        self.received = received
        # A dispatch on a device stores both arrays, since the layer requests them.
        self.recv_token_source_indices = received.source_token.reshape(received.x.shape[:2])
        self.recv_token_source_count_and_start = received.source_range


class _Context:
    """State of one direction. `moe` moves the data of both directions. A set of buffers serves two
    phases with the same signal value: 1, 1, 2, 2, 3, 3 ..."""

    def __init__(self, moe, owner):
        self.moe, self._owner, self.phase = moe, owner, 0

    @property
    def signal_val(self):
        return self.phase // 2 + 1

    def update_phase(self):
        self.phase += 1

    def finalize(self):
        """Destroys the moe of both contexts. Collective."""
        self.moe.close()
        if self._owner is not None:
            self._owner.close()


class LowlatencyDispatchContext(_Context):
    """Context of the dispatches of create_ep_ll_a2a_ctx()."""


class LowlatencyCombineContext(_Context):
    """Context of the combines of create_ep_ll_a2a_ctx()."""


def _open_comm(comm, rank, world_size):
    """Returns the comm and the comm to close, or None."""
    owner = None
    if comm is None:
        comm = owner = Comm()
    if (comm.rank, comm.ranks) != (rank, world_size):
        found = f"rank {comm.rank} of {comm.ranks}"
        if owner is not None:
            owner.abort()
            owner.close()
        raise ArgumentError(f"the arguments are rank {rank} of {world_size}; the comm has {found}.")
    return comm, owner


def create_ep_ll_a2a_ctx(
    max_m, hidden, topk, num_experts, online_quant_fp8, fp8_gsize, dtype, world_size, rank, *, comm=None, options=""
):
    """Creates the contexts of dispatch and combine. Collective. Returns (LowlatencyDispatchContext,
    LowlatencyCombineContext). Without online_quant_fp8, rows are delivered in dtype; Triton-distributed
    lacks this mode."""
    comm, owner = _open_comm(comm, rank, world_size)
    moe = Moe(
        comm,
        max_tokens=max_m,
        hidden=hidden,
        experts=num_experts,
        topk=topk,
        dtype="bf16" if dtype is None else dtype,
        recv="fp8" if online_quant_fp8 else None,
        fp8_group=fp8_gsize,
        options=options or "algorithm=ll_v1",  # accepts weights at combine
    )
    return LowlatencyDispatchContext(moe, owner), LowlatencyCombineContext(moe, owner)


class EPLowLatencyAllToAllLayer:
    """Dispatch and combine with weights at combine. local_world_size is not used: the library finds
    the ranks of each host. enable_profiling records the time of each call."""

    def __init__(
        self, max_m, hidden, topk, online_quant_fp8, rank, num_experts, local_world_size, world_size,
        fp8_gsize=128, dtype=None, enable_profiling=False, *, comm=None, options=""
    ):
        self.dispatch_ctx, self.combine_ctx = create_ep_ll_a2a_ctx(
            max_m, hidden, topk, num_experts, online_quant_fp8, fp8_gsize, dtype, world_size, rank, comm=comm,
            options=options
        )
        self.moe = self.dispatch_ctx.moe
        self.rank, self.local_world_size, self.enable_profiling = rank, local_world_size, enable_profiling
        self._calls = Calls(self.moe.comm)

    def _timed(self, name, function):
        return self._calls.timed(name, function) if self.enable_profiling else function()

    def dispatch(self, send_tokens, send_scales, topk_indices):
        """Returns (recv_token, recv_scale, expert_recv_count, DispatchMetaInfo). Collective."""
        received = self._timed(
            "dispatch",
            lambda: self.moe.dispatch(send_tokens, topk_indices, x_scale=send_scales, sources=True),
        )
        self.dispatch_ctx.update_phase()
        return received.x, received.x_scale, received.count, DispatchMetaInfo(received)

    def combine(self, send_tokens, topk_indices, topk_weights, dispatch_meta):
        """Returns the sums [tokens, hidden]. Collective. topk_indices are those of the dispatch."""
        if not isinstance(dispatch_meta, DispatchMetaInfo):
            raise ArgumentError(
                f"dispatch_meta is of type {type(dispatch_meta).__name__}; pass the DispatchMetaInfo of dispatch()."
            )
        received = dispatch_meta.received
        out = self._timed(
            "combine",
            lambda: self.moe.combine(received, send_tokens, topk_weights, topk_idx=topk_indices),
        )
        self.combine_ctx.update_phase()
        return out

    def _dump(self, name):
        if not self.enable_profiling:
            raise ArgumentError(f"no {name} was recorded; create the layer with enable_profiling=True.")
        path = os.path.join("prof", f"ll_{name}_RANK_{self.rank}.json")
        os.makedirs("prof", exist_ok=True)
        write(path, [(self.rank, 0, [call for call in self._calls.events if call[0] == name])])
        return path

    def dump_dispatch_trace(self):
        """Writes the dispatches as Chrome trace events to ./prof/ll_dispatch_RANK_X.json and returns
        the path. An event is one call, from its begin to its end on the host or the stream. The
        program `epa2a trace` shows the phases within a dispatch."""
        return self._dump("dispatch")

    def dump_combine_trace(self):
        """Writes the combines to ./prof/ll_combine_RANK_X.json and returns the path."""
        return self._dump("combine")

    def finalize(self):
        """Destroys the contexts. Collective."""
        self.dispatch_ctx.finalize()


class AllGatherGemmContext:
    """Context of create_ag_gemm_context(). A call computes C = A of all ranks * B^T."""

    def __init__(self, gemm, owner, rank, num_ranks):
        self.gemm, self._owner, self.rank, self.num_ranks = gemm, owner, rank, num_ranks

    def __call__(self, A, C=None, **arguments):
        return self.gemm(A, c=C, **arguments)

    def finalize(self):
        """Destroys the context. Collective."""
        self.gemm.close()
        if self._owner is not None:
            self._owner.close()


def create_ag_gemm_context(
    A, B, rank, num_ranks, max_M, BLOCK_M=None, BLOCK_N=None, BLOCK_K=None, stages=None, *, comm=None, options=""
):
    """Creates the context of an AllGather with a matrix product. Collective. A is [rows of this rank,
    k], B is [n, k], and max_M is the maximum number of rows of C. The algorithm selects its blocks and
    stages: BLOCK_M, BLOCK_N, BLOCK_K and stages have no effect."""
    a, b = arrays.read(A, "A"), arrays.read(B, "B")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1]:
        raise ArgumentError(
            f"A has the shape {list(a.shape)} and B {list(b.shape)}; pass [rows, k] and [columns, k]."
        )
    if max_M % num_ranks:
        raise ArgumentError(f"max_M is {max_M}; pass a multiple of num_ranks ({num_ranks}).")
    comm, owner = _open_comm(comm, rank, num_ranks)
    return AllGatherGemmContext(
        AgGemm(comm, B, max_rows=max_M // num_ranks, options=options), owner, rank, num_ranks
    )
