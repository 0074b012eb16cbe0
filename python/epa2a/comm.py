"""Groups of ranks."""

import ctypes
import os
import sys
import threading
import weakref

from . import arrays, interrupt, library, structs
from .errors import ArgumentError

_U32 = 2**32 - 1
_no_timeout = 2**64 - 1


class _TorchGroup:
    """An allgather over a process group of torch.distributed."""

    def __init__(self, group, device):
        self.torch = sys.modules["torch"]
        self.dist = self.torch.distributed
        self.group = group
        self.rank = self.dist.get_rank(group)
        self.size = self.dist.get_world_size(group)
        backend = str(self.dist.get_backend(group))
        self.device = f"cuda:{device}" if backend == "nccl" and device >= 0 else "cpu"

    def allgather(self, mine):
        torch = self.torch
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self.device)
        all_ = [torch.empty_like(sent) for _ in range(self.size)]
        self.dist.all_gather(all_, sent, group=self.group)
        return [bytes(t.cpu().tolist()) for t in all_]


class _MpiGroup:
    """An allgather over a communicator of mpi4py."""

    def __init__(self, group):
        self.allgather = group.allgather
        self.rank = group.Get_rank()
        self.size = group.Get_size()


class _OwnGroup:
    def __init__(self, group):
        for name in ("rank", "size", "allgather"):
            if not hasattr(group, name):
                raise ArgumentError(
                    f"group is of type {type(group).__name__}, which has no attribute '{name}'; pass a "
                    "group of torch.distributed, a communicator of mpi4py, or an object with rank, "
                    "size and allgather(bytes)."
                )
        self.allgather = group.allgather
        self.rank = group.rank() if callable(group.rank) else group.rank
        self.size = group.size() if callable(group.size) else group.size


def _group(group, device):
    if hasattr(group, "Get_rank") and hasattr(group, "allgather"):
        return _MpiGroup(group)
    # A process group has size() and rank(), but its allgather() takes tensors.
    if any("torch" in c.__module__ and c.__name__ == "ProcessGroup" for c in type(group).__mro__):
        return _TorchGroup(group, device)
    return _OwnGroup(group)


def _device_number(device):
    if device is None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.current_device()
        return structs.HOST
    kind = getattr(device, "type", device)
    if isinstance(kind, str):
        kind, _, number = kind.partition(":")
        index = getattr(device, "index", None)
        if kind == "cpu" and not number:
            return structs.HOST
        if kind == "cuda" and (number.isdigit() or not number):
            return int(number) if number else index or 0
        raise ArgumentError(f'device is {device!r}; pass "cpu", "cuda:0" or the number of a CUDA device.')
    return library.number("device", device, 0, 2**31 - 1)


def _timeout_ns(timeout):
    if timeout is None or timeout == float("inf"):
        return _no_timeout
    try:
        ns = int(timeout * 1e9)
    except (TypeError, ValueError):
        raise ArgumentError(f"timeout is {timeout!r}; pass a number of seconds, or None.") from None
    if not 0 < ns < _no_timeout:
        raise ArgumentError(f"timeout is {timeout!r}; pass a positive number of seconds, or None.")
    return ns


class Comm:
    """A group of ranks with one kind of memory and one transport. All ranks create a comm together.

    group       A group of torch.distributed, a communicator of mpi4py, an object with `rank`, `size`
                and `allgather(bytes) -> list of bytes`, or None: the variables RANK, WORLD_SIZE,
                MASTER_ADDR and MASTER_PORT of torchrun.
    device      "cpu", the number of a CUDA device, or a torch.device. None: the current device of
                torch if torch has initialised CUDA, else "cpu".
    heap_bytes  Size of the symmetric heap for all objects of the comm; 0: each object has a heap.
    timeout     Time-out in seconds of each wait for a peer; None: no time-out.
    options     Text or mapping, for example "transport=ucx" or {"transport": "ucx"}.
    plugin_path Folders with additional plugins, separated by ':'.
    log         log(level, text), called for events such as a long wait; level 0: notice, 1: warning.

    A comm is a context manager. close() is collective. A comm that was not closed stays until the
    process exits: the garbage collector does not run collective calls."""

    def __init__(
        self, group=None, *, device=None, heap_bytes=0, timeout=30.0, options="", plugin_path=None, log=None
    ):
        self._handle = None
        self.device_number = _device_number(device)
        self._pid = os.getpid()
        self._objects = []
        self._failure = None
        self._rows = None  # of exchange.py
        self._group = group = None if group is None else _group(group, self.device_number)
        self._log = log
        # Arguments for a comm of some of the ranks.
        self.settings = {"timeout": timeout, "options": options, "plugin_path": plugin_path, "log": log}
        self._callbacks = (
            structs.ALLGATHER(self._allgather) if group else structs.ALLGATHER(),
            structs.LOG(self._write_log) if log else structs.LOG(),
        )
        params = structs.CommParams(
            version=structs.VERSION,
            rank=library.number("rank", group.rank, 0, _U32) if group else 0,
            ranks=library.number("size", group.size, 1, _U32) if group else 0,
            allgather=self._callbacks[0],
            device=self.device_number,
            heap_bytes=library.number("heap_bytes", heap_bytes, 0, 2**63),
            timeout_ns=_timeout_ns(timeout),
            options=library.options_text(options),
            plugin_path=os.fsencode(plugin_path) if plugin_path else None,
            log=self._callbacks[1],
        )
        self._lib = library.load()
        handle = ctypes.c_void_p()
        self._create(params, handle)
        self._handle = handle.value
        # The fact has the form "0 of 4".
        self.rank, self.ranks = (int(n) for n in self.facts["rank"].split(" of "))

    def _create(self, params, handle):
        if self._group is not None:
            status = self._lib.epa2a_comm_create(params, handle)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            library.check(status)
            return
        # The library waits for the other ranks without a comm that Ctrl-C could abort. The thread
        # of a create call that was given up ends by the time-out.
        result = []

        def create():
            try:
                library.check(self._lib.epa2a_comm_create(params, handle))
                result.append(None)
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=create, name="epa2a-create", daemon=True)
        thread.start()
        thread.join()
        if result[0] is not None:
            raise result[0]

    def _allgather(self, _, mine, count, all_):
        if self._failure is not None:
            # The last call reports the failure to the other ranks. A group that is out of step would
            # block.
            if isinstance(self._failure, KeyboardInterrupt):
                return 1
        try:
            parts = self._group.allgather(ctypes.string_at(mine, count))
            if len(parts) != self._group.size or any(len(p) != count for p in parts):
                raise ArgumentError(
                    f"allgather of the group returned {[len(p) for p in parts]} bytes; it must return "
                    f"{self._group.size} parts of {count} bytes."
                )
            ctypes.memmove(all_, b"".join(parts), count * len(parts))
            return 0
        except BaseException as error:  # no exception may pass through C
            self._failure = self._failure or error
            return 1

    def _write_log(self, _, level, text):
        try:
            self._log(level, text.decode(errors="replace"))
        except Exception as error:
            sys.unraisablehook(_Unraisable(error, self._log))

    # ---- calls of the other modules ----

    @property
    def handle(self):
        """Address of the comm of the library."""
        if self._handle is None:
            raise ArgumentError("the comm is closed; create another comm.")
        return self._handle

    def call(self, function, *arguments):
        """Calls a function of the library that moves data, which waits for peers on hosts only."""
        if self.device_number < 0:
            return self.call_waiting(function, *arguments)
        status = function(*arguments)
        if status < 0:
            library.check(status)
        return status

    def call_waiting(self, function, *arguments):
        """Calls a function of the library that waits for peers. Ctrl-C ends the call."""
        status = interrupt.call(self.abort, function, *arguments)
        if self._failure is not None:  # of the callback
            failure, self._failure = self._failure, None
            raise failure
        if status < 0:
            library.check(status)
        return status

    # ---- calls of applications ----

    @property
    def device(self):
        return "cpu" if self.device_number < 0 else f"cuda:{self.device_number}"

    @property
    def closed(self):
        return self._handle is None

    @property
    def facts(self):
        """Facts about the comm, for example {"transport": "shm", "isa": "avx512"}."""
        facts = {}

        @structs.SAY
        def say(_, key, value):
            facts[key.decode()] = value.decode(errors="replace")

        self._lib.epa2a_comm_describe(self.handle, say, None)
        return facts

    def barrier(self, stream=None):
        """Waits for all ranks, after all work of the stream. Collective."""
        self.call_waiting(self._lib.epa2a_comm_barrier, self.handle, self._stream(stream))

    def sync(self, stream=None):
        """Waits until the stream has executed all work, and raises the failure of a kernel."""
        self.call_waiting(self._lib.epa2a_comm_sync, self.handle, self._stream(stream))

    def allgather(self, data):
        """Returns the list of the bytes of all ranks, whose lengths may differ. Collective. The call
        uses the group of the comm; without a group it moves the bytes over the library, on hosts only."""
        from . import exchange

        return exchange.gather(self, data)

    def _stream(self, stream):
        framework = "torch" if "torch" in sys.modules else "cupy" if "cupy" in sys.modules else "numpy"
        return arrays.stream_handle(stream, framework, self.device_number)

    def check(self):
        """Raises the failure that breaks the comm. Never waits. Any thread may call it."""
        library.check(self._lib.epa2a_comm_check(self.handle))

    def abort(self):
        """Ends all waits of the ranks of this host and breaks the comm. Any thread may call it."""
        if self._handle is not None:
            self._lib.epa2a_comm_abort(self._handle)

    def empty(self, shape, dtype="u8", framework=None):
        """Returns an array in memory of the comm: large pages of the host, or memory of the device.
        Collective. framework is "numpy", "torch" or "cupy"; None: numpy, or on a device the first of
        torch and CuPy that the process has imported."""
        dtype = arrays.short_dtype(dtype)
        if dtype not in arrays.BYTES:
            raise ArgumentError(f"dtype is {dtype!r}; pass one of {', '.join(arrays.BYTES)}.")
        shape = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        size = arrays.BYTES[dtype]
        for n in shape:
            size *= library.number("a length of shape", n, 0, 2**40)
        if framework is None:
            known = [f for f in ("torch", "cupy") if self.device_number >= 0 and f in sys.modules]
            framework = known[0] if known else "numpy"
        address = ctypes.c_void_p()
        self.call_waiting(self._lib.epa2a_comm_alloc, self.handle, max(size, 1), address)
        memory = arrays.Memory(address.value, shape, dtype, self.device_number)
        weakref.finalize(memory, _free, self, address.value).atexit = False
        return arrays.wrap(framework, memory, dtype, self.device_number)

    def close(self):
        """Destroys the objects of the comm in the reverse order of their creation, and the comm.
        Collective, unless the comm is broken."""
        if self._handle is None:
            return
        if os.getpid() != self._pid:
            self._handle = None  # the parent owns the comm
            return
        while self._objects:
            self._objects[-1].close()
        handle, self._handle = self._handle, None
        interrupt.call(
            lambda: self._lib.epa2a_comm_abort(handle), self._lib.epa2a_comm_destroy, handle
        )
        failure, self._failure = self._failure, None
        if isinstance(failure, KeyboardInterrupt):
            raise failure

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and self._handle is not None:
            # The other ranks may be in any call, or end: a collective destroy would wait for them.
            self.abort()
        self.close()

    def __repr__(self):
        if self._handle is None:
            return "<epa2a.Comm: closed>"
        return f"<epa2a.Comm: rank {self.rank} of {self.ranks} on {self.device}>"


class _Unraisable:
    """Arguments of sys.unraisablehook."""

    def __init__(self, error, thing):
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = "Exception ignored in the log callback of a comm", thing


def _free(comm, address):
    # The library frees no memory after the comm: a view may exist longer than the comm.
    if comm._handle is not None and os.getpid() == comm._pid:
        comm._lib.epa2a_comm_free(comm._handle, address)


class Owned:
    """An object of the library that a comm owns: Moe, FusedMoE, AgGemm."""

    _destroy = None  # name of the function of the library

    def _init(self, comm):
        if not isinstance(comm, Comm):
            raise ArgumentError(f"comm is of type {type(comm).__name__}; pass an epa2a.Comm.")
        self.comm = comm
        self._handle = None
        self._lib = comm._lib
        comm.handle  # raises if the comm is closed

    def _adopt(self, handle):
        self._handle = handle.value
        self.comm._objects.append(self)

    @property
    def handle(self):
        if self._handle is None:
            raise ArgumentError(f"the {type(self).__name__} is closed; create another object.")
        self.comm.handle
        return self._handle

    def close(self):
        """Destroys the object. Collective, unless the comm is broken."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self.comm._objects[:] = [o for o in self.comm._objects if o is not self]
        if self.comm._handle is not None and os.getpid() == self.comm._pid:
            comm = self.comm
            interrupt.call(comm.abort, getattr(self._lib, self._destroy), handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.comm.abort()
        self.close()
