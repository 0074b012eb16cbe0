"""Low-latency mode without masked ranks.

The ranks that are left form a comm of their own at their first call after a change of the masks. The
comm has the experts of these ranks; an expert of a masked rank is a dropped choice. The results have the
shapes of all ranks: a masked rank has sent no rows.

The comm of a set of masks is kept until the end of the Buffer, since its end would be a collective call."""

from .. import arrays
from ..comm import Comm
from ..errors import Aborted, ArgumentError, Error, RankDied, Timeout
from ..exchange import Rows
from .live_group import Differ, LiveGroup, Meeting, names
from .low_latency import INDICES, Handle, LowLatency
from .torch_or_none import torch


# Rows of an exchange: the rank destroys its Buffer, or only waits for the others.
LEAVES, STAYS = b"\1", b"\0"


def table_of(entries, like):
    """Returns a list as an array beside the array `like`."""
    if hasattr(like, "data_ptr"):
        return torch.tensor(entries, dtype=like.dtype, device=like.device)
    import numpy

    return numpy.array(entries, like.dtype)


def kernel_masks(comm):
    """Returns the masks that kernels read and set, one for each rank of a comm on a device; None on hosts."""
    if comm.device_number < 0:
        return None
    masks = torch.zeros(comm.ranks, dtype=torch.int32, device=comm.device_number)
    torch.cuda.current_stream(comm.device_number).synchronize()  # kernels of other streams read the masks
    return masks


def rows_of(comm):
    """Returns an exchange of rows that waits for all ranks, unlike a collective call that creates or destroys an
    object: such calls of two ranks would end each other. None: the library moves no rows for a comm on a device."""
    return Rows(comm) if comm.device_number < 0 else None


class LiveRanks:
    """Low-latency mode of a group of ranks of a comm. Collective among these ranks."""

    def __init__(self, comm, group, limit_bytes):
        self.group, self.live, self.all_ranks = group, group.live, comm.ranks
        try:
            self.comm = Comm(self.group, device=comm.device, **comm.settings)
        except BaseException:
            self.group.close()
            raise
        self.masks = kernel_masks(self.comm)
        self.mode = LowLatency(self.comm, limit_bytes, self.masks)
        self.rows = self.mode.rows = rows_of(self.comm)
        self.tables = {}
        self.complete = lambda: None  # end of the last dispatch

    def experts_of(self, experts):
        """Returns the number of experts of the live ranks."""
        if experts < 1 or experts % self.all_ranks != 0:
            raise ArgumentError(
                f"num_experts is {experts}; pass a multiple of {self.all_ranks}, the number of ranks."
            )
        return experts // self.all_ranks * len(self.live)

    def choices(self, topk_idx, experts):
        """Returns the choices as experts of the live ranks; -1: dropped."""
        arrays.dense(topk_idx, "topk_idx", (None, None), INDICES, self.comm.device_number)
        key = experts, topk_idx.dtype, getattr(topk_idx, "device", None)
        if key not in self.tables:
            local = experts // self.all_ranks
            place = {r: i for i, r in enumerate(self.live)}
            entries = []
            for rank in range(self.all_ranks):
                first = place.get(rank, 0) * local
                entries += range(first, first + local) if rank in place else [-1] * local
            self.tables[key] = table_of([*entries, -1], topk_idx)  # the index -1 is the last entry
        if self.comm.device_number < 0 and topk_idx.shape[0] != 0:
            least, most = int(topk_idx.min()), int(topk_idx.max())
            if least < -1 or most >= experts:
                raise ArgumentError(f"topk_idx has experts from {least} to {most}; pass -1 to {experts - 1}.")
        return self.tables[key][topk_idx]

    # ---- shapes of all ranks ----

    def wider(self, x, axis, size):
        """Returns an array with `size` elements along an axis, and the pair (part of it, x)."""
        shape = list(x.shape)
        count, shape[axis] = shape[axis], size
        dtype = arrays.read(x, "x").dtype
        to = arrays.empty(arrays.framework_of(x), tuple(shape), dtype, self.comm.device_number)
        return to, (to[(slice(None),) * axis + (slice(count),)], x)

    def dispatch(self, x, topk_idx, max_tokens, experts, **how):
        self.complete()
        live_experts = self.experts_of(experts)
        rows, count, handle, hook = self.mode.dispatch(
            x, self.choices(topk_idx, experts), max_tokens, live_experts, **how
        )
        src_info, ranges, _, hidden, _ = handle
        all_rows = self.all_ranks * max_tokens
        scaled = isinstance(rows, tuple)
        wide, first = self.wider(rows[0] if scaled else rows, 1, all_rows)
        wide_info, second = self.wider(src_info, 1, all_rows)
        pairs = [first, second]
        if scaled:  # the scales of a group are adjacent
            scales, third = self.wider(rows[1].swapaxes(1, 2), 2, all_rows)
            wide = wide, scales.swapaxes(1, 2)
            pairs.append(third)
        wide_ranges, _ = self.wider(ranges, 1, self.all_ranks)
        wide_ranges[:] = 0
        pairs += [(wide_ranges[:, r], ranges[:, i]) for i, r in enumerate(self.live)]

        def complete():
            hook()
            copies, pairs[:] = list(pairs), []
            for to, part in copies:
                to[:] = part

        self.complete = complete
        if self.comm.device_number < 0 or not how["hooked"]:
            complete()
        handle = Handle(handle.received, (wide_info, wide_ranges, max_tokens, hidden, experts))
        return wide, count, handle, complete

    def combine(self, y, topk_idx, topk_weights, handle, **how):
        self.complete()
        got, experts = Handle.received_of(handle), handle[4]
        wide = got.moe.local_experts, self.all_ranks * got.moe.max_tokens, got.moe.hidden
        y = self.combine_buffer(handle) if y is None else y
        arrays.dense(y, "x", wide, ("bf16",), self.comm.device_number)
        narrow = arrays.empty(got.framework, (wide[0], len(self.live) * got.moe.max_tokens, wide[2]), "bf16",
                              self.comm.device_number)  # fmt: skip
        narrow[:] = y[:, : narrow.shape[1]]
        return self.mode.combine(narrow, self.choices(topk_idx, experts), topk_weights, handle, **how)

    def combine_other(self, y, topk_idx, topk_weights, handle, *, stream, **how):
        """Combines the outputs of a dispatch with other masks: repeats the dispatch, since the order of its rows
        depends on the choices only, and leaves out the rows of other ranks."""
        got, (*_, max_tokens, hidden, experts) = Handle.received_of(handle), handle
        device = self.comm.device_number
        wide = got.moe.local_experts, self.all_ranks * max_tokens, hidden
        arrays.dense(y, "x", wide, ("bf16",), device)
        x = arrays.empty(got.framework, (got.tokens, hidden), "bf16", device)
        x[:] = 0
        _, _, again, _ = self.mode.dispatch(
            x, self.choices(handle.choices, experts), max_tokens, self.experts_of(experts), fp8=False, pow2=False,
            ue8m0=False, seen=None, hooked=False, stream=stream
        )  # fmt: skip
        narrow = arrays.empty(got.framework, (wide[0], len(self.live) * max_tokens, hidden), "bf16", device)
        for e, ranges in enumerate(handle[1].tolist()):
            end = 0
            for r in self.live:
                begin, count = ranges[r] >> 32, ranges[r] & 0xFFFFFFFF
                narrow[e, end : end + count] = y[e, begin : begin + count]
                end += count
        choices = self.choices(topk_idx, experts)
        return self.mode.combine(narrow, choices, topk_weights, again, stream=stream, **how)

    def combine_buffer(self, handle):
        got = Handle.received_of(handle)
        if handle.outputs is None:
            shape = got.moe.local_experts, self.all_ranks * got.moe.max_tokens, got.moe.hidden
            handle.outputs = arrays.empty(got.framework, shape, "bf16", self.comm.device_number)
        return handle.outputs

    def moe_of(self, max_tokens, hidden, experts, topk, fp8, hooked):
        return self.mode.moe_of(max_tokens, hidden, self.experts_of(experts), topk, fp8, hooked)

    def has(self, handle):
        return self.mode.has(handle)

    def close(self):
        self.mode.close()
        self.comm.close()
        self.group.close()


class Masks:
    """Masks of the ranks of a comm, whose low-latency mode is `unmasked`. Collective at the creation only."""

    def __init__(self, comm, unmasked, limit_bytes):
        self.comm, self.limit_bytes = comm, limit_bytes
        self.masked = set()
        self.ended = set()  # on a device: ranks whose processes have ended
        self.meeting = Meeting(comm)
        self.modes = {tuple(range(comm.ranks)): unmasked}  # of each tuple of ranks
        unmasked.rows = rows_of(comm)
        timeout = comm.facts["timeout"].split()[0]  # "30 s" or "none"
        self.timeout = None if timeout == "none" else float(timeout)
        # On hosts, the number of calls since the last change of masks. After the end of a process the others may have
        # ended different calls. A rank that continues would receive tokens of a repeated call.
        self.calls = 0

    def update(self, rank, mask):
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.comm.ranks:
            raise ArgumentError(f"rank_to_mask is {rank!r}; pass a rank from 0 to {self.comm.ranks - 1}.")
        if rank == self.comm.rank and mask:
            raise ArgumentError(f"rank_to_mask is {rank}, this rank; a rank cannot mask itself.")
        (self.masked.add if mask else self.masked.discard)(rank)
        self.calls = 0

    def clean(self):
        self.masked.clear()
        self.calls = 0

    def find(self):
        """Returns the masked ranks. Ranks whose processes have ended get a mask: on a device in the present
        mode, whose comm stays, since the other ranks find the end at other calls."""
        if self.comm.device_number < 0:
            self.masked.update(self.meeting.ended())
            return self.masked
        for rank in set(self.meeting.ended()) - self.ended:
            self.ended.add(rank)
            for live, mode in self.modes.items():
                if rank in live:
                    i = live.index(rank)
                    mode.masks[i : i + 1] = 1
        return self.masked | self.ended

    def add_lost(self, status):
        """On a device: adds the masks that kernels have set to an array of masks, in stream order."""
        if self.comm.device_number < 0:
            return
        for live, mode in self.modes.items():
            for i, rank in enumerate(live):
                status[rank : rank + 1] |= mode.masks[i : i + 1]

    def live(self):
        return tuple(r for r in range(self.comm.ranks) if r not in self.masked)

    def mode(self, shrinks=False):
        """Returns the mode of the ranks without a mask. Collective among these ranks at the first call for the
        masks. shrinks: ranks that do not come get a mask."""
        live = self.live()
        if shrinks or live not in self.modes:
            try:
                group = LiveGroup(self.meeting, live, self.calls, self.timeout, shrinks)
            except Differ:
                self.calls = 0
                raise
            live = tuple(group.live)
            self.masked.update(r for r in range(self.comm.ranks) if r not in live)
            if live in self.modes:
                group.close()
            else:
                self.modes[live] = LiveRanks(self.comm, group, self.limit_bytes)
            self.calls = 0
        return self.modes[live]

    def owner(self, handle):
        """Returns the mode of the dispatch of a handle."""
        for mode in self.modes.values():
            if mode.has(handle):
                return mode
        raise ArgumentError("handle is of another Buffer; pass the handle of a dispatch of this Buffer.")

    def run(self, call):
        """Returns call(mode). On hosts ranks that are lost during the call get a mask, and the others repeat the
        call. On a device the kernels mask these ranks."""
        self.find()
        mode = self.mode()
        if self.comm.device_number >= 0:
            return call(mode)
        while True:
            try:
                result = call(mode)
                self.calls += 1
                return result
            except (RankDied, Timeout, Aborted):
                failed = mode
                self.find()
                mode = self.mode(shrinks=True)
                if mode is failed:  # no rank is lost
                    raise

    def wait_for_ranks(self):
        """Waits for all ranks without a mask. Ranks that destroy their Buffers get a mask."""
        if self.comm.device_number < 0:
            self.run(self._wait_for_ranks)

    def _wait_for_ranks(self, mode):
        live = self.live()
        parts = mode.rows.gather(STAYS)
        self.masked.update(rank for rank, part in zip(live, parts) if part == LEAVES)

    def lost(self):
        """Returns the ranks with any mask."""
        found = set(self.find())
        for live, mode in self.modes.items() if self.comm.device_number >= 0 else ():
            found.update(rank for rank, mask in zip(live, mode.masks.tolist()) if mask)
        return found

    def close(self):
        """Ends the comms without masked ranks together with these ranks, and the other comms alone. Returns false
        if the other ranks continue without this rank: they may still read its rows, so its comms stay until the
        end of the process."""
        mode = self.modes.get(self.live())
        try:
            together = mode is None or mode.rows is None or mode.rows.gather(LEAVES) == [LEAVES] * len(self.live())
        except Error:
            together = True  # the comm is broken, and its end is no collective call
        lost = self.lost()
        self.meeting.close()
        if not together:
            return False
        if lost:
            self.comm.abort()
        for live, mode in list(self.modes.items())[1:]:
            if lost.intersection(live):
                mode.comm.abort()
            mode.close()
        self.modes.clear()
        return True
