"""Dispatch and combine of one shape over a comm."""

import ctypes
import math
from collections import namedtuple

from . import arrays, binding, library, structs
from .comm import Owned
from .errors import NOT_YET, ArgumentError

_U32 = 2**32 - 1
_dtypes = {"bf16": structs.BF16, "f16": structs.F16}
_recv_dtypes = {"fp8": structs.FP8_E4M3, **_dtypes}
_layouts = {
    "expert_padded": structs.EXPERT_PADDED,
    "expert_packed": structs.EXPERT_PACKED,
    "rank_packed": structs.RANK_PACKED,
    "rank_padded": structs.RANK_PADDED,
}
_indices = ("i32", "i64")

Need = namedtuple(
    "Need", "heap_bytes private_bytes rows entries routing_bytes algorithm overlaps"
)
Need.__doc__ = """Memory requirements of a shape: epa2a_need of epa2a.h."""


def dtype_name(name, dtype):
    """Returns a dtype of any framework as "bf16", "f16" or "fp8"."""
    return dtype if dtype in _recv_dtypes else arrays.short_dtype(dtype)


def make_shape(
    *, max_tokens, hidden, experts, topk, dtype="bf16", recv=None, layout="expert_padded", fp8_group=128,
    in_flight=1, options=""
):
    """Returns the shape as a struct. The library checks the numbers."""
    dtype = dtype_name("dtype", dtype)
    code = library.choice("dtype", dtype, _dtypes)
    recv = dtype if recv is None else dtype_name("recv", recv)
    return structs.MoeShape(
        max_tokens=library.number("max_tokens", max_tokens, 0, _U32),
        hidden=library.number("hidden", hidden, 0, _U32),
        experts=library.number("experts", experts, 0, _U32),
        topk=library.number("topk", topk, 0, _U32),
        dtype=code,
        recv_dtype=library.choice("recv", recv, _recv_dtypes),
        layout=library.choice("layout", layout, _layouts),
        fp8_group=library.number("fp8_group", fp8_group, 0, _U32),
        in_flight=library.number("in_flight", in_flight, 0, _U32),
        options=library.options_text(options),
    )


def _ask_need(comm, ranks, device, shape):
    need = structs.MoeNeed()
    library.check(library.load().epa2a_moe_need(comm, ranks, device, shape, need))
    return Need(
        need.heap_bytes,
        need.private_bytes,
        need.rows,
        need.entries,
        need.routing_bytes,
        need.algorithm.decode(),
        bool(need.overlaps),
    )


class _Rows:
    """Members of Received. The compiled module has a class in place of this one, whose member `rows` is in
    its own memory."""

    __slots__ = (
        "moe", "struct", "framework", "tokens", "_plan", "_block", "_arrays", "_counts", "_y", "_keep", "_views",
        "_half",
    )  # fmt: skip

    def __init__(self):
        self.struct = structs.new_received()


class _CompiledRows(binding.module.Received if binding.module else object):
    __slots__ = ()

    @property
    def struct(self):
        struct = structs.ReceivedRows.from_address(self._address)
        struct.owner = self  # of the memory
        return struct


class Received(_CompiledRows if binding.module else _Rows):
    """The rows of a dispatch. The arrays are of the framework of the tokens and have room for the
    maximum number of rows; `count` holds the used part. L is the number of local experts of a rank.

    x             expert_padded: [L, ranks * max_tokens, hidden]; other layouts: [rows, hidden].
    x_scale       FP8: float32, as x with hidden / fp8_group in place of hidden. ue8m0: int32 words of
                  four exponents. scales_by_group: the group before the row. None: rows are not FP8.
    count         [L] rows of each local expert.
    start         [L] index of the first entry of each local expert.
    row           Layouts by rank: [entries] row of each entry. Other layouts: None.
    topk_idx      Layouts by rank: [rows, topk] local experts, or -1. Other layouts: None.
    topk_weights  Layouts by rank: [rows, topk]. Other layouts: None.
    source_token  [rows] index of the token at its source rank.
    source_range  [L, ranks], by rank [ranks]: begin << 32 | count of the rows of each source rank.
    routing       The routes, with keep_routes.

    On a device `source_token` and `source_range` are None unless the dispatch has sources=True."""

    __slots__ = ("__weakref__",)

    def __init__(self, moe, framework, tokens, plan, views):
        super().__init__()
        self.moe, self.framework, self.tokens, self._plan, self._views = moe, framework, tokens, plan, views
        self._arrays = {}  # the arrays of the caller, and those that were used
        self._counts = self._y = self._keep = self._half = self._block = None

    def _array(self, name):
        """Returns an output. Most callers use few of the outputs, so each is created at its first use."""
        found = self._arrays.get(name)
        output = self._plan.outputs.get(name)
        if found is not None or output is None:
            return found
        if self._views:
            if self._half is not None:
                raise ArgumentError("the views are not known before wait(); call wait() first.")
            found = self._view(name, output)
        elif self._block is not None:
            found = arrays.part_of_block(
                self.framework, self._block, output.at, output.bytes, output.shape, output.dtype
            )
        self._arrays[name] = found
        return found

    def _view(self, name, output):
        struct, shape = self.struct, output.shape
        address = getattr(struct, output.field)
        if not address:
            return None
        strides = None
        if name in ("x", "x_scale"):
            size = arrays.BYTES[output.dtype]
            # Distance of rows, or of groups; the experts of expert_padded follow each other.
            stride = (struct.x_stride if name == "x" else struct.x_scale_stride) or shape[-1] * size
            strides = (stride, size) if len(shape) == 2 else (stride * shape[1], stride, size)
        return self.moe._view(self.framework, address, shape, output.dtype, strides)

    @property
    def y(self):
        """Array for the expert outputs, in the layout of x and the dtype of the moe. The first use
        allocates it. combine() reads it if the call has no other array. With views=True, it is memory
        of the moe, which combine() does not copy."""
        if self._y is None:
            moe = self.moe
            if self._views:
                address = self.struct.y
                self._y = moe._view(self.framework, address, moe._rows_shape(moe.hidden), moe.dtype)
            else:
                shape = moe._rows_shape(moe.hidden)
                self._y = arrays.empty(self.framework, shape, moe.dtype, moe.comm.device_number)
        return self._y

    @property
    def counts(self):
        """List of the number of rows of each local expert, then of all rows. Needs host_counts."""
        if self._counts is None:
            raise ArgumentError("the dispatch has no host counts; pass host_counts=True to dispatch.")
        if self._half is not None:
            raise ArgumentError("the counts are not known before wait(); call wait() first.")
        return list(self._counts)

    def wait(self, stream=None):
        """Completes a dispatch that dispatch_send() began."""
        if self._half is None:
            raise ArgumentError("the dispatch is complete; wait() follows a dispatch_send().")
        moe = self.moe
        handle = moe.handle
        stream = arrays.stream_handle(stream, self.framework, moe.comm.device_number)
        waits = self._counts is not None
        moe._move(waits, self.tokens, stream, moe._lib.epa2a_dispatch_recv, handle, self.struct)
        self._half = None
        return moe._complete(self)

    def __repr__(self):
        return f"<epa2a.Received: dispatch {self.struct.id} of {self.tokens} tokens>"


class Pending:
    """A combine that combine_send() began. wait() completes `result`."""

    def __init__(self, moe, received, result, keep):
        self.moe, self.received, self.result, self._keep = moe, received, result, keep

    def wait(self, stream=None):
        """Completes the combine and returns its result."""
        if self._keep is None:
            raise ArgumentError("the combine is complete; wait() returns once.")
        moe = self.moe
        handle = moe.handle
        stream = arrays.stream_handle(stream, self.received.framework, moe.comm.device_number)
        received = self.received
        moe._move(False, received.tokens, stream, moe._lib.epa2a_combine_recv, handle, received.struct)
        self._keep = None
        return self.result


# Names of the arrays of Received, and of the fields of the struct.
_fields = {
    "x": "x",
    "x_scale": "x_scale",
    "count": "count",
    "start": "start",
    "row": "row",
    "topk_idx": "topk_idx",
    "topk_weights": "topk_weight",
    "source_token": "source_token",
    "source_range": "source_range",
}
_sources = ("source_token", "source_range")
_routing = "routing"
for _name in (*_fields, _routing):
    setattr(Received, _name, property(lambda self, name=_name: self._array(name)))

# Functions that the compiled module calls, in the order of its numbers.
_compiled = ("dispatch", "dispatch_send", "combine", "combine_send")
_DISPATCH, _DISPATCH_SEND, _COMBINE, _COMBINE_SEND = range(len(_compiled))

Output = namedtuple("Output", "field argument at bytes shape dtype")


class Plan:
    """Outputs of the dispatches with the same flags, and their places in one block of memory. `used`: names
    of outputs that have arrays of their own: to create an array costs less than to find it in the block."""

    _ALIGN = 256

    def __init__(self, outputs, flags, used=()):
        self.flags, self.outputs, self.bytes, self.used = flags, {}, 0, [n for n in used if n in outputs]
        self.owns = any(name in outputs for name in (*_sources, _routing))  # outputs that are never views
        for name, (shape, dtype) in outputs.items():
            count = math.prod(shape) * arrays.BYTES[dtype]
            argument = arrays.Argument(f"into[{name!r}]", dtype, writable=True)
            self.outputs[name] = Output(_fields.get(name, name), argument, self.bytes, count, shape, dtype)
            if name not in self.used:
                self.bytes += (count + self._ALIGN - 1) // self._ALIGN * self._ALIGN

    def tensors(self, device):
        """Returns a function that creates the block as a tensor of torch, (offset in the struct, place in the
        block) of the outputs in it, and (offset in the struct, name, function) of the other outputs."""

        def maker(shape, dtype):
            return arrays.tensor_maker(shape, dtype, device)

        def field(name):
            return getattr(structs.ReceivedRows, self.outputs[name].field).offset

        parts = [(field(name), output.at) for name, output in self.outputs.items() if name not in self.used]
        used = [(field(n), n, maker(self.outputs[n].shape, self.outputs[n].dtype)) for n in self.used]
        return maker((self.bytes,), "u8"), tuple(parts), tuple(used)


class Moe(Owned):
    """Dispatch and combine of one shape. All ranks create a moe together, with the same arguments.

    max_tokens  Maximum number of tokens of one rank in one dispatch.
    hidden      Elements of a token.
    experts     Experts of all ranks. Rank r holds experts r * L to (r + 1) * L - 1.
    topk        Experts of a token.
    dtype       Tokens and sums: "bf16", "f16", or the dtype of a framework.
    recv        Delivered rows: "fp8" or dtype (default).
    layout      "expert_padded", "expert_packed", "rank_packed" or "rank_padded": epa2a.h.
    fp8_group   Channels of an FP8 scale.
    in_flight   Maximum number of dispatches without combine.
    options     Algorithm and options, for example "algorithm=ll_v1" or {"algorithm": "ll_v1"}."""

    _destroy = "epa2a_moe_destroy"

    def __init__(self, comm, **shape):
        self._init(comm)
        struct = _shape_of(shape)
        self.max_tokens, self.hidden, self.experts = struct.max_tokens, struct.hidden, struct.experts
        self.topk, self.fp8_group = struct.topk, struct.fp8_group or 128
        self.dtype = "bf16" if struct.dtype == structs.BF16 else "f16"
        self.recv = "fp8" if struct.recv_dtype == structs.FP8_E4M3 else self.dtype
        self._by_rank = struct.layout >= structs.RANK_PACKED
        self._padded = struct.layout == structs.EXPERT_PADDED
        handle = ctypes.c_void_p()
        comm.call_waiting(self._lib.epa2a_moe_create, comm.handle, struct, handle)
        self._adopt(handle)
        self.local_experts = self.experts // comm.ranks
        self._need = _ask_need(comm.handle, comm.ranks, comm.device_number, struct)
        self._y_shape, self._flat_shape = self._rows_shape(self.hidden), (self._need.rows, self.hidden)
        self._plans = {}
        self.used = ()  # outputs that the caller always uses
        self._trace = None
        self._x, self._codes = arrays.Argument("x", self.dtype), arrays.Argument("x", "fp8")
        self._x_scale = arrays.Argument("x_scale", "f32")
        self._topk_idx = arrays.Argument("topk_idx", *_indices)
        self._topk_weights = arrays.Argument("topk_weights", "f32")
        self._seen = arrays.Argument("seen", "i32", writable=True)
        self._y, self._bias = arrays.Argument("y", self.dtype), arrays.Argument("bias", self.dtype)
        self._out = arrays.Argument("out", self.dtype, writable=True)
        self._out_weights = arrays.Argument("out_weights", "f32", writable=True)
        self._kept_views = {}
        self._calls = self._compiled_calls() if binding.module else None

    def _compiled_calls(self):
        """Returns the calls of the compiled module, which return None for arguments that only the Python
        code handles."""
        comm, lib = self.comm, self._lib
        functions = [getattr(lib, f"epa2a_{name}") for name in _compiled]
        arguments = self._x, self._topk_idx, self._topk_weights, self._seen, self._y, self._out
        return binding.module.Calls(
            device=comm.device_number,
            handle=self._handle,
            functions=tuple(ctypes.cast(f, ctypes.c_void_p).value for f in functions),
            arguments=tuple(a.sizes for a in arguments),
            hidden=self.hidden,
            topk=self.topk,
            local=self.local_experts,
            weight_rows=self._need.rows if self._by_rank else 0,
            rows=self._need.rows,
            y_shape=self._y_shape,
            received=Received,
            plans=self._plans,
            check=library.check,
            stream_handle=arrays.stream_handle,
            guard=comm.call_waiting if comm.device_number < 0 else None,
        )

    def close(self):
        """Destroys the object. Collective, unless the comm is broken."""
        self._calls = None
        self._kept_views.clear()
        super().close()

    def _move(self, waits, tokens, stream, function, *arguments):
        """Calls a function of the library that moves data, and records the call for trace(). waits: the
        call waits for peers on a device, too."""
        comm = self.comm
        if self._trace is None and comm.device_number >= 0 and not waits:
            status = function(*arguments, stream)
            if status < 0:
                library.check(status)
            return None
        call = comm.call_waiting if waits else comm.call
        if self._trace is None:
            return call(function, *arguments, stream)
        name = function.__name__.removeprefix("epa2a_")
        return self._trace.calls.timed(name, lambda: call(function, *arguments, stream), stream, tokens=tokens)

    @staticmethod
    def need(ranks, device="cpu", **shape):
        """Returns the memory requirements of a shape, before a comm exists."""
        from .comm import _device_number

        ranks = library.number("ranks", ranks, 1, _U32)
        return _ask_need(None, ranks, _device_number(device), _shape_of(shape))

    @property
    def overlaps(self):
        """True: dispatch_send() and combine_send() return before the data arrive."""
        return self._need.overlaps

    def rename(self, **names):
        """Sets the names that error messages use for arguments, such as y="x"."""
        for argument, name in names.items():
            getattr(self, f"_{argument}").name = name

    # ---- shapes ----

    def _rows_shape(self, width):
        if self._padded:
            return (self.local_experts, self.comm.ranks * self.max_tokens, width)
        return (self._need.rows, width)

    def _scale_shape(self, flags):
        width = self.hidden // self.fp8_group
        if flags & structs.SCALE_UE8M0:
            width = (width + 3) // 4
        shape = self._rows_shape(width)
        return (*shape[:-2], shape[-1], shape[-2]) if flags & structs.SCALE_BY_GROUP else shape

    def _is_fp8(self, flags):
        return bool(flags & structs.RECV_FP8) or (self.recv == "fp8" and not flags & structs.RECV_NATIVE)

    def _plan_of(self, recv, pow2_scales, ue8m0, scales_by_group, sources, keep_routes):
        recv = None if recv is None else dtype_name("recv", recv)
        form = recv, *map(bool, (pow2_scales, ue8m0, scales_by_group, sources, keep_routes))
        plan = self._plans.get(form)
        if plan is None:
            flags = self._flags(*form[:4])
            outputs = self._outputs_of(flags)
            if not sources:
                for name in _sources:
                    del outputs[name]
            if keep_routes:
                outputs[_routing] = ((self._need.routing_bytes,), "u8")
            plan = self._plans[form] = Plan(outputs, flags, self.used)
        return plan

    def _outputs_of(self, flags):
        """Returns shape and dtype of each output of a dispatch."""
        ranks, rows, local = self.comm.ranks, self._need.rows, self.local_experts
        fp8 = self._is_fp8(flags)
        outputs = {"x": (self._rows_shape(self.hidden), "fp8" if fp8 else self.dtype)}
        if fp8:
            words = "i32" if flags & structs.SCALE_UE8M0 else "f32"
            outputs["x_scale"] = (self._scale_shape(flags), words)
        outputs["count"] = ((local,), "u32")
        outputs["start"] = ((local,), "u64")
        if self._by_rank:
            outputs["row"] = ((self._need.entries,), "u32")
            outputs["topk_idx"] = ((rows, self.topk), "i32")
            outputs["topk_weights"] = ((rows, self.topk), "f32")
        outputs["source_token"] = ((rows,), "i32")
        outputs["source_range"] = ((ranks,) if self._by_rank else (local, ranks), "i64")
        return outputs

    def _view(self, framework, address, shape, dtype, strides=None):
        """Returns an array over memory of the moe. A moe has few such places, so the arrays are kept."""
        key = framework, address, shape, dtype, strides, arrays.is_inference(framework)
        found = self._kept_views.get(key)
        if found is None:
            device = self.comm.device_number
            memory = arrays.Memory(address, shape, dtype, device, self, strides)
            found = self._kept_views[key] = arrays.wrap(framework, memory, dtype, device)
        return found

    # ---- dispatch ----

    def _read_tokens(self, x, topk_idx, topk_weights, x_scale, flags, seen):
        """Returns the packed struct, the number of tokens and the arrays to keep."""
        device, topk = self.comm.device_number, self.topk
        scale = scale_stride = idx = weights = seen_at = 0
        of_scale = of_idx = of_weights = of_seen = None
        idx_bytes = 4
        argument = self._x if x_scale is None else self._codes
        at, of_x, count, stride = argument.rows(x, None, self.hidden, device)
        if x_scale is not None:
            width = self.hidden // self.fp8_group
            scale, of_scale, _, scale_stride = self._x_scale.rows(x_scale, count, width, device)
        if topk_idx is not None:
            idx, of_idx, idx_bytes = self._topk_idx.small(topk_idx, (count, topk), device)
        if topk_weights is not None:
            weights, of_weights, _ = self._topk_weights.small(topk_weights, (count, topk), device)
        if seen is not None:
            seen_at, of_seen, _ = self._seen.dense(seen, (self.local_experts,), device)
        tokens = structs.pack_tokens(
            count, flags, at, scale, stride, scale_stride, idx, idx_bytes, weights, seen_at
        )
        return tokens, count, (of_x, of_scale, of_idx, of_weights, of_seen)

    def _flags(self, recv, pow2_scales, ue8m0, scales_by_group):
        flags = 0
        if recv is not None:
            library.choice("recv", recv, {"fp8": 0, self.dtype: 0})
            flags = structs.RECV_FP8 if recv == "fp8" else structs.RECV_NATIVE
        if pow2_scales:
            flags |= structs.SCALE_POW2
        if ue8m0:
            flags |= structs.SCALE_UE8M0
        if scales_by_group:
            flags |= structs.SCALE_BY_GROUP
        return flags

    def _receive(self, received, into):
        """Sets the pointers of the outputs to `into` or to a new block of memory."""
        plan, device = received._plan, self.comm.device_number
        given = {}
        if isinstance(into, Received):
            if into.moe is self and into._plan is plan and not into._views and into._half is None:
                # The pointers of `into` were checked; those to memory of the moe count as NULL.
                struct = received.struct
                structs.copy(struct, into.struct)
                struct.host_count = None
                received._block, received._arrays, received._y = into._block, into._arrays, into._y
                if struct.routing:  # of the earlier dispatch
                    struct.routing = None
                    received._arrays = {name: a for name, a in into._arrays.items() if name != _routing}
                    self._allocate(received, (_routing,))
                return
            given = {name: getattr(into, name) for name in _fields}
        elif into is not None:
            try:
                given = dict(into)
            except (TypeError, ValueError):
                raise ArgumentError(
                    f"into is of type {type(into).__name__}; pass a Received or a dict of arrays."
                ) from None
            unknown = sorted(set(given) - set(_fields))
            if unknown:
                raise ArgumentError(
                    f"into has the unknown name {unknown[0]!r}; the names are {', '.join(_fields)}."
                )
        struct = received.struct
        for name, value in given.items():
            output = plan.outputs.get(name)
            if value is not None and output is not None:
                received._arrays[name] = value
                setattr(struct, output.field, output.argument.dense(value, output.shape, device)[0])
        if len(received._arrays) == len(plan.outputs):
            return
        self._allocate(received, [name for name in plan.used if name not in received._arrays])
        received._block = arrays.empty(received.framework, (plan.bytes,), "u8", device)
        address = arrays.address_of(received._block)
        for name, output in plan.outputs.items():
            if name not in received._arrays:
                setattr(struct, output.field, address + output.at)

    def _allocate(self, received, names):
        """Sets the pointers of outputs to new arrays."""
        for name in names:
            output = received._plan.outputs.get(name)
            if output is not None:
                array = arrays.empty(received.framework, output.shape, output.dtype, self.comm.device_number)
                received._arrays[name] = array
                setattr(received.struct, output.field, arrays.address_of(array))

    def _allocate_own(self, received):
        """Sets the pointers of the outputs that are never views."""
        self._allocate(received, (*_sources, _routing))

    def _new_out(self, received):
        """Returns a new array for the sums of a combine."""
        shape = received.tokens, self.hidden
        return arrays.empty(received.framework, shape, self.dtype, self.comm.device_number)

    def _out_maker(self, tokens):
        """Returns a function that returns a new tensor of torch for the sums of a combine."""
        return arrays.tensor_maker((tokens, self.hidden), self.dtype, self.comm.device_number)

    def _start(
        self, function, x, topk_idx, topk_weights, x_scale, recv, pow2_scales, ue8m0, scales_by_group, into,
        views, sources, keep_routes, host_counts, seen, stream, routing=None
    ):
        handle = self.handle
        device = self.comm.device_number
        if sources is None:
            sources = device < 0
        form = recv, pow2_scales, ue8m0, scales_by_group, sources, keep_routes
        try:
            plan = self._plans[form]
        except (KeyError, TypeError):  # not in use yet, or not hashable
            plan = self._plan_of(*form)
        tokens, count, keep = self._read_tokens(x, topk_idx, topk_weights, x_scale, plan.flags, seen)
        received = Received(self, arrays.framework_of(x), count, plan, bool(views))
        struct = received.struct
        if not views:
            self._receive(received, into)
        elif into is not None:
            raise ArgumentError("views and into exclude each other; pass one of them.")
        else:
            self._allocate_own(received)
        if host_counts:
            received._counts = (ctypes.c_uint32 * (self.local_experts + 1))()
            struct.host_count = ctypes.addressof(received._counts)
        if routing is not None:
            received._arrays[_routing] = routing
            struct.routing = arrays.address_of(routing)
        received._keep = keep
        stream = arrays.stream_handle(stream, received.framework, device)
        self._move(host_counts, count, stream, function, handle, tokens, struct)
        return received

    def dispatch(
        self, x, topk_idx, topk_weights=None, *, x_scale=None, recv=None, pow2_scales=False, ue8m0=False,
        scales_by_group=False, into=None, views=False, sources=None, keep_routes=False, host_counts=False,
        seen=None, stream=None
    ):
        """Sends the tokens of each rank to the ranks of their experts. Collective.

        x                [tokens, hidden] of dtype, or of FP8 codes with x_scale.
        topk_idx         [tokens, topk] global experts, int32 or int64; -1: no expert.
        topk_weights     [tokens, topk] float32; may follow in combine() instead.
        x_scale          [tokens, hidden / fp8_group] float32.
        recv             "fp8" or dtype: overrides recv of the moe.
        pow2_scales, ue8m0, scales_by_group
                         Form of the scales: see enum epa2a_dispatch_flag of epa2a.h.
        into             Received or dict of arrays for the outputs; None: new arrays.
        views            True: the outputs except the sources are views of memory of the moe, without
                         a copy. They are valid until the combine of this dispatch, and until close().
        sources          True: deliver source_token and source_range; None: on hosts.
        keep_routes      True: the received rows have `routing`. Any number of combines may then follow
                         in any order, and dispatch_again().
        host_counts      True: wait for the counts; see Received.counts.
        seen             [L] int32; adds the number of received rows of each expert.
        stream           Stream of torch or CuPy, or an int; None: the current stream."""
        if self._calls is not None and self._trace is None:
            received = self._calls.dispatch(
                _DISPATCH, self, x, topk_idx, topk_weights, x_scale, recv, pow2_scales, ue8m0, scales_by_group,
                sources, keep_routes, into, views, host_counts, seen, stream
            )  # fmt: skip
            if received is not None:
                return received
        if topk_idx is None:
            raise ArgumentError("topk_idx is None; pass an array of experts.")
        return self._complete(self._start(
            self._lib.epa2a_dispatch, x, topk_idx, topk_weights, x_scale, recv, pow2_scales, ue8m0,
            scales_by_group, into, views, sources, keep_routes, host_counts, seen, stream
        ))  # fmt: skip

    def dispatch_send(
        self, x, topk_idx, topk_weights=None, *, x_scale=None, recv=None, pow2_scales=False, ue8m0=False,
        scales_by_group=False, into=None, views=False, sources=None, keep_routes=False, host_counts=False,
        seen=None, stream=None
    ):
        """Begins a dispatch with the arguments of dispatch(). Received.wait() completes it. The
        inputs must not change before."""
        if topk_idx is None:
            raise ArgumentError("topk_idx is None; pass an array of experts.")
        received = None
        if self._calls is not None and self._trace is None:
            received = self._calls.dispatch(
                _DISPATCH_SEND, self, x, topk_idx, topk_weights, x_scale, recv, pow2_scales, ue8m0,
                scales_by_group, sources, keep_routes, into, views, host_counts, seen, stream
            )  # fmt: skip
        received = received or self._start(
            self._lib.epa2a_dispatch_send, x, topk_idx, topk_weights, x_scale, recv, pow2_scales, ue8m0,
            scales_by_group, into, views, sources, keep_routes, host_counts, seen, stream
        )
        received._half = True
        return received

    def dispatch_again(
        self, received, x, *, x_scale=None, recv=None, pow2_scales=False, ue8m0=False, scales_by_group=False,
        into=None, views=False, sources=None, host_counts=False, seen=None, stream=None
    ):
        """Dispatches as many other tokens along the routes of a dispatch with keep_routes."""
        self._check_received(received)
        if received.routing is None:
            raise ArgumentError("the dispatch has no routes; pass keep_routes=True to dispatch.")
        return self._complete(self._start(
            self._lib.epa2a_dispatch_again, x, None, None, x_scale, recv, pow2_scales, ue8m0,
            scales_by_group, into, views, sources, False, host_counts, seen, stream, received.routing
        ))  # fmt: skip

    def _complete(self, received):
        if self.comm.device_number < 0:
            received._keep = None
        return received

    def _check_received(self, received):
        if not isinstance(received, Received):
            raise ArgumentError(
                f"received is of type {type(received).__name__}; pass the result of a dispatch."
            )
        if received.moe is not self:
            raise ArgumentError("received belongs to another Moe; pass it to the Moe of the dispatch.")

    def discard(self, received):
        """Discards the last dispatch, if no combine will follow. Collective."""
        self._check_received(received)
        self.comm.call(self._lib.epa2a_discard, self.handle, received.struct)

    # ---- combine ----

    def _start_combine(
        self, function, received, y, topk_weights, topk_idx, bias, out, return_weights, out_weights, logfmt,
        stream
    ):
        handle = self.handle
        self._check_received(received)
        if received._half is not None:
            raise ArgumentError("the dispatch is not complete; call received.wait() first.")
        device = self.comm.device_number
        tokens = received.tokens
        weights = idx = out_weight = 0
        of_weights = of_idx = of_y = None
        y_at, idx_bytes, bias_at, of_bias = 0, 4, (0, 0), ()
        if y is None and received._y is None:
            raise ArgumentError("y is None and received.y was not used; pass expert outputs.")
        if y is not None or not received._views:
            y = received._y if y is None else y
            flat = len(getattr(y, "shape", ())) == 2
            y_at, of_y, _ = self._y.dense(y, self._flat_shape if flat else self._y_shape, device)
        if topk_weights is not None:
            count = self._need.rows if self._by_rank else tokens
            weights, of_weights, _ = self._topk_weights.small(topk_weights, (count, self.topk), device)
        if topk_idx is not None:
            idx, of_idx, idx_bytes = self._topk_idx.small(topk_idx, (tokens, self.topk), device)
        shape = (tokens, self.hidden)
        if bias is not None:
            biases = bias if isinstance(bias, (list, tuple)) else (bias,)
            if len(biases) > 2:
                raise ArgumentError(f"bias has {len(biases)} arrays; pass at most 2.")
            of_bias = [self._bias.dense(b, shape, device) for b in biases]
            bias_at = *(b[0] for b in of_bias), *(0,) * (2 - len(biases))
        if out is None:
            out = arrays.empty(received.framework, shape, self.dtype, device)
            out_at = arrays.address_of(out)
        else:
            out_at = self._out.dense(out, shape, device)[0]
        result = out
        if return_weights or out_weights is not None:
            if out_weights is None:
                out_weights = arrays.empty(received.framework, (tokens, self.topk), "f32", device)
            out_weight = self._out_weights.dense(out_weights, (tokens, self.topk), device)[0]
            # A rank without tokens also sets the pointer: all ranks must agree.
            out_weight = out_weight or ctypes.addressof(received.struct)
            result = (out, out_weights)
        flags = structs.COMBINE_LOGFMT if logfmt else 0
        outputs = structs.pack_outputs(
            y_at, idx, idx_bytes, weights, *bias_at, out_at, out_weight, flags
        )
        stream = arrays.stream_handle(stream, received.framework, device)
        self._move(False, tokens, stream, function, handle, received.struct, outputs)
        return result, (of_y, of_weights, of_idx, of_bias, result)

    def combine(
        self, received, y=None, topk_weights=None, *, topk_idx=None, bias=None, out=None, return_weights=False,
        out_weights=None, logfmt=False, stream=None
    ):
        """Returns the expert outputs to their source ranks and sums them per token. Collective.

        received        Result of the dispatch.
        y               Expert outputs in the layout of received.x; None: received.y.
        topk_weights    expert layouts: [tokens, topk], None: those of the dispatch. Layouts by rank:
                        [rows, topk], returned with return_weights.
        topk_idx        expert layouts: topk_idx of the dispatch with -1 for choices to skip.
        bias            [tokens, hidden], or a pair of these.
        out             [tokens, hidden]; None: a new array.
        return_weights  Layouts by rank: returns (out, weights).
        logfmt          expert layouts, BF16: y is rounded to LogFMT-10, the values of DeepEP's low-latency
                        combine; y is not received.y."""
        if self._calls is not None and self._trace is None and bias is None and not return_weights:
            if out_weights is None and not logfmt:
                result = self._calls.combine(
                    _COMBINE, self, received, y, topk_weights, topk_idx, out, stream
                )
                if result is not None:
                    return result
        return self._start_combine(
            self._lib.epa2a_combine, received, y, topk_weights, topk_idx, bias, out, return_weights,
            out_weights, logfmt, stream
        )[0]  # fmt: skip

    def combine_send(
        self, received, y=None, topk_weights=None, *, topk_idx=None, bias=None, out=None, return_weights=False,
        out_weights=None, logfmt=False, stream=None
    ):
        """Begins a combine with the arguments of combine(). Pending.wait() returns its result."""
        if self._calls is not None and self._trace is None and bias is None and not return_weights:
            if out_weights is None and not logfmt:
                result = self._calls.combine(
                    _COMBINE_SEND, self, received, y, topk_weights, topk_idx, out, stream
                )
                if result is not None:
                    return Pending(self, received, result, (y, topk_weights, topk_idx, result))
        result, keep = self._start_combine(
            self._lib.epa2a_combine_send, received, y, topk_weights, topk_idx, bias, out, return_weights,
            out_weights, logfmt, stream
        )
        return Pending(self, received, result, keep)

    def test(self):
        """Makes progress on the open half. Returns False if a wait of wait() is certain."""
        return self.comm.call(self._lib.epa2a_test, self.handle) != NOT_YET

    # ---- trace ----

    def trace(self, path):
        """Returns a context manager that records the calls of its block, and writes those of all ranks
        to a file for chrome://tracing and Perfetto. Collective. On a device the recorder waits for the
        end of each call.

            with moe.trace("trace.json"):
                moe.combine(moe.dispatch(x, topk_idx, topk_weights), y)

        An event is one call; the program `epa2a trace` shows the phases within a call."""
        from .trace import Trace

        return Trace(self, path)

    def _start_trace(self, trace):
        self.handle  # raises if the moe is closed
        if self._trace is not None:
            raise ArgumentError("the moe records a trace already; end the first `with` block first.")
        self._trace = trace

    def __repr__(self):
        return (
            f"<epa2a.Moe: {self.experts} experts, hidden {self.hidden}, top-{self.topk}, "
            f"{self.dtype}, recv {self.recv}, {self._need.algorithm}>"
        )


def _shape_of(arguments):
    try:
        return make_shape(**arguments)
    except TypeError as error:
        text = str(error).replace("make_shape()", "Moe")
        raise ArgumentError(f"{text}; see help(epa2a.Moe).") from None
