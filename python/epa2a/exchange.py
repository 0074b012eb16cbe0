"""Allgather of bytes over the group of a comm, or over the library if the comm has no group."""

import ctypes

from . import structs
from .comm import Owned
from .errors import ArgumentError, Unsupported

# Bytes that the library moves in one dispatch: the row of a token of 2-byte elements.
_CHUNK = 4096
_CHOICES = 32  # most experts of a token


class Rows(Owned):
    """Sends a row to each rank. Each rank has one expert, so that each source sends it one row."""

    _destroy = "epa2a_moe_destroy"

    def __init__(self, comm):
        self._init(comm)
        if comm.device_number >= 0:
            raise Unsupported(
                "allgather on a device needs a group; create the comm with a group of torch or mpi4py."
            )
        ranks, topk = comm.ranks, min(comm.ranks, _CHOICES)
        self._tokens = -(-ranks // topk)
        choices = [e if e < ranks else -1 for e in range(self._tokens * topk)]
        self._choices = (ctypes.c_int32 * len(choices))(*choices)
        self._sent = (ctypes.c_char * (self._tokens * _CHUNK))()
        shape = structs.MoeShape(
            max_tokens=self._tokens, hidden=_CHUNK // 2, experts=ranks, topk=topk, dtype=structs.BF16,
            recv_dtype=structs.BF16, layout=structs.EXPERT_PACKED,
        )  # fmt: skip
        handle = ctypes.c_void_p()
        comm.call_waiting(self._lib.epa2a_moe_create, comm.handle, shape, handle)
        self._adopt(handle)

    def gather(self, chunk):
        """Returns the chunks of all ranks."""
        for t in range(self._tokens):
            ctypes.memmove(ctypes.addressof(self._sent) + t * _CHUNK, chunk, len(chunk))
        tokens = structs.Tokens(
            tokens=self._tokens, x=ctypes.addressof(self._sent), topk_idx=ctypes.addressof(self._choices),
            topk_idx_bytes=4,
        )  # fmt: skip
        rows = structs.ReceivedRows()
        self.comm.call_waiting(self._lib.epa2a_dispatch, self.handle, bytes(tokens), rows, None)
        stride = rows.x_stride or _CHUNK
        parts = [ctypes.string_at(rows.x + r * stride, len(chunk)) for r in range(self.comm.ranks)]
        self.comm.call_waiting(self._lib.epa2a_discard, self.handle, rows)
        return parts


def gather_equal(comm, data):
    """Returns the data of all ranks, whose lengths are equal. Collective."""
    comm.handle  # raises if the comm is closed
    if comm.ranks == 1:
        return [data]
    if comm._group is not None:
        return comm._group.allgather(data)
    if comm._rows is None:
        comm._rows = Rows(comm)
    parts = [b""] * comm.ranks
    for first in range(0, len(data), _CHUNK):
        chunks = comm._rows.gather(data[first : first + _CHUNK])
        parts = [part + chunk for part, chunk in zip(parts, chunks)]
    return parts


def gather(comm, data):
    """Returns the data of all ranks, in the order of ranks. Collective."""
    try:
        data = bytes(memoryview(data))
    except TypeError:
        raise ArgumentError(
            f"data is of type {type(data).__name__}; pass bytes or another buffer."
        ) from None
    lengths = [int.from_bytes(part, "little") for part in gather_equal(comm, len(data).to_bytes(8, "little"))]
    most = max(lengths)
    parts = gather_equal(comm, data.ljust(most, b"\0")) if most else [b""] * len(lengths)
    return [bytes(part[:n]) for part, n in zip(parts, lengths)]
