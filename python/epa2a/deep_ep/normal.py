"""Normal mode: dispatch to rows of each rank, and sums over the ranks.

The ranks agree on the size of a Moe for each new route: an allgather exchanges the numbers of
tokens. A handle has a copy of the choices, so that a later dispatch follows the same
route without an exchange. Routes without top-k select the first expert of each rank.

Combine also sums weights over the ranks. Their bytes travel as whole numbers in BF16, which are
exact, in columns of each source rank; the sum follows in float32."""

import array

from .. import arrays
from ..errors import ArgumentError, Unsupported
from ..exchange import gather_equal
from ..moe import Moe
from .low_latency import FP8_GROUP, INDICES
from .tensor_ops import ops_for

FLOAT_BYTES = 4


class Handle(tuple):
    """(rank_prefix_matrix [ranks, ranks], tokens of the received rows, is_token_in_rank), with the
    route. rank_prefix_matrix[i][r] is the number of tokens that ranks 0 to i send to rank r."""

    def __new__(cls, items, **route):
        self = super().__new__(cls, items)
        self.__dict__.update(route)
        return self


class Normal:
    """Dispatches and combines of a comm."""

    def __init__(self, comm):
        self.comm = comm
        self.moes = {}

    def close(self):
        for moe in self.moes.values():
            moe.close()
        self.moes.clear()

    def moe_of(self, max_tokens, hidden, experts, topk, fp8):
        """Returns the Moe of a shape. Collective at the first call of the shape."""
        key = (max_tokens, hidden, experts, topk, fp8)
        if key not in self.moes:
            self.moes[key] = Moe(
                self.comm,
                max_tokens=max_tokens,
                hidden=hidden,
                experts=experts,
                topk=topk,
                dtype="bf16",
                recv="fp8" if fp8 else "bf16",
                layout="rank_packed",
                fp8_group=FP8_GROUP,
            )
        return self.moes[key]

    def exchange(self, numbers):
        """Returns the lists of all ranks. Collective."""
        parts = gather_equal(self.comm, array.array("q", numbers).tobytes())
        return [array.array("q", part).tolist() for part in parts]

    # ---- layout ----

    def layout(self, topk_idx, experts):
        ranks = self.comm.ranks
        arrays.dense(topk_idx, "topk_idx", (None, None), INDICES, self.comm.device_number)
        if experts < 1 or experts % ranks != 0:
            raise ArgumentError(f"num_experts is {experts}; pass a multiple of {ranks}, the number of ranks.")
        return ops_for(topk_idx).layout(topk_idx, ranks, experts)

    # ---- dispatch ----

    def read_rows(self, x):
        """Returns (rows, scales, number of tokens, hidden)."""
        device = self.comm.device_number
        if not isinstance(x, (tuple, list)):
            return x, None, *arrays.dense(x, "x", (None, None), ("bf16",), device).shape
        if len(x) != 2:
            raise ArgumentError(f"x has {len(x)} elements; pass a tensor, or a tensor and its scales.")
        tokens, hidden = arrays.dense(x[0], "x[0]", (None, None), ("fp8",), device).shape
        scales = x[1].contiguous() if hasattr(x[1], "contiguous") else x[1].copy(order="C")
        return x[0], scales, tokens, hidden

    def new_route(self, x, per_rank, in_rank, per_expert, topk_idx, topk_weights):
        """Exchanges the counts of a route. Returns its handle without received rows."""
        ranks, rank, device = self.comm.ranks, self.comm.rank, self.comm.device_number
        _, scales, tokens, hidden = self.read_rows(x)
        for name, value in (
            ("num_tokens_per_rank", per_rank),
            ("is_token_in_rank", in_rank),
            ("num_tokens_per_expert", per_expert),
        ):
            if value is None:
                raise ArgumentError(f"{name} is None; pass the result of get_dispatch_layout(), or a handle.")
        arrays.dense(per_rank, "num_tokens_per_rank", (ranks,), ("i32",), device)
        experts = arrays.dense(per_expert, "num_tokens_per_expert", (None,), ("i32",), device).shape[0]
        if tuple(in_rank.shape) != (tokens, ranks):
            raise ArgumentError(f"is_token_in_rank has the shape {list(in_rank.shape)}; pass [{tokens}, {ranks}].")
        if (topk_idx is None) != (topk_weights is None):
            raise ArgumentError("topk_idx and topk_weights belong together; pass both or none.")
        ops = ops_for(per_rank)
        if topk_idx is None:
            choices = ops.one_choice_per_rank(in_rank, experts // ranks)
        else:
            arrays.dense(topk_idx, "topk_idx", (tokens, None), INDICES, device)
            choices = ops.copy(topk_idx)
        shape = [hidden, experts, choices.shape[1], scales is not None]
        facts = self.exchange([*map(int, shape), tokens, *per_rank.tolist(), *per_expert.tolist()])
        for r, other in enumerate(facts):
            if other[:4] != facts[rank][:4]:
                raise ArgumentError(
                    f"rank {r} dispatches (hidden, experts, top-k, FP8) = {tuple(other[:4])}, rank {rank} "
                    f"{tuple(facts[rank][:4])}; pass equal shapes on all ranks."
                )
        most = max(1, *(other[4] for other in facts)) if ranks > 1 else max(1, tokens)
        sent = [other[5 : 5 + ranks] for other in facts]
        prefix = [[sum(s[r] for s in sent[: i + 1]) for r in range(ranks)] for i in range(ranks)]
        first = 5 + ranks + rank * (experts // ranks)
        return Handle(
            (ops.integers(prefix), None, in_rank),
            shape=(1 << (most - 1).bit_length(), hidden, experts, choices.shape[1]),
            choices=choices,
            tokens=tokens,
            rows=prefix[-1][rank],
            counts=[sum(other[first + e] for other in facts) for e in range(experts // ranks)],
            received=None,
        )

    def send(self, x, handle, weights, stream):
        """Dispatches rows along the route of a handle."""
        rows, scales, tokens, hidden = self.read_rows(x)
        if (tokens, hidden) != (handle.tokens, handle.shape[1]):
            raise ArgumentError(
                f"x has the shape [{tokens}, {hidden}]; the handle needs [{handle.tokens}, {handle.shape[1]}]."
            )
        if weights is None:
            weights = ops_for(rows).zeros((tokens, handle.shape[3]), "float32")
        moe = self.moe_of(*handle.shape, scales is not None)
        return moe.dispatch(
            rows, handle.choices, weights, x_scale=scales, sources=True, keep_routes=True, host_counts=True,
            stream=stream
        )  # fmt: skip

    def dispatch(self, x, handle, layout, topk_idx, topk_weights, alignment, worst, stream):
        """Returns (rows or (rows, scales), topk_idx, topk_weights, counts, handle)."""
        known = handle is not None
        if known and not isinstance(handle, Handle):
            raise ArgumentError(f"handle is of type {type(handle).__name__}; pass the handle of dispatch().")
        if known and topk_idx is not None:
            raise ArgumentError("handle and topk_idx exclude each other; pass one of them.")
        if not known:
            handle = self.new_route(x, *layout, topk_idx, topk_weights)
        got = self.send(x, handle, topk_weights, stream)
        n = got.counts[-1]
        if n != handle.rows:
            raise ArgumentError(
                f"num_tokens_per_rank of the ranks announces {handle.rows} rows, but {n} arrived; pass the "
                "result of get_dispatch_layout() for the same topk_idx."
            )
        if not known:
            items = handle[0], got.source_token[:n], handle[2]
            handle = Handle(items, **{**handle.__dict__, "received": got})
        ops = ops_for(got.x)
        size = worst if worst > 0 else n
        if size < n:
            raise ArgumentError(f"num_worst_tokens is {worst}, but {n} rows arrived; pass a larger number.")
        rows = self.take(ops, got.x, n, size)
        if got.x_scale is not None:
            rows = rows, self.take(ops, got.x_scale, n, size)
        counts = [] if worst > 0 or known else [-(-c // alignment) * alignment for c in handle.counts]
        if topk_idx is None:
            return rows, None, None, counts, handle
        idx = self.take(ops, ops.to_index(got.topk_idx), n, size)
        idx[n:] = -1
        weights = self.take(ops, got.topk_weights, n, size)
        weights[idx < 0] = 0
        return rows, idx, weights, counts, handle

    @staticmethod
    def take(ops, x, n, size):
        """Returns the first `size` rows of x, of which n are valid."""
        if size <= x.shape[0]:
            return x[:size]
        more = ops.empty_rows(x, size)
        more[:n] = x[:n]
        return more

    # ---- combine ----

    def combine(self, x, handle, topk_weights, bias, stream):
        """Returns (sums, sums of the weights or None)."""
        if not isinstance(handle, Handle):
            raise ArgumentError(f"handle is of type {type(handle).__name__}; pass the handle of dispatch().")
        device = self.comm.device_number
        got, n, hidden = handle.received, handle.rows, handle.shape[1]
        sent = arrays.dense(x, "x", (None, hidden), ("bf16",), device).shape[0]
        if sent < n:
            raise ArgumentError(f"x has {sent} rows; the dispatch delivered {n} rows.")
        ops = ops_for(x)
        y = got.y
        y[:n] = x[:n]
        sums = got.moe.combine(got, y, bias=bias, stream=stream)
        if topk_weights is None:
            return sums, None
        topk = handle.shape[3]
        arrays.dense(topk_weights, "topk_weights", (sent, topk), ("f32",), device)
        return sums, self.sum_weights(ops, got, topk_weights, n, topk, stream)

    def sum_weights(self, ops, got, weights, n, topk, stream):
        """Returns [tokens, top-k]: the sum of the weights of a token over the ranks."""
        ranks, rank, hidden = self.comm.ranks, self.comm.rank, got.moe.hidden
        chunk = hidden // (ranks * FLOAT_BYTES)  # columns of weights in one combine
        if chunk == 0:
            raise Unsupported(
                f"weights in combine need hidden of at least {ranks * FLOAT_BYTES}; the tokens have {hidden}."
            )
        total = ops.zeros((got.tokens, topk), "float32")
        for first in range(0, topk, chunk):
            k = min(chunk, topk - first)
            width = k * FLOAT_BYTES
            y = ops.zeros(tuple(got.y.shape), "bfloat16")
            y[:n, rank * width : (rank + 1) * width] = ops.bytes_as_bf16(weights[:n, first : first + k])
            sums = got.moe.combine(got, y, stream=stream)
            for r in range(ranks):
                columns = sums[:, r * width : (r + 1) * width]
                total[:, first : first + k] += ops.floats_of_bf16(columns)
        return total
