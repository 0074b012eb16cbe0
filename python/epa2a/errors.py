"""Exceptions. The message of each is a sentence; `status` is the name of the status in epa2a.h."""


class Error(RuntimeError):
    """A call of the library failed."""

    status = "unknown status"


class ArgumentError(Error, ValueError):
    """An argument or option is invalid. The call had no effect and may be repeated."""

    status = "EPA2A_ERR_CONFIG"


class Unsupported(Error, NotImplementedError):
    """Build, machine, transport or algorithm lacks the feature."""

    status = "EPA2A_ERR_UNSUPPORTED"


class NoMemory(Error, MemoryError):
    """A memory allocation failed."""

    status = "EPA2A_ERR_NOMEM"


class SystemFailure(Error):
    """A system, driver or library call, or a callback, failed. The comm is broken."""

    status = "EPA2A_ERR_SYSTEM"


class Timeout(Error, TimeoutError):
    """A wait for a peer timed out. The comm is broken."""

    status = "EPA2A_ERR_TIMEOUT"


class Aborted(Error):
    """Another rank failed first, or the comm was aborted. The comm is broken."""

    status = "EPA2A_ERR_ABORTED"


class RankDied(Error):
    """The process of a rank terminated. The comm is broken."""

    status = "EPA2A_ERR_DIED"


NOT_YET = 1
_classes = {
    -1: ArgumentError,
    -2: Unsupported,
    -3: NoMemory,
    -4: SystemFailure,
    -5: Timeout,
    -6: Aborted,
    -8: RankDied,
}


def from_status(status, message):
    """Returns the exception for a negative status of the library."""
    error = _classes.get(status, Error)(message)
    if type(error) is Error:
        error.status = f"unknown status {status}"
    return error
