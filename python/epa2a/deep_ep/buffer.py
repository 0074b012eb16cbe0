"""Class Buffer with the methods of DeepEP V1."""

from .. import arrays
from ..comm import Comm
from ..errors import ArgumentError, Unsupported
from .config import Config
from .event import EventHandle, EventOverlap
from .low_latency import Handle, LowLatency, size_hint
from .masks import Masks, kernel_masks
from .normal import Normal
from .tensor_ops import ops_for
from .torch_or_none import torch


def refuse(call, **values):
    """Rejects features that epa2a lacks. The values None and False select no feature."""
    for name, value in values.items():
        if value is not None and value is not False:
            raise Unsupported(f"{call}: epa2a does not support {name}; omit {name}, or pass None or False.")


def keep_memory(values, stream):
    """Keeps the memory of freed tensors until the stream has executed its present work. The allocator of
    torch would otherwise reuse the memory on the stream of the allocation."""
    if isinstance(values, Handle):
        values = values.memory()
    if isinstance(values, (tuple, list)):
        for value in values:
            keep_memory(value, stream)
        received = getattr(values, "received", None)  # a handle
        if received is not None:
            keep_memory([received.x, received.routing], stream)
    elif hasattr(values, "record_stream"):
        values.record_stream(stream)


class Buffer:
    """Communication of the ranks of a group.

    group           A process group of torch.distributed, an epa2a.Comm, or an object with rank, size
                    and allgather(bytes).
    num_rdma_bytes  Bound of the memory for low-latency mode: get_low_latency_rdma_size_hint().
    enable_shrink   Allow masks: low_latency_update_mask_buffer(). Needs all ranks on one host.
    comm            A communicator of mpi4py, in place of group.

    All ranks create and destroy a Buffer together. The parameters for queue pairs, NVLink, fabric and
    explicit destruction have no effect. The options of epa2a are in the variable EPA2A_OPTIONS."""

    num_sms = 20

    def __init__(
        self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
        allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, use_fabric=False, explicitly_destroy=False,
        enable_shrink=False, comm=None, **unknown
    ):  # fmt: skip
        refuse("Buffer", **unknown)
        if group is None and comm is None:
            raise ArgumentError("group and comm are None; pass a group.")
        self.group = group if group is not None else comm
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        self._owns_comm = not isinstance(self.group, Comm)
        self.runtime = Comm(self.group) if self._owns_comm else self.group
        self.rank, self.group_size = self.runtime.rank, self.runtime.ranks
        masks = kernel_masks(self.runtime) if enable_shrink else None
        self._low_latency = LowLatency(self.runtime, num_rdma_bytes, masks)
        self._masks = Masks(self.runtime, self._low_latency, num_rdma_bytes) if enable_shrink else None
        self._normal = Normal(self.runtime)
        self._local = {}  # memory of get_local_buffer_tensor()
        self._comm_stream = None

    # ---- the group ----

    def destroy(self):
        """Releases the memory. Collective among the ranks without a mask; with masks it aborts the comm of
        all ranks."""
        if self.runtime is None:
            return
        comm, self.runtime = self.runtime, None
        if self._masks is not None and not self._masks.close():
            return
        self._low_latency.close()
        self._normal.close()
        if self._owns_comm:
            comm.close()

    @staticmethod
    def is_sm90_compiled():
        """Returns True: the kernels of epa2a are for compute capability 9.0."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms):
        """Sets num_sms of later Configs. The number has no effect."""
        if not isinstance(new_num_sms, int) or new_num_sms < 2 or new_num_sms % 2 != 0:
            raise ArgumentError(f"new_num_sms is {new_num_sms!r}; pass an even number of at least 2.")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture():
        """Returns an event of the current stream."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self):
        """Returns the stream of calls with async_finish. Requires a CUDA device."""
        if self._comm_stream is None:
            if self._comm().device_number < 0:
                raise Unsupported("The Buffer is in host memory, so it has no stream; use a CUDA device.")
            self._comm_stream = torch.cuda.Stream(self._comm().device_number)
        return self._comm_stream

    def get_local_buffer_tensor(self, dtype, size=None, offset=0, use_rdma_buffer=False):
        """Returns private memory of num_rdma_bytes or num_nvl_bytes bytes as a tensor of torch. The
        memory has no function: programs clear it, but epa2a needs no cleaning."""
        if torch is None:
            raise Unsupported("get_local_buffer_tensor returns tensors of torch; install torch.")
        count = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        if use_rdma_buffer not in self._local:
            self._local[use_rdma_buffer] = torch.zeros(count, dtype=torch.uint8, device=self._comm().device)
        whole = self._local[use_rdma_buffer]
        element = torch.empty(0, dtype=dtype).element_size()
        tensor = whole[: count // element * element].view(dtype)[offset:]
        if size is None:
            return tensor
        if tensor.numel() < size.numel():
            raise ArgumentError(
                f"size has {size.numel()} elements, but the buffer has {tensor.numel()} after the offset."
            )
        return tensor[: size.numel()].view(size)

    def _comm(self):
        if self.runtime is None:
            raise ArgumentError("The Buffer is destroyed; create another Buffer.")
        return self.runtime

    # ---- low-latency mode ----

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        """Returns num_rdma_bytes for a shape: bytes that suffice for each top-k."""
        return size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def prepare(
        self, num_max_dispatch_tokens_per_rank, hidden, num_experts, num_topk, use_fp8=None, return_recv_hook=None
    ):  # fmt: skip
        """Allocates the memory of a shape before its first dispatch. Collective. Only epa2a has this
        method: a CUDA graph cannot capture the first dispatch of a shape. The last two arguments are those
        of the dispatches; None: both values, each with memory of its own."""
        shape = num_max_dispatch_tokens_per_rank, hidden, num_experts, num_topk
        for fp8 in (False, True) if use_fp8 is None else (use_fp8,):
            for hooked in (False, True) if return_recv_hook is None else (return_recv_hook,):
                self._call(lambda mode, form=(fp8, hooked): mode.moe_of(*shape, *form))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        """With enable_shrink and in host memory waits for all ranks; else has no effect. epa2a counts calls, so its
        buffers need no cleaning."""
        self._check_mode()
        if self._masks is not None:
            self._masks.wait_for_ranks()

    def low_latency_dispatch(
        self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, use_ue8m0=False, async_finish=False,
        return_recv_hook=False, **unknown
    ):  # fmt: skip
        """Sends tokens to the ranks of their experts. Collective.

        x         [tokens, hidden] BF16.
        topk_idx  [tokens, top-k] int64 or int32; -1: no expert.
        cumulative_local_expert_recv_stats
                  [L] int32; adds the number of received rows of each local expert.
        use_fp8   Deliver FP8 rows with a scale for 128 elements.
        round_scale, use_ue8m0
                  Round scales up to powers of two; deliver these as exponents, four per int32.
        async_finish
                  Run on the stream of get_comm_stream(); the returned event orders other streams.
        return_recv_hook
                  The rows are complete after the call of the returned hook.

        Returns (rows [L, ranks * maximum, hidden] or (rows, scales [L, ranks * maximum, hidden / 128]),
        count [L], handle, event, hook). The scales of a group are adjacent in memory."""
        if dispatch_wait_recv_cost_stats is not None or unknown:
            refuse("low_latency_dispatch", dispatch_wait_recv_cost_stats=dispatch_wait_recv_cost_stats, **unknown)
        if use_fp8 and use_ue8m0 and not round_scale:
            raise ArgumentError("use_ue8m0 needs scales that are powers of two; pass round_scale=True.")

        def dispatch(mode):
            return mode.dispatch(
                x,
                topk_idx,
                num_max_dispatch_tokens_per_rank,
                num_experts,
                fp8=use_fp8,
                pow2=round_scale,
                ue8m0=use_ue8m0,
                seen=cumulative_local_expert_recv_stats,
                hooked=return_recv_hook,
                stream=None,
            )

        if not async_finish:
            (rows, count, handle, hook), event = self._call(dispatch), EventOverlap()
        else:
            inputs = x, topk_idx, cumulative_local_expert_recv_stats
            (rows, count, handle, hook), event = self._run(
                lambda _: self._call(dispatch), async_finish, return_recv_hook, inputs=inputs
            )
        if self._masks is not None:
            handle.choices = ops_for(topk_idx).copy(topk_idx)
        return rows, count, handle, event, hook if return_recv_hook else None

    def low_latency_combine(
        self, x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False,
        return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None, **unknown
    ):  # fmt: skip
        """Returns expert outputs to the ranks of their tokens, and sums them with the weights.
        Collective.

        x             [L, ranks * maximum, hidden] BF16, in the order of the received rows.
        topk_idx      Of the dispatch; -1 skips a choice.
        topk_weights  [tokens, top-k] float32.
        use_logfmt    Round x to the values of LogFMT-10 first. The rounded rows are BF16 and not smaller,
                      and the call is slower than without use_logfmt: on a device by a kernel that reads
                      and writes the received rows. Needs a multiple of 512 elements.
        zero_copy     The expert outputs are in get_next_low_latency_combine_buffer(handle); x is not
                      read.
        out           [tokens, hidden] BF16; None: a new tensor.

        Returns (out, event, hook)."""
        if combine_wait_recv_cost_stats is not None or unknown:
            refuse("low_latency_combine", combine_wait_recv_cost_stats=combine_wait_recv_cost_stats, **unknown)
        if use_logfmt and zero_copy:
            raise ArgumentError("use_logfmt and zero_copy exclude each other; pass one of them.")
        owner = self._owner(handle)

        def combine(mode):
            how = {"out": out, "rounded": use_logfmt, "hooked": return_recv_hook, "stream": None}
            if mode is owner:
                return mode.combine(None if zero_copy else x, topk_idx, topk_weights, handle, **how)
            y = owner.combine_buffer(handle) if zero_copy else x
            return mode.combine_other(y, topk_idx, topk_weights, handle, **how)

        if not async_finish:
            (combined, hook), event = self._call(combine), EventOverlap()
        else:
            inputs = x, topk_idx, topk_weights, handle, out
            (combined, hook), event = self._run(
                lambda _: self._call(combine), async_finish, return_recv_hook, inputs=inputs
            )
        return combined, event, hook if return_recv_hook else None

    def get_next_low_latency_combine_buffer(self, handle):
        """Returns the tensor for the expert outputs of a combine with zero_copy."""
        return self._owner(handle).combine_buffer(handle)

    def low_latency_update_mask_buffer(self, rank_to_mask, mask=False):
        """Sets or removes the mask of a rank. Needs enable_shrink.

        A masked rank takes no part in dispatch and combine, and may be lost. Its experts receive no tokens
        and contribute nothing to sums, and the rank sends no rows. All other ranks must have the same masks
        at a call. Their first call after a change creates a comm, which takes as long as a new Buffer. A CUDA
        graph keeps the masks of its capture.

        In host memory a rank that ends or exceeds the time limit of a wait gets a mask, and the other ranks
        complete the call without it. If these ranks have made different numbers of calls, the call is an
        error on all of them, and they must agree on the dispatch to repeat.

        On a device a kernel that waits for a rank longer than the time limit masks the rank, and continues
        without its rows and expert outputs, in graphs, too. Calls find the ranks whose processes have ended,
        so kernels need not wait for these. A rank masked by a kernel takes no part again; a dispatch with a
        new shape then needs this call on all other ranks. Normal mode ignores masks."""
        if self._masks is not None:
            self._masks.update(rank_to_mask, mask)
        elif mask:
            raise ArgumentError("mask is True, but the Buffer has no masks; create it with enable_shrink=True.")

    def low_latency_query_mask_buffer(self, mask_status):
        """Writes the masks of all ranks to an int32 tensor: 1 for a masked rank, else 0."""
        device = self._comm().device_number
        arrays.dense(mask_status, "mask_status", (self.group_size,), ("i32",), device, writable=True)
        mask_status[:] = 0
        if self._masks is None:
            return
        for rank in self._masks.find():
            mask_status[rank] = 1
        self._masks.add_lost(mask_status)

    def low_latency_clean_mask_buffer(self):
        """Removes the masks of low_latency_update_mask_buffer(). All ranks must take part in the next call,
        except ranks whose processes have ended, and on a device ranks that a kernel has masked."""
        if self._masks is not None:
            self._masks.clean()

    def _check_mode(self):
        if self.runtime is None:
            self._comm()
        if not self.low_latency_mode:
            raise ArgumentError("The Buffer has low_latency_mode=False; create it with low_latency_mode=True.")

    def _call(self, call):
        """Returns call(mode) for low-latency mode with the present masks."""
        self._check_mode()
        return call(self._low_latency) if self._masks is None else self._masks.run(call)

    def _owner(self, handle):
        """Returns the mode of the dispatch of a handle."""
        self._check_mode()
        if self._masks is not None:
            return self._masks.owner(handle)
        if not self._low_latency.has(handle):
            raise ArgumentError("handle is of another Buffer; pass the handle of a dispatch of this Buffer.")
        return self._low_latency

    def _run(self, run, async_finish, hooked, previous_event=None, inputs=()):
        """Calls run(stream) after an event. Returns its result and an event: with async_finish the end of
        the call on the stream of get_comm_stream(). The caller may free its inputs and the result at once."""
        if async_finish and hooked:
            raise ArgumentError("async_finish and return_recv_hook exclude each other; pass one of them.")
        if self._comm().device_number < 0:
            return run(None), self.capture() if async_finish else EventOverlap()
        if not async_finish:
            self._wait_for(previous_event)
            return run(None), EventOverlap()
        stream, current = self.get_comm_stream(), torch.cuda.current_stream()
        if previous_event is None:
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._wait_for(previous_event)
            result, event = run(stream), self.capture()
        keep_memory(inputs, stream)
        keep_memory(result, current)
        return result, event

    @staticmethod
    def _wait_for(event):
        if event is not None and event.event is not None:
            event.current_stream_wait()

    # ---- normal mode ----

    @staticmethod
    def get_dispatch_config(num_ranks):
        """Returns the Config of dispatch()."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks):
        """Returns the Config of combine()."""
        return Config(Buffer.num_sms)

    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        """Counts the tokens of a route. Local.

        Returns (tokens of each rank [ranks] int32, None, tokens of each expert [experts] int32, whether a
        rank receives a token [tokens, ranks] bool, event)."""
        self._comm()

        def run(_):
            return self._normal.layout(topk_idx, num_experts)

        (per_rank, per_expert, in_rank), event = self._run(
            run, async_finish, False, previous_event, [topk_idx]
        )
        return per_rank, None, per_expert, in_rank, event

    def dispatch(
        self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
        num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0,
        config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):  # fmt: skip
        """Sends each token once to each rank that has one of its experts. Collective. The call waits for
        the counts of all ranks.

        x                 [tokens, hidden] BF16, or a pair of FP8 rows and scales [tokens, hidden / 128].
        handle            Of an earlier dispatch, whose route the rows follow.
        num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert
                          Results of get_dispatch_layout(), without a handle.
        topk_idx, topk_weights
                          [tokens, top-k], delivered with the rows.
        expert_alignment  The counts of rows are rounded up to a multiple.
        num_worst_tokens  Number of rows of the results; 0: the number of received rows.

        Returns (rows or (rows, scales), topk_idx of local experts or -1, topk_weights, list of the number
        of rows of each local expert, handle, event). The rows are in the order of source ranks, then of
        tokens. With a handle or num_worst_tokens the list is empty."""
        self._comm()
        layout = num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert
        if not isinstance(expert_alignment, int) or expert_alignment < 1:
            raise ArgumentError(f"expert_alignment is {expert_alignment!r}; pass an integer of at least 1.")

        def run(stream):
            return self._normal.dispatch(
                x, handle, layout, topk_idx, topk_weights, expert_alignment, num_worst_tokens, stream
            )

        inputs = x, handle, layout, topk_idx, topk_weights
        (rows, idx, weights, counts, route), event = self._run(
            run, async_finish, False, previous_event, inputs
        )
        return rows, idx, weights, counts, route, event

    def combine(
        self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
        allocate_on_comm_stream=False
    ):  # fmt: skip
        """Returns rows to the ranks of their tokens, and sums them without weights. Collective.

        x             [rows, hidden] BF16, in the order of the received rows.
        topk_weights  [rows, top-k], summed as well.
        bias          [tokens, hidden], or a pair of these, added to the sums.

        Returns (sums [tokens, hidden], sums of the weights [tokens, top-k] or None, event)."""
        self._comm()

        def run(stream):
            return self._normal.combine(x, handle, topk_weights, bias, stream)

        inputs = x, handle, topk_weights, bias
        (sums, weights), event = self._run(run, async_finish, False, previous_event, inputs)
        return sums, weights, event

    def internode_dispatch(
        self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
        num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0,
        config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):  # fmt: skip
        """The same as dispatch()."""
        return self.dispatch(
            x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert,
            topk_idx, topk_weights, expert_alignment, num_worst_tokens, config, previous_event, async_finish,
            allocate_on_comm_stream
        )  # fmt: skip

    def internode_combine(
        self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
        allocate_on_comm_stream=False
    ):  # fmt: skip
        """The same as combine()."""
        return self.combine(
            x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream
        )
