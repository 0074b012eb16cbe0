"""A complete MoE layer: dispatch, both expert GEMMs, combine."""

import ctypes

from . import arrays, library, structs
from .comm import Owned
from .errors import ArgumentError, Unsupported
from .moe import make_shape

_activations = {"none": 0, "swiglu": 1}
_BLOCK = 128


def _blocks(n):
    return (n + _BLOCK - 1) // _BLOCK


def _quantised_type(up, up_scale, down_scale, device):
    """Returns "int8" or "fp8" for weights with scales, else None."""
    if up_scale is None and down_scale is None and up.dtype != "int8":
        return None
    for name, scale in ("up_scale", up_scale), ("down_scale", down_scale):
        if scale is None:
            raise ArgumentError(
                f"{name} is None; weights of int8 need the scales of both weights." if up.dtype == "int8" else
                f"{name} is None; pass the scales of both weights, or of none."
            )  # fmt: skip
    if up.dtype == "int8" and device >= 0:
        raise Unsupported("up has the dtype int8, which is for hosts; pass float8_e4m3fn, bfloat16 or float16.")
    return "int8" if up.dtype == "int8" else "fp8"


def _scale_shapes(quantised, local, rows, hidden, ffn):
    """Returns the shapes of up_scale and down_scale."""
    if quantised == "int8":
        return (local, rows), (local, hidden)
    return (local, _blocks(rows), _blocks(hidden)), (local, _blocks(hidden), _blocks(ffn))


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
                   int8 weights, on hosts: float32 [L, rows], a scale for each row of up and down. The
                   layer also rounds tokens and intermediates to int8, with a scale for each row of
                   1/127 of its largest magnitude; an element changes by up to half of this scale.
    dtype          Tokens and sums: "bf16" or "f16"; None: the dtype of up; with scales "bf16".
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
        quantised = _quantised_type(read, up_scale, down_scale, device)
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
        weights = quantised or self.dtype
        up_a = arrays.dense(up, "up", (local, rows, hidden), (weights,), device)
        down_a = arrays.dense(down, "down", (local, hidden, ffn), (weights,), device)
        experts = structs.Experts(
            ffn=ffn,
            activation=_activations[activation],
            dtype={"fp8": structs.FP8_E4M3, "int8": structs.INT8}.get(quantised, 0),
            up=up_a.address,
            down=down_a.address,
        )
        self._weights = [up_a, down_a]
        if quantised:
            scales = ("up_scale", up_scale), ("down_scale", down_scale)
            for (name, scale), wanted in zip(scales, _scale_shapes(quantised, local, rows, hidden, ffn)):
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
