"""Structs and constants of include/epa2a.h for ctypes. A test compares them with the header."""

import struct as packing
from ctypes import (
    Array,
    CFUNCTYPE,
    POINTER,
    Structure,
    addressof,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    memmove,
    sizeof,
)
from functools import partial

VERSION = 0x000100
HOST = -1
F32, BF16, FP8_E4M3, F16, INT8 = range(5)
EXPERT_PADDED, EXPERT_PACKED, RANK_PACKED, RANK_PADDED = range(4)
RECV_NATIVE, RECV_FP8, SCALE_POW2, SCALE_UE8M0, SCALE_BY_GROUP = (1 << i for i in range(5))
COMBINE_LOGFMT = 1 << 0

ALLGATHER = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
SAY = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)


class Sized(Structure):
    """A struct of the library. Its first field is its size."""

    def __init__(self, **fields):
        super().__init__(sizeof(self), **fields)


class CommParams(Sized):
    c_name = "epa2a_comm_params"
    _fields_ = [
        ("size", c_size_t),
        ("version", c_uint32),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("allgather", ALLGATHER),
        ("arg", c_void_p),
        ("device", c_int32),
        ("heap_bytes", c_uint64),
        ("heap", c_void_p),
        ("timeout_ns", c_uint64),
        ("options", c_char_p),
        ("plugin_path", c_char_p),
        ("log", LOG),
        ("log_arg", c_void_p),
    ]


class MoeShape(Sized):
    c_name = "epa2a_moe_shape"
    _fields_ = [
        ("size", c_size_t),
        ("max_tokens", c_uint32),
        ("hidden", c_uint32),
        ("experts", c_uint32),
        ("topk", c_uint32),
        ("dtype", c_int32),
        ("recv_dtype", c_int32),
        ("layout", c_int32),
        ("fp8_group", c_uint32),
        ("in_flight", c_uint32),
        ("options", c_char_p),
    ]


class MoeNeed(Sized):
    c_name = "epa2a_need"
    _fields_ = [
        ("size", c_size_t),
        ("heap_bytes", c_uint64),
        ("private_bytes", c_uint64),
        ("rows", c_uint64),
        ("entries", c_uint64),
        ("routing_bytes", c_uint64),
        ("algorithm", c_char_p),
        ("overlaps", c_int32),
    ]


class Tokens(Sized):
    c_name = "epa2a_tokens"
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_uint32),
        ("flags", c_uint32),
        ("x", c_void_p),
        ("x_scale", c_void_p),
        ("x_stride", c_size_t),
        ("x_scale_stride", c_size_t),
        ("topk_idx", c_void_p),
        ("topk_idx_bytes", c_int32),
        ("topk_weight", c_void_p),
        ("seen", c_void_p),
    ]


class ReceivedRows(Sized):
    c_name = "epa2a_received"
    _fields_ = [
        ("size", c_size_t),
        ("id", c_uint64),
        ("rows", c_uint64),
        ("entries", c_uint64),
        ("x", c_void_p),
        ("x_scale", c_void_p),
        ("x_stride", c_size_t),
        ("x_scale_stride", c_size_t),
        ("count", c_void_p),
        ("start", c_void_p),
        ("row", c_void_p),
        ("topk_idx", c_void_p),
        ("topk_weight", c_void_p),
        ("source_token", c_void_p),
        ("source_range", c_void_p),
        ("y", c_void_p),
        ("host_count", c_void_p),
        ("routing", c_void_p),
    ]


class Outputs(Sized):
    c_name = "epa2a_outputs"
    _fields_ = [
        ("size", c_size_t),
        ("y", c_void_p),
        ("topk_idx", c_void_p),
        ("topk_idx_bytes", c_int32),
        ("topk_weight", c_void_p),
        ("bias", c_void_p * 2),
        ("out", c_void_p),
        ("out_weight", c_void_p),
        ("flags", c_uint32),
    ]


class Experts(Sized):
    c_name = "epa2a_experts"
    _fields_ = [
        ("size", c_size_t),
        ("ffn", c_uint32),
        ("activation", c_int32),
        ("dtype", c_int32),
        ("up", c_void_p),
        ("down", c_void_p),
        ("up_scale", c_void_p),
        ("down_scale", c_void_p),
    ]


class AgGemmParams(Sized):
    c_name = "epa2a_ag_gemm_params"
    _fields_ = [
        ("size", c_size_t),
        ("max_rows", c_uint32),
        ("n", c_uint32),
        ("k", c_uint32),
        ("dtype", c_int32),
        ("b", c_void_p),
        ("b_scale", c_void_p),
        ("bias", c_void_p),
        ("options", c_char_p),
        ("out_dtype", c_int32),
        ("zero", c_uint32),
    ]


ALL = [CommParams, MoeShape, MoeNeed, Tokens, ReceivedRows, Outputs, Experts, AgGemmParams]
_received = bytes(ReceivedRows())


def new_received():
    """Returns a new ReceivedRows, in half of the time of its constructor."""
    return ReceivedRows.from_buffer_copy(_received)


def copy(to, other):
    """Copies a struct of the same class."""
    memmove(addressof(to), addressof(other), sizeof(to))


_formats = {c_size_t: "N", c_uint64: "Q", c_void_p: "P", c_uint32: "I", c_int32: "i"}


def packer(struct):
    """Returns a function that packs the values of the fields as bytes, in a quarter of the time of the
    struct. Its arguments are the fields after `size`; an array has an argument for each element."""
    form = "".join(
        str(kind._length_) + _formats[kind._type_] if issubclass(kind, Array) else _formats[kind]
        for _, kind in struct._fields_
    )
    return partial(packing.Struct(f"@{form}0P").pack, sizeof(struct))


pack_tokens, pack_outputs = packer(Tokens), packer(Outputs)


_p = c_void_p
_packed = c_void_p  # the bytes of a struct that the library only reads
_int_functions = {
    "epa2a_comm_create": [POINTER(CommParams), POINTER(_p)],
    "epa2a_comm_check": [_p],
    "epa2a_comm_sync": [_p, _p],
    "epa2a_comm_barrier": [_p, _p],
    "epa2a_comm_alloc": [_p, c_size_t, POINTER(_p)],
    "epa2a_moe_need": [_p, c_uint32, c_int32, POINTER(MoeShape), POINTER(MoeNeed)],
    "epa2a_moe_create": [_p, POINTER(MoeShape), POINTER(_p)],
    "epa2a_dispatch": [_p, _packed, POINTER(ReceivedRows), _p],
    "epa2a_dispatch_send": [_p, _packed, POINTER(ReceivedRows), _p],
    "epa2a_dispatch_recv": [_p, POINTER(ReceivedRows), _p],
    "epa2a_dispatch_again": [_p, _packed, POINTER(ReceivedRows), _p],
    "epa2a_discard": [_p, POINTER(ReceivedRows)],
    "epa2a_combine": [_p, POINTER(ReceivedRows), _packed, _p],
    "epa2a_combine_send": [_p, POINTER(ReceivedRows), _packed, _p],
    "epa2a_combine_recv": [_p, POINTER(ReceivedRows), _p],
    "epa2a_test": [_p],
    "epa2a_layer_create": [_p, POINTER(MoeShape), POINTER(Experts), POINTER(_p)],
    "epa2a_layer_run": [_p, POINTER(Tokens), _p, _p],
    "epa2a_ag_gemm_create": [_p, POINTER(AgGemmParams), POINTER(_p)],
    "epa2a_ag_gemm_run": [_p, _p, _p, _p, _p, _p],
    "epa2a_ag_gemm_run_fp8": [_p, _p, _p, _p, _p, _p, _p],
}
_void_functions = {
    "epa2a_comm_destroy": [_p],
    "epa2a_comm_abort": [_p],
    "epa2a_comm_describe": [_p, SAY, _p],
    "epa2a_comm_free": [_p, _p],
    "epa2a_moe_destroy": [_p],
    "epa2a_layer_destroy": [_p],
    "epa2a_ag_gemm_destroy": [_p],
}
# Name: result, arguments.
FUNCTIONS = {
    "epa2a_version": (c_uint32, []),
    "epa2a_build": (c_char_p, []),
    "epa2a_last_error": (c_char_p, []),
    "epa2a_status_name": (c_char_p, [c_int]),
    **{name: (c_int, args) for name, args in _int_functions.items()},
    **{name: (None, args) for name, args in _void_functions.items()},
}
