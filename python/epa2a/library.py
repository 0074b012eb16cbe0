"""Finds and loads libepa2a, and turns its statuses into exceptions."""

import ctypes
import os
import threading

from . import errors, structs

_loaded = None
_lock = threading.Lock()


def _candidates():
    """Yields paths of the library. $EPA2A_LIBRARY excludes all other paths."""
    named = os.environ.get("EPA2A_LIBRARY")
    if named:
        yield named
        return
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libepa2a.so.0")
    if os.path.exists(own):
        yield own
    yield "libepa2a.so.0"


def _open():
    reasons = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    raise errors.Unsupported(
        f"libepa2a cannot be loaded: {'; '.join(reasons)}. "
        "Install the library, or set EPA2A_LIBRARY to the path of libepa2a.so.0."
    )


def load():
    """Returns the library. The first call loads it."""
    global _loaded

    if _loaded is None:
        with _lock:
            if _loaded is None:
                lib = _open()
                for name, (result, arguments) in structs.FUNCTIONS.items():
                    try:
                        function = getattr(lib, name)
                    except AttributeError:
                        raise errors.Unsupported(
                            f"libepa2a lacks the function {name}; this package needs a newer library."
                        ) from None
                    function.restype, function.argtypes = result, arguments
                major = lib.epa2a_version() >> 16
                if major != structs.VERSION >> 16:
                    raise errors.Unsupported(
                        f"libepa2a has major version {major}; this package needs "
                        f"{structs.VERSION >> 16}."
                    )
                _loaded = lib
    return _loaded


def check(status):
    """Raises the exception of a failed call of this thread."""
    if status < 0:
        raise errors.from_status(status, load().epa2a_last_error().decode(errors="replace"))


def build():
    """Returns the release and the plugins of the library, with the reason for each plugin that
    cannot be loaded."""
    return load().epa2a_build().decode(errors="replace")


def options_text(options):
    """Returns options as bytes, or None. A mapping {"algorithm": "ll_v1"} is equivalent to the text
    "algorithm=ll_v1"."""
    if not options:
        return None
    if isinstance(options, str):
        if "\0" in options:
            raise errors.ArgumentError("options contain a NUL character; remove it.")
        return options.encode()
    try:
        items = options.items()
    except AttributeError:
        raise errors.ArgumentError(
            f"options are of type {type(options).__name__}; pass a str or a mapping."
        ) from None
    return ", ".join(f"{name}={_option_value(value)}" for name, value in items).encode()


def _option_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_option_value(v) for v in value) + "]"
    return str(value)


def number(name, value, low, high):
    """Returns an integer argument, which must be in a range of C."""
    try:
        result = value.__index__()
    except AttributeError:
        raise errors.ArgumentError(
            f"{name} is of type {type(value).__name__}; pass an integer."
        ) from None
    if not low <= result <= high:
        raise errors.ArgumentError(f"{name} is {result}; pass {low} to {high}.")
    return result


def choice(name, value, choices):
    """Returns the number of a named value."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        names = ", ".join(f'"{c}"' for c in choices)
        raise errors.ArgumentError(f"{name} is {value!r}; pass one of {names}.") from None
