"""Traces of calls for chrome://tracing and Perfetto."""

import json
import os
import platform
import time

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Calls:
    """Records the calls of a rank. A call on a device ends when the stream has executed it."""

    def __init__(self, comm):
        self.comm, self.events = comm, []

    def timed(self, name, function, stream=None, **facts):
        """Calls the function and records its time. Facts are shown with the call."""
        begin = time.perf_counter_ns()
        result = function()
        if self.comm.device_number >= 0:
            self.comm.sync(stream)
        self.events.append((name, begin, time.perf_counter_ns(), facts))
        return result


def document(calls_of_ranks):
    """Returns the calls of ranks, (rank, begin in ns, events), as a document of Chrome. Several ranks
    have names."""
    events = []
    for rank, base, calls in calls_of_ranks:
        if len(calls_of_ranks) > 1:
            events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        events += (
            {
                "name": name, "ph": "X", "pid": rank, "tid": 0, "ts": (begin - base) / 1000,
                "dur": (end - begin) / 1000, "args": {"call": i + 1, **facts},
            }
            for i, (name, begin, end, facts) in enumerate(calls)
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write(path, calls_of_ranks):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document(calls_of_ranks), file)


def _host():
    """Returns a name of the host whose clock this rank reads."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


class Trace:
    """Records the calls of a moe in a `with` block. At the end rank 0 writes the calls of all ranks to
    one file. Begin and end are collective. A block that ends with an exception writes nothing."""

    def __init__(self, moe, path):
        self._moe, self._path = moe, os.fspath(path)

    def __enter__(self):
        self._moe._start_trace(self)
        self.calls = Calls(self._moe.comm)
        self._moe.comm.barrier()
        self._base = time.perf_counter_ns()
        return self

    def __exit__(self, kind, error, trace):
        self._moe._trace = None
        if kind is not None:
            return
        comm = self._moe.comm
        mine = json.dumps([_host(), self._base, self.calls.events]).encode()
        ranks = [json.loads(part) for part in comm.allgather(mine)]
        # Ranks of one host have one clock. Clocks of hosts are equal at the barrier, within its duration.
        bases = {host: min(base for other, base, _ in ranks if other == host) for host, _, _ in ranks}
        if comm.rank == 0:
            write(self._path, [(r, bases[host], events) for r, (host, _, events) in enumerate(ranks)])
