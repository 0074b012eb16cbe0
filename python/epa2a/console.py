"""Messages and files of the commands of the package, in the form of the program epa2a. This module needs no package
beside Python's own."""

import errno
import os
import stat
import sys

from .result_files import EXIT_SYSTEM, EXIT_USAGE, ResultsError

EXIT_SIGPIPE = 141

_colour = "auto"  # --color


def choose_colour(mode):
    global _colour
    _colour = mode


def _is_coloured(file):
    if _colour != "auto":
        return _colour == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in ("", "dumb") and file.isatty()


def clean(text):
    """Returns text of results without characters that control a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))


def fail(text, code=EXIT_USAGE):
    """Prints the error of a command; returns its exit code."""
    sys.stderr.write(f"epa2a: {clean(text)}\n")
    return code


def warn(text):
    on, off = ("\033[1;33m", "\033[0m") if _is_coloured(sys.stderr) else ("", "")
    sys.stderr.write(f"epa2a: {on}warning:{off} {clean(text)}\n")


def show(text):
    """Prints text of a command and a line feed, at once."""
    if sys.stdout is None:
        raise ResultsError("standard output is closed", EXIT_SYSTEM)
    try:
        sys.stdout.write(clean(text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_stdout()
        raise ResultsError(f"cannot write standard output: {error.strerror}", EXIT_SYSTEM) from None


def _drop_stdout():
    """The interpreter would write the rest of standard output again, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def end_broken_pipe():
    """Called after BrokenPipeError: the reader of standard output closed it. Returns the exit code."""
    _drop_stdout()
    return EXIT_SIGPIPE


# ---- files ----


def descriptor_of(path):
    """Returns the descriptor that a path stands for, such as 3 for /dev/fd/3 and 1 for "-"; None: a file."""
    if path == "-":
        return 1
    if path in ("/dev/stdin", "/dev/stdout", "/dev/stderr"):
        return ("/dev/stdin", "/dev/stdout", "/dev/stderr").index(path)
    folder, _, name = path.rpartition("/")
    return int(name) if folder in ("/dev/fd", "/proc/self/fd") and name.isascii() and name.isdigit() else None


def is_stdout(path):
    return path is not None and descriptor_of(path) == 1


def _write_whole(file, data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _write_to(path, flags, data):
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
    try:
        os.set_blocking(file, True)
        _write_whole(file, data)
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.fsync(file)
    finally:
        os.close(file)


def _write_temporary(path, data):
    """Writes a new file in the folder of a path; returns its name. The program recognises such names."""
    for number in range(1000):
        name = os.path.join(os.path.dirname(path), f"epa2a-{os.getpid()}-{number}.tmp")
        try:
            _write_to(name, os.O_CREAT | os.O_EXCL, data)
            return name
        except FileExistsError:
            continue
        except BaseException:
            if os.path.lexists(name):
                os.unlink(name)
            raise
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _write_complete(path, data, overwrite):
    """Writes a regular file that appears under its name when it is complete. A file that must keep its name, such
    as a mount point, is written in place."""
    try:
        name = _write_temporary(path, data)
    except OSError as error:
        if not os.path.lexists(path) or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        _write_to(path, os.O_TRUNC, data)
        return
    try:
        if overwrite:
            os.replace(name, path)
        else:
            os.link(name, path)
    except FileExistsError:
        raise
    except OSError:
        # rename() cannot replace a mount point; some file systems have no links.
        _write_to(path, os.O_TRUNC if overwrite else os.O_CREAT | os.O_EXCL, data)
    finally:
        if os.path.lexists(name):
            os.unlink(name)


def write_file(path, data, overwrite=True, option=""):
    """Writes a file that appears complete, or not at all. A device or a pipe is written directly, and "-" is
    standard output. Messages begin with the option."""
    shown = f"{option} {path}".strip()
    path = os.fspath(path)
    try:
        number = descriptor_of(path)
        if number is not None:
            sys.stdout.flush()
            _write_whole(number, data)
            return
        target = os.path.realpath(path)  # a link stays, and its target is written
        kind = os.stat(target).st_mode if os.path.exists(target) else None
        if path.endswith("/") or (kind is not None and stat.S_ISDIR(kind)):
            raise ResultsError(f"{shown}: that is a folder")
        if kind is not None and not stat.S_ISREG(kind):
            _write_to(path, os.O_NONBLOCK, data)
            return
        if not overwrite and os.path.lexists(path):
            raise FileExistsError
        _write_complete(target, data, overwrite)
    except BrokenPipeError:
        if is_stdout(path):
            raise
        raise ResultsError(f"{shown}: the reader of the pipe closed it", EXIT_SYSTEM) from None
    except FileExistsError:
        raise ResultsError(f"{shown}: there is such a file already; --force overwrites it") from None
    except OSError as error:
        usage = isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ENAMETOOLONG
        raise ResultsError(f"{shown}: {error.strerror}", EXIT_USAGE if usage else EXIT_SYSTEM) from None


def check_file(path, overwrite, option):
    """Refuses, before a long measurement, a file that write_file() would refuse."""
    if path is None or descriptor_of(path) is not None:
        return
    if os.path.isdir(path) or path.endswith("/"):
        raise ResultsError(f"{option} {path}: that is a folder")
    if not overwrite and os.path.isfile(path):
        raise ResultsError(f"{option} {path}: there is such a file already; --force overwrites it")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise ResultsError(f"{option} {path}: {os.strerror(errno.ENOENT)}")


# ---- progress ----


def has_progress(mode):
    """Returns True if a command shows its progress: auto, always or never."""
    if mode != "auto":
        return mode == "always"
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def show_progress(text):
    """Replaces the line of progress on standard error. A process in the background writes nothing, since a terminal
    with tostop would stop it."""
    if sys.stderr.isatty() and os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp():
        return
    sys.stderr.write(f"\r{clean(text)}\033[K")
    sys.stderr.flush()


def clear_progress():
    sys.stderr.write("\r\033[K")
    sys.stderr.flush()
