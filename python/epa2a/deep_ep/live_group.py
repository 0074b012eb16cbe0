"""Groups of some ranks of a comm, for which the other ranks make no call. The ranks meet over sockets of
their host, since the groups of applications exchange data of all ranks only."""

import array
import os
import secrets
import select
import socket
import struct
import time

from ..errors import ArgumentError, Error, Timeout, Unsupported
from ..exchange import gather

HEAD = 8  # bytes of a length


def names(ranks):
    """Returns "rank 3" or "ranks 1 and 3"."""
    ranks = list(map(str, ranks))
    return "rank " + ranks[0] if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def send(connection, data):
    connection.sendall(len(data).to_bytes(HEAD, "little") + data)


def answer(connection, data):
    """Sends to a rank that may have ended since."""
    try:
        send(connection, data)
    except OSError:
        pass  # the next exchange reports the end


def receive_bytes(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data


def receive(connection):
    return receive_bytes(connection, int.from_bytes(receive_bytes(connection, HEAD), "little"))


def user_of(connection):
    """Returns the user of the process at the other end."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


class Meeting:
    """Socket names and processes of all ranks of a comm. Collective."""

    def __init__(self, comm):
        if comm.facts["nodes"] != "1":
            raise Unsupported("masks need all ranks on one host; pass enable_shrink=False.")
        self.rank = comm.rank
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(b"\0epa2a-" + secrets.token_hex(16).encode())  # an abstract name: no file
        self.listener.listen(comm.ranks)
        own = os.getpid().to_bytes(HEAD, "little") + self.listener.getsockname()
        parts = gather(comm, own)
        self.names = [part[HEAD:] for part in parts]
        self.processes = {}  # rank of each descriptor of a process
        self.ends = select.poll()
        for r, part in enumerate(parts):
            pid = int.from_bytes(part[:HEAD], "little")
            if pid != os.getpid():
                descriptor = os.pidfd_open(pid)
                self.processes[descriptor] = r
                self.ends.register(descriptor, select.POLLIN)

    def ended(self):
        """Returns the ranks whose processes have ended."""
        return [self.processes[descriptor] for descriptor, _ in self.ends.poll(0)]

    def close(self):
        self.listener.close()
        for descriptor in self.processes:
            os.close(descriptor)
        self.processes = {}


class Lost(Timeout):
    """A rank has not come to the meeting."""


class Differ(Error):
    """The ranks have made different numbers of calls, so they may mean different dispatches."""

    status = "EPA2A_ERR_CONFIG"


class LiveGroup:
    """The group of the ranks `live`. Collective among these ranks. `calls` must be equal on the ranks.

    The first rank accepts connections of the others, and sends the parts of an allgather to them. shrinks:
    ranks that do not come in time are no members of the group; else the call fails."""

    def __init__(self, meeting, live, calls, timeout, shrinks=False):
        self.live, self.meeting, self.calls, self.shrinks = list(live), meeting, calls, shrinks
        self.timeout = timeout
        self.connections = []
        try:
            while not self._meet():
                self.close()
                del self.live[0]
            for connection in self.connections:
                connection.settimeout(timeout)
        except BaseException:
            self.close()
            raise
        self.rank, self.size = self.live.index(meeting.rank), len(self.live)

    def _meet(self):
        """Returns False if the first rank is lost."""
        first = self.live[0]
        # The first rank waits for the others before it answers.
        limit = self.timeout if self.timeout is None or self.meeting.rank == first else 2 * self.timeout
        self.deadline = None if limit is None else time.monotonic() + limit
        if self.meeting.rank == first:
            self._accept_ranks()
            return True
        try:
            self._connect(first)
        except Lost:
            if not self.shrinks:
                raise
            return False
        return True

    def _left(self, missing):
        """Returns the remaining time for the meeting."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Lost(
                f"{names(missing)} did not dispatch in time after the masks had changed; mask a lost rank on "
                "all other ranks."
            )
        return left

    @staticmethod
    def _read_numbers(connection, timeout):
        """Returns the first message of a rank; None: it has given up, or the process is of another user."""
        if user_of(connection) != os.getuid():
            return None
        connection.settimeout(timeout)
        try:
            numbers = array.array("q", receive(connection))
        except (OSError, EOFError):
            return None
        return None if select.select([connection], [], [], 0)[0] else numbers  # readable: the end

    def _accept_ranks(self):
        """Waits for the other ranks. A rank that has given up has closed its connection."""
        came, error = {}, None
        while len(came) < len(self.live) - 1:
            try:
                left = self._left([r for r in self.live[1:] if r not in came])
                self.meeting.listener.settimeout(left)
                connection, _ = self.meeting.listener.accept()
            except Lost:
                if not self.shrinks:
                    raise
                break
            except TimeoutError:
                continue
            numbers = self._read_numbers(connection, left)
            if numbers is None:
                connection.close()
                continue
            rank, calls, *live = numbers
            if rank not in self.live:  # it is masked here
                connection.close()
                continue
            came[rank] = connection
            self.connections = list(came.values())
            error = error or self._compare(rank, calls, live)
            if isinstance(error, ArgumentError):
                break
        if error is not None:
            for refused in self.connections:
                answer(refused, type(error).__name__.encode() + b":" + str(error).encode())
            raise error
        self.live[1:] = sorted(came)
        self.connections = [came[r] for r in self.live[1:]]
        for connection in self.connections:
            answer(connection, b"live:" + array.array("q", self.live).tobytes())

    def _compare(self, rank, calls, live):
        """Returns an error if another rank has other masks, or other calls."""
        first = self.meeting.rank
        if live != list(self.live):
            return ArgumentError(
                f"rank {rank} has masks for all ranks except {names(live)}, but rank {first} for all except "
                f"{names(self.live)}; update the masks equally on these ranks."
            )
        if calls != self.calls:
            return Differ(
                f"since the last change of masks rank {rank} has made {calls} calls and rank {first} "
                f"{self.calls} calls; the ranks must agree on the dispatch to repeat without the lost rank."
            )
        return None

    def _connect(self, first):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connections = [connection]
        try:
            connection.connect(self.meeting.names[first])
            send(connection, array.array("q", [self.meeting.rank, self.calls, *self.live]).tobytes())
            connection.settimeout(self._left([first]))
            kind, _, data = receive(connection).partition(b":")
        except (OSError, EOFError):
            raise Lost(f"rank {first} has ended or makes no call; mask the rank on all other ranks.") from None
        if kind != b"live":
            raise (Differ if kind == b"Differ" else ArgumentError)(data.decode())
        self.live = list(array.array("q", data))

    def allgather(self, mine):
        """Returns the parts of all ranks, whose lengths are equal."""
        try:
            if self.meeting.rank == self.live[0]:
                parts = [mine, *map(receive, self.connections)]
                for connection in self.connections:
                    send(connection, b"".join(parts))
                return parts
            send(self.connections[0], mine)
            all_ = receive(self.connections[0])
        except (OSError, EOFError):
            ranks = names(self.live)
            raise Error(f"one of {ranks} has ended or makes no call, so these cannot exchange data.") from None
        return [all_[i : i + len(mine)] for i in range(0, len(all_), len(mine))]

    def close(self):
        for connection in self.connections:
            connection.close()
        self.connections = []
