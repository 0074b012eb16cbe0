"""Runs a function in a new process for each rank, for laptops and notebooks."""

import multiprocessing
import pickle
import signal
import sys
import time
import traceback
from multiprocessing import connection

from . import library
from .errors import ArgumentError, Error

# Time for the other ranks to end after a rank has failed, in seconds.
_GRACE = 5.0


class SpawnError(Error):
    """The function of a rank failed. `rank` is the first failed rank; `failures` maps ranks to the
    text of their failures. The cause is the exception of the rank."""

    status = "EPA2A_ERR_SYSTEM"

    def __init__(self, message, rank=None, failures=None):
        super().__init__(message)
        self.rank, self.failures = rank, failures or {}


class PipeGroup:
    """The group of a spawned rank: the parent distributes the parts of each allgather."""

    def __init__(self, rank, size, pipe):
        self.rank, self.size, self._pipe = rank, size, pipe

    def allgather(self, mine):
        self._pipe.send(("allgather", mine))
        kind, value = self._pipe.recv()
        if kind == "failed":
            raise Error(value)
        return value


def _run(ends_of_parent, rank, ranks, pipe, function, arguments, comm_arguments):
    from .comm import Comm

    # Inherited copies would keep the pipes of dead ranks open.
    for end in ends_of_parent:
        end.close()
    try:
        with Comm(PipeGroup(rank, ranks, pipe), **comm_arguments) as comm:
            result = function(comm, *arguments)
        pipe.send(("result", pickle.dumps(result)))
    except BaseException as error:
        text = traceback.format_exc()
        try:
            packed = pickle.dumps(error)
            pickle.loads(packed)  # exceptions with arguments of their own may not load
        except Exception:
            packed = None
        pipe.send(("error", (packed, f"{type(error).__name__}: {error}", text)))
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


class _Hub:
    """The parent of the ranks."""

    def __init__(self, processes, pipes):
        self.processes, self.pipes = processes, pipes
        self.open = dict(zip(pipes, range(len(pipes))))
        self.parts = {}
        self.results = {}
        self.failures = {}  # rank: (exception or None, message, traceback), in order of arrival
        self.deadline = None

    def fail(self, rank, failure):
        self.failures.setdefault(rank, failure)
        if self.deadline is None:
            self.deadline = time.monotonic() + _GRACE
        self.distribute()

    def distribute(self):
        """Answers an allgather if all ranks have contributed, or no rank can complete it."""
        ended = [r for r in range(len(self.pipes)) if r not in self.open.values()]
        answer = None
        if len(self.parts) == len(self.pipes):
            answer = ("parts", [self.parts[r] for r in range(len(self.pipes))])
        elif self.parts and ended:
            answer = ("failed", f"rank {ended[0]} ended, so the ranks cannot exchange data.")
        if answer is None:
            return
        waiting, self.parts = self.parts, {}
        for rank in waiting:
            try:
                self.pipes[rank].send(answer)
            except OSError:
                pass  # the rank died; its pipe reports the end

    def receive(self, pipe):
        rank = self.open[pipe]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            del self.open[pipe]
            if rank not in self.results and rank not in self.failures:
                self.processes[rank].join()
                code = self.processes[rank].exitcode
                end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                self.fail(rank, (None, f"the process ended with {end}", ""))
            self.distribute()
            return
        if kind == "allgather":
            self.parts[rank] = value
            self.distribute()
        elif kind == "result":
            self.results[rank] = pickle.loads(value)
        else:
            packed, message, text = value
            self.fail(rank, (pickle.loads(packed) if packed else None, message, text))

    def run(self):
        while self.open:
            timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready = connection.wait(list(self.open), timeout)
            if not ready:
                return
            for pipe in ready:
                self.receive(pipe)

    def end(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _raise_failures(failures):
    # Ranks that fail since another rank has failed report EPA2A_ERR_ABORTED or the death.
    def is_effect(rank):
        return getattr(failures[rank][0], "status", "") in ("EPA2A_ERR_ABORTED", "EPA2A_ERR_DIED")

    rank = next((r for r in failures if not is_effect(r)), next(iter(failures)))
    cause, message, text = failures[rank]
    others = sorted(r for r in failures if r != rank)
    more = f" Ranks {', '.join(map(str, others))} failed, too." if others else ""
    trace = f"\n\n{text}" if text else ""
    error = SpawnError(
        f"rank {rank} failed: {message}.{more}{trace}", rank, {r: f[1] for r, f in failures.items()}
    )
    raise error from cause


def spawn(function, ranks, *arguments, method=None, **comm_arguments):
    """Runs function(comm, *arguments) on each of `ranks` new processes and returns the list of their
    results. Keyword arguments are those of Comm, for example options="transport=shm".

    method  Start method of multiprocessing. None: "fork", which needs no main module and so works in
            notebooks; "spawn" for CUDA devices, which survive no fork. With "spawn" the function must
            be importable.

    A failure of a rank aborts the other ranks and raises SpawnError."""
    ranks = library.number("ranks", ranks, 1, 4096)
    if not callable(function):
        raise ArgumentError(f"function is of type {type(function).__name__}; pass a function of a comm.")
    if method is None:
        method = "fork" if comm_arguments.setdefault("device", "cpu") == "cpu" else "spawn"
    if method not in multiprocessing.get_all_start_methods():
        names = ", ".join(multiprocessing.get_all_start_methods())
        raise ArgumentError(f"method is {method!r}; pass one of {names}.")
    context = multiprocessing.get_context(method)
    processes, pipes = [], []
    hub = _Hub(processes, pipes)
    try:
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_run,
                args=(
                    [*pipes, mine] if method == "fork" else [],
                    rank, ranks, theirs, function, arguments, comm_arguments,
                ),
                name=f"epa2a rank {rank}",
            )
            pipes.append(mine)
            processes.append(process)
            process.start()
            theirs.close()
        hub.open = dict(zip(pipes, range(ranks)))
        hub.run()
        if hub.failures:
            _raise_failures(hub.failures)
        return [hub.results[r] for r in range(ranks)]
    finally:
        hub.end()
        for pipe in pipes:
            pipe.close()
