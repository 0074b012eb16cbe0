"""Low-latency mode: dispatch to rows of each expert, and combine of expert outputs.

A Moe exists for each shape (maximum of tokens, hidden, experts, top-k), from the first dispatch of
the shape. A dispatch stores its routes with its handle. The caller may therefore combine the
dispatches in any order and any number of times, or not at all.

On hosts, rows travel in BF16, so that each dispatch selects the form of its rows: BF16, or FP8 with
scales. A call is complete on return: the caller may then change its inputs before the hook, as with
DeepEP.

On a device, dispatches to FP8 rows have a Moe of their own, whose rows travel in FP8, and so have
dispatches with return_recv_hook, whose calls are two kernels: the first ends without a wait for peers,
and the hook starts the second."""

import itertools
from collections.abc import Sequence

from .. import arrays
from ..errors import ArgumentError
from ..moe import Moe
from .torch_or_none import torch

FP8_GROUP = 128
LOGFMT_PART = 512
MOST_TOPK = 32
INDICES = ("i64", "i32")

# Options of the algorithm. Both algorithms read the weights in combine, as DeepEP's callers pass them,
# and add outputs in the order of the choices. On devices only ll_v2 has a place for each expert of a
# padded layout. A token crosses once per rank in dispatch. Combine pushes rows from the caller's tensor.
HOSTS = "algorithm=ll_v1"
DEVICES = "algorithm=ll_v2, dedup=true, combine_dedup=false"
SPLIT = DEVICES + ", split_phase=true"  # a kernel for each half


def forms_of(device, hidden):
    """Returns (FP8, hooked) for each Moe of a shape."""
    if device < 0:
        return [(False, False)]
    rows = (False, True) if hidden % FP8_GROUP == 0 else (False,)
    return list(itertools.product(rows, (False, True)))


def shape_of(max_tokens, hidden, experts, topk, device, fp8, hooked):
    """Returns the arguments of Moe. Two dispatches may be open, for engines that alternate between two
    batches."""
    return {
        "max_tokens": max_tokens,
        "hidden": hidden,
        "experts": experts,
        "topk": topk,
        "dtype": "bf16",
        "recv": "fp8" if device >= 0 and fp8 else "bf16",
        "layout": "expert_padded",
        "fp8_group": FP8_GROUP,
        "in_flight": 2,
        "options": HOSTS if device < 0 else SPLIT if hooked else DEVICES,
    }


def size_hint(max_tokens, hidden, ranks, experts):
    """Returns the bytes of the symmetric heaps that suffice for each top-k, on hosts and on devices."""
    shape = max_tokens, hidden, experts, min(experts, MOST_TOPK)

    def bytes_on(device):
        place = "cpu" if device < 0 else device
        shapes = [shape_of(*shape, device, *form) for form in forms_of(device, hidden)]
        return sum(Moe.need(ranks, place, **s).heap_bytes for s in shapes)

    has_cuda = torch is not None and torch.cuda.is_available()
    return max(bytes_on(-1), bytes_on(0) if has_cuda else 0)


class Handle(Sequence):
    """(src_info, layout_range, maximum of tokens, hidden, experts), with the received rows. `items` is a
    function that returns the items: engines pass a handle on, and most of them use no item."""

    def __init__(self, received, items):
        self.received, self._items = received, items
        self.outputs = None  # array of combine_buffer(), with masks
        self.choices = None  # copy of topk_idx of the dispatch, for a combine with other masks

    def _all(self):
        if callable(self._items):
            self._items = self._items()
        return self._items

    def __getitem__(self, i):
        return self._all()[i]

    def __len__(self):
        return len(self._all())

    def memory(self):
        """Returns the items that exist, and the arrays of which later items are parts."""
        items = () if callable(self._items) else self._items
        return [*items, self.received.x, self.received.routing]

    @staticmethod
    def received_of(handle):
        if not isinstance(handle, Handle):
            raise ArgumentError(
                f"handle is of type {type(handle).__name__}; pass the handle of low_latency_dispatch()."
            )
        return handle.received


def do_nothing():
    """The hook of a complete call."""


class Half:
    """The second half of a call. Only the first complete() has an effect."""

    def __init__(self, wait):
        self.wait = wait

    def complete(self):
        wait, self.wait = self.wait, None
        if wait is not None:
            wait()


class LowLatency:
    """Dispatches and combines of a comm. masks: on a device, tensor of the ranks that take no part, int32."""

    def __init__(self, comm, limit_bytes, masks=None):
        self.comm = comm
        self.masks = masks
        self.limit_bytes = limit_bytes
        self.moes = {}  # with Need.overlaps
        self.own = set()  # the same Moes
        self.half = Half(None)  # the last second half
        self.rows = None  # of masks.py

    def moe_of(self, max_tokens, hidden, experts, topk, fp8, hooked):
        """Returns the Moe for a form of dispatches, and whether it overlaps. Collective at the first call."""
        device = self.comm.device_number
        form = (fp8, hooked) if device >= 0 else (False, False)
        key = (max_tokens, hidden, experts, topk, *form)
        if key not in self.moes:
            shape = shape_of(max_tokens, hidden, experts, topk, device, *form)
            need = Moe.need(self.comm.ranks, self.comm.device, **shape)
            if need.heap_bytes > self.limit_bytes:
                raise ArgumentError(
                    f"{max_tokens} tokens of {hidden} elements with {experts} experts and top-{topk} need "
                    f"{need.heap_bytes} bytes, but num_rdma_bytes of the Buffer is {self.limit_bytes}; pass "
                    "the result of Buffer.get_low_latency_rdma_size_hint() for these numbers."
                )
            if self.masks is not None:
                shape["options"] += f", masks={self.masks.data_ptr()}"
            moe = Moe(self.comm, **shape)
            moe.rename(y="x", seen="cumulative_local_expert_recv_stats")
            moe.used = "x", "x_scale", "count"
            self.moes[key] = moe, need.overlaps
            self.own.add(moe)
        return self.moes[key]

    def has(self, handle):
        """Returns whether the handle is of a dispatch of this object."""
        return Handle.received_of(handle).moe in self.own

    def find(self, x, topk_idx, max_tokens, experts, fp8, hooked):
        """Returns moe_of() for the arguments of a dispatch. Moe.dispatch() checks the arguments, too, so only
        the first call of a shape has to."""
        device = self.comm.device_number
        form = (fp8, hooked) if device >= 0 else (False, False)
        try:
            found = self.moes[max_tokens, x.shape[1], experts, topk_idx.shape[1], *form]
            hidden = found[0].hidden
        except (AttributeError, IndexError, KeyError, TypeError):  # the first call, or wrong arguments
            found = None
            tokens, hidden = arrays.rows(x, "x", (None, None), ("bf16",), device)[0].shape
            topk = arrays.dense(topk_idx, "topk_idx", (tokens, None), INDICES, device).shape[1]
        if fp8 and hidden % FP8_GROUP != 0:
            raise ArgumentError(
                f"x has {hidden} elements per token; use_fp8 needs a multiple of {FP8_GROUP}."
            )
        self.half.complete()  # the library admits one open half
        return found or self.moe_of(max_tokens, hidden, experts, topk, fp8, hooked)

    def close(self):
        self.half.complete()
        for moe in self.own:
            moe.close()
        self.moes.clear()
        self.own.clear()
        if self.rows is not None:
            self.rows.close()

    def finish(self, wait, hooked):
        """Ends a call: returns the hook. A call of the library that was begun has a function `wait`."""
        if not hooked:
            return do_nothing
        self.half = Half(wait)
        return self.half.complete

    def dispatch(self, x, topk_idx, max_tokens, experts, *, fp8, pow2, ue8m0, seen, hooked, stream):
        """Returns (rows or (rows, scales), count, handle, hook)."""
        moe, overlaps = self.find(x, topk_idx, max_tokens, experts, fp8, hooked)
        halves = hooked and overlaps
        got = (moe.dispatch_send if halves else moe.dispatch)(
            x,
            topk_idx,
            recv="fp8" if fp8 else "bf16",
            pow2_scales=fp8 and pow2,
            ue8m0=fp8 and ue8m0,
            scales_by_group=fp8,
            sources=True,
            keep_routes=True,
            seen=seen,
            stream=stream,
        )
        hook = self.finish(got.wait if halves else None, hooked)
        rows = got.x
        if fp8:
            scales = got.x_scale
            rows = rows, scales.mT if got.framework == "torch" else scales.swapaxes(1, 2)

        def items():
            src_info = got.source_token.reshape(moe.local_experts, -1)
            return src_info, got.source_range, max_tokens, moe.hidden, experts

        handle = Handle(got, items)
        return rows, got.count, handle, hook

    def combine(self, y, topk_idx, topk_weights, handle, *, out, rounded, hooked, stream):
        """Combines y, or the expert outputs in the array of combine_buffer() if y is None. rounded: as
        values of LogFMT-10. Returns (sums, hook)."""
        got = Handle.received_of(handle)
        moe = got.moe
        if topk_weights is None:
            raise ArgumentError("topk_weights is None; pass the weights of the choices.")
        if rounded and moe.hidden % LOGFMT_PART != 0:
            raise ArgumentError(
                f"the rows have {moe.hidden} elements; use_logfmt needs a multiple of {LOGFMT_PART}."
            )
        how = {"topk_idx": topk_idx, "out": out, "logfmt": rounded, "stream": stream}
        self.half.complete()
        if not (hooked and moe.overlaps):
            out = moe.combine(got, y, topk_weights, **how)
            return out, self.finish(None, hooked)
        begun = moe.combine_send(got, y, topk_weights, **how)
        return begun.result, self.finish(begun.wait, hooked)

    def combine_other(self, *_, **__):
        raise ArgumentError("handle is of a dispatch with masks, which were removed; dispatch again.")

    @staticmethod
    def combine_buffer(handle):
        """Returns the array for expert outputs that combine() reads without y."""
        return Handle.received_of(handle).y
