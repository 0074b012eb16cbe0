"""A complete MoE layer: dispatch, both expert GEMMs, combine."""

import ctypes

from . import arrays, library, structs
from .comm import Owned
from .errors import ArgumentError
from .moe import make_shape

_activations = {"none": 0, "swiglu": 1}
_BLOCK = 128


def _blocks(n):
    return (n + _BLOCK - 1) // _BLOCK


class FusedMoE(Owned):
    """An MoE layer y = down * act(up * x). All ranks create a layer together.

    up, down       Weights of the L experts of this rank: [L, ffn, hidden], with SwiGLU [L, 2 * ffn,
                   hidden] with gate rows before up rows; and [L, hidden, ffn]. The arrays must not
                   change before close().
    topk           Experts of a token.
    max_tokens     Maximum number of tokens of one rank in one call.
    activation     "swiglu" or "none".
    up_scale, down_scale
                   FP8 weights: float32 [L, blocks of rows, blocks of columns] of 128 x 128 weights.
    dtype          Tokens and sums: "bf16" or "f16"; None: the dtype of up; with FP8 weights "bf16".
    recv           Rows between the ranks: "fp8" or dtype (default).
    fp8_group      Channels of a scale of the rows.
    options        For example "algorithm=fused" or "algorithm=ll_v2"."""

    _destroy = "epa2a_layer_destroy"

    def __init__(
        self, comm, up, down, *, topk, max_tokens, activation="swiglu", up_scale=None, down_scale=None,
        dtype=None, recv=None, fp8_group=128, options=""
    ):
        self._init(comm)
        device = comm.device_number
        gates = 2 if library.choice("activation", activation, _activations) else 1
        read = arrays.read(up, "up")
        quantised = up_scale is not None or down_scale is not None
        if quantised and (up_scale is None or down_scale is None):
            missing = "up_scale" if up_scale is None else "down_scale"
            raise ArgumentError(f"{missing} is None; pass the scales of both weights, or of none.")
        if dtype is None:
            # Integers of NumPy carry bf16.
            dtype = "f16" if read.dtype == "f16" and not quantised else "bf16"
        if len(read.shape) != 3:
            raise ArgumentError(f"up has the shape {list(read.shape)}; pass [local experts, rows, hidden].")
        local, rows, hidden = read.shape
        if rows % gates:
            raise ArgumentError(f"up has {rows} rows per expert; SwiGLU needs as many gate rows as up rows.")
        ffn = rows // gates
        shape = make_shape(
            max_tokens=max_tokens, hidden=hidden, experts=local * comm.ranks, topk=topk, dtype=dtype, recv=recv,
            fp8_group=fp8_group, options=options
        )  # fmt: skip
        self.dtype = "bf16" if shape.dtype == structs.BF16 else "f16"
        self.hidden, self.topk, self.max_tokens, self.experts = hidden, topk, max_tokens, shape.experts
        weights = ("fp8",) if quantised else (self.dtype,)
        up_a = arrays.dense(up, "up", (local, rows, hidden), weights, device)
        down_a = arrays.dense(down, "down", (local, hidden, ffn), weights, device)
        experts = structs.Experts(
            ffn=ffn,
            activation=_activations[activation],
            dtype=structs.FP8_E4M3 if quantised else 0,
            up=up_a.address,
            down=down_a.address,
        )
        self._weights = [up_a, down_a]
        if quantised:
            shapes = {
                "up_scale": (up_scale, (local, _blocks(rows), _blocks(hidden))),
                "down_scale": (down_scale, (local, _blocks(hidden), _blocks(ffn))),
            }
            for name, (scale, wanted) in shapes.items():
                a = arrays.dense(scale, name, wanted, ("f32",), device)
                setattr(experts, name, a.address)
                self._weights.append(a)
        handle = ctypes.c_void_p()
        comm.call_waiting(self._lib.epa2a_layer_create, comm.handle, shape, experts, handle)
        self._adopt(handle)

    def __call__(self, x, topk_idx, topk_weights, out=None, *, stream=None):
        """Runs the layer. Collective. x and out are [tokens, hidden] of dtype; topk_idx and
        topk_weights are [tokens, topk]."""
        handle = self.handle
        device = self.comm.device_number
        tokens = structs.Tokens()
        rows, tokens.x_stride = arrays.rows(x, "x", (None, self.hidden), (self.dtype,), device)
        count = rows.shape[0]
        idx = arrays.small(topk_idx, "topk_idx", (count, self.topk), ("i32", "i64"), device)
        weights = arrays.small(topk_weights, "topk_weights", (count, self.topk), ("f32",), device)
        framework = arrays.framework_of(x)
        if out is None:
            out = arrays.empty(framework, (count, self.hidden), self.dtype, device)
        result = arrays.dense(out, "out", (count, self.hidden), (self.dtype,), device, writable=True)
        tokens.tokens, tokens.x = count, rows.address
        tokens.topk_idx, tokens.topk_idx_bytes = idx.address, arrays.BYTES[idx.dtype]
        tokens.topk_weight = weights.address
        stream = arrays.stream_handle(stream, framework, device)
        self.comm.call(self._lib.epa2a_layer_run, handle, tokens, result.address, stream)
        return out
