"""Files of results: JSON documents, JSON lines and folders, and the values of their runs. This module needs no
package beside Python's own."""

import json
import os
import re
import stat

SCHEMA = 1

EXIT_USAGE, EXIT_SYSTEM = 2, 3  # exit codes of commands


class ResultsError(ValueError):
    """A file holds no results of epa2a, or a choice matches none of them. `exit_code` is that of a command."""

    def __init__(self, text, exit_code=EXIT_USAGE):
        super().__init__(text)
        self.exit_code = exit_code


class PredictionFound(ResultsError):
    """A file holds the document of `epa2a predict`, and no results."""

    def __init__(self, path, document):
        super().__init__(f"{path}: a prediction and no results; only plot draws predictions")
        self.document = document


# ---- documents ----


def _object(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ResultsError(f"key '{twice}' occurs twice in one object")
    return found


def _constant(word):
    raise ResultsError(f"{word} is not a number of JSON")


_blanks = re.compile(r"[ \t\r\n\ufeff]*")
_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _place(path, text, at):
    line = text.count("\n", 0, at) + 1
    return f"{path}:{line}:{at - text.rfind(chr(10), 0, at)}: error"


def parse(text, path):
    """Yields the JSON documents of a text: one, or several one after the other."""
    at, end = 0, len(text)
    while True:
        at = _blanks.match(text, at).end()
        if at == end:
            return
        try:
            document, at = _decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ResultsError(f"{_place(path, text, error.pos)}: not JSON: {error.msg}") from None
        except ResultsError as error:
            raise ResultsError(f"{_place(path, text, at)}: not JSON: {error}") from None
        except RecursionError:
            raise ResultsError(f"{_place(path, text, at)}: not JSON: too many nested values") from None
        yield document


def _open(path):
    """Opens a regular file, or input of the shell such as /dev/stdin. Never waits for another file."""
    path = "/dev/stdin" if path == "-" else os.fspath(path)
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))
    handed_over = path.startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))
    if not handed_over and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ResultsError(f"{path}: it is not a regular file", EXIT_SYSTEM)
    os.set_blocking(file.fileno(), True)
    return file


def read_text(path):
    """Reads a file of UTF-8. Bytes that are no UTF-8 become U+FFFD. A zero byte ends the reading, so that a
    binary or sparse file takes no memory."""
    pieces = []
    try:
        with _open(path) as file:
            while piece := file.read(1 << 20):
                pieces.append(piece)
                if 0 in piece:
                    break
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}", EXIT_SYSTEM) from None
    data = b"".join(pieces)
    zero = data.find(0)
    if zero >= 0:
        line, column = data.count(b"\n", 0, zero) + 1, zero - data.rfind(b"\n", 0, zero)
        raise ResultsError(
            f"{path}:{line}:{column}: a zero byte, which no text file has: the file is binary, or was not written completely"
        )
    return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")


def documents(path):
    """Returns the documents of a file or a folder of results. The last line of a folder's file is
    incomplete while a batch writes it."""
    path = os.fspath(path)
    folder = os.path.isdir(path)
    file = os.path.join(path, "results.jsonl") if folder else path
    text = read_text(file)
    if folder:
        text = text[: text.rfind("\n") + 1]
    found = list(parse(text, file))
    if not found and not folder:
        raise ResultsError(f"{file}:1:1: error: not JSON: the file is empty")
    for document in found:
        if not isinstance(document, dict) or document.get("program") != "epa2a":
            raise ResultsError(f"{file}: not results that epa2a --json wrote")
        if isinstance(document.get("worlds"), list) and len(found) == 1:
            check_shape(file, document, PREDICTION_SHAPE)
            raise PredictionFound(file, document)
        if not isinstance(document.get("results"), list):
            raise ResultsError(f"{file}: not results that epa2a --json wrote: there is no list 'results'")
        if document.get("schema") != SCHEMA:
            raise ResultsError(
                f"{file}: schema {document.get('schema')} is not known; this program reads {SCHEMA}"
            )
    return found


# ---- shapes of documents ----

TEXT, NUMBER = "a text", "a number"
_machine = {
    "host": TEXT, "cpu": TEXT, "kernel": TEXT, "cores": NUMBER, "memory_bytes": NUMBER, "device": {"device": TEXT},
    "build": {"version": TEXT, "git": TEXT, "compiler": TEXT, "isa": TEXT},
}  # fmt: skip
_stage = {
    "name!": TEXT, "samples_ns!": [NUMBER], "ranks": [{"rank!": NUMBER}], "ns": {"ci95": [NUMBER]},
}  # fmt: skip
RUN_SHAPE = {
    "label": TEXT, "name": TEXT, "id": TEXT, "run": TEXT, "verb": TEXT, "operation": TEXT, "status": TEXT, "started": TEXT,
    "error": {"text": TEXT}, "experiment": {"name": TEXT, "ranks": NUMBER, "*": {"name": TEXT, "kind": TEXT}},
    "machine": _machine, "delivers": {}, "source": {"program": TEXT, "clock": TEXT}, "warnings": [TEXT], "stages": [_stage],
}  # fmt: skip

_time = {"name!": TEXT, "ns!": NUMBER, "low_ns": NUMBER, "high_ns": NUMBER}
PREDICTION_SHAPE = {"file": TEXT, "worlds": [{"ranks!": NUMBER, "stages": [_time], "total": _time}]}


def is_number(value):
    """Returns True for a number that a float holds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def check_shape(where, value, shape, name=""):
    """Refuses a value of another type than its shape: TEXT, NUMBER, a list of one shape, or an object
    with shapes by key. Null and absent keys are allowed; a key with "!" is required, and "*" stands
    for all keys whose values are objects."""
    if isinstance(shape, dict):
        wanted, good = "an object", isinstance(value, dict)
    elif isinstance(shape, list):
        wanted, good = "a list", isinstance(value, list)
    else:
        wanted, good = shape, isinstance(value, str) if shape == TEXT else is_number(value)
    if not good:
        raise ResultsError(f"{where}: {name or 'a value'} should be {wanted}")
    if isinstance(shape, list):
        for place, one in enumerate(value):
            check_shape(where, one, shape[0], f"{name}[{place}]")
    if not isinstance(shape, dict):
        return
    for key, inner in shape.items():
        required, key = key.endswith("!"), key.rstrip("!")
        dotted = f"{name}.{key}" if name else key
        if key == "*":
            for other, one in value.items():
                if isinstance(one, dict):
                    check_shape(where, one, inner, f"{name}.{other}")
        elif value.get(key) is not None:
            check_shape(where, value[key], inner, dotted)
        elif required:
            raise ResultsError(f"{where}: {dotted} is missing")


# ---- values of a run ----


def at(document, path, default=None):
    """Returns the value at a dotted path of objects, or the default."""
    for key in path.split("."):
        if not isinstance(document, dict) or document.get(key) is None:
            return default
        document = document[key]
    return document


def flatten(document, prefix=""):
    """Returns {"moe.hidden": 7168, ...}: the values of nested objects by dotted keys."""
    found = {}
    for key, value in (document or {}).items():
        if isinstance(value, dict):
            found.update(flatten(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
