"""A prediction as text for a terminal, as Markdown and as CSV, in the form of the program's tables."""

import math

from . import predict
from .console import clean

COLUMNS = 100  # of a folded line

# Key, heading, unit, divisor, digits, and width of a column; width 0: text.
_STAGES = (
    ("name", "stage", None, 1, 0, 0), ("ns", "time", "us", 1e3, 1, 10), ("low_ns", "from", "us", 1e3, 1, 10),
    ("high_ns", "to", "us", 1e3, 1, 10), ("local_ns", "local", "us", 1e3, 1, 10), ("bytes_ns", "link", "us", 1e3, 1, 10),
    ("messages_ns", "messages", "us", 1e3, 1, 9), ("link_bytes", "bytes", "MB", 1e6, 2, 9), ("bound", "bound", None, 1, 0, 0),
)  # fmt: skip
_WORLDS = (
    ("ranks", "ranks", None, 1, 0, 6), ("nodes", "nodes", None, 1, 0, 6), ("ns", "time", "us", 1e3, 1, 10),
    ("low_ns", "from", "us", 1e3, 1, 10), ("high_ns", "to", "us", 1e3, 1, 10), ("times", "times", None, 1, 2, 6),
    ("tokens_per_s", "tokens", "M/s", 1e6, 2, 8), ("link_bytes", "bytes", "MB", 1e6, 2, 8),
    ("memory_bytes", "memory", "MiB", 1048576, 0, 7), ("bound", "bound", None, 1, 0, 0),
)  # fmt: skip
_NAME = 10  # least width of the name of a stage


def _us(ns):
    return f"{ns / 1e3:.1f}"


def _world(world):
    nodes = "one node" if world["nodes"] == 1 else f"{world['nodes']} nodes of {world['ranks'] / world['nodes']:.0f}"
    return f"{world['ranks']} rank{'s' if world['ranks'] != 1 else ''}, {nodes}"


def _answer(document):
    world = predict.requested_world(document)
    total = world["total"]
    stages = ", ".join(f"{stage['name']} {_us(stage['ns'])} us by {stage['bound']}" for stage in world["stages"])
    return (
        f"{_world(world)}: {_us(total['ns'])} us, {_us(total['low_ns'])} to {_us(total['high_ns'])}: {stages}; "
        f"{document['scales']['text']}"
    )


def _head(document):
    link, sweep = document["link"], ""
    if document["sweep"]:
        sweep = f", and as few as {document['worlds'][0]['ranks']}"
    text = f"epa2a predict: {document['file']}: {_world(predict.requested_world(document))}{sweep}"
    if link is not None:
        messages = " and a time between messages" if link["message_ns"] > 0 else ""
        text += f"; link {link['rate']:.4g} GB/s, {link['latency_ns'] / 1e3:.4g} us{messages}, of a {link['of']}"
    return text


# ---- tables ----


def _rows(document):
    """Returns the columns and the rows of the table: worlds of a sweep, or stages of the requested world."""
    if not document["sweep"]:
        world = predict.requested_world(document)
        return _STAGES, [*world["stages"], world["total"]]
    return _WORLDS, [{**world, **(world.get("total") or {})} for world in document["worlds"]]


def _cell(column, row, none, fits=False):
    key, _, _, scale, digits, width = column
    value = row.get(key)
    if value is None:
        return none if key == "times" else ""
    if width == 0:
        return clean(value)
    text = f"{value / scale:.{digits}f}"
    if fits and len(text) > width:
        text = f"{value / scale:.0f}"
        text = f"{value / scale:.2e}" if len(text) > width else text
    return text


def _line(columns, cells, name, lead):
    out = ""
    for column, cell in zip(columns, cells):
        if column[5] > 0:
            out += ("" if column is columns[0] else " ") + cell.rjust(column[5])
        elif column is columns[0]:
            out += cell.ljust(name)
        else:
            out += "  " + cell
    return lead + out.rstrip(" ")


def _table(document):
    columns, rows = _rows(document)
    name = max([_NAME, *[len(row["name"]) for row in rows if "name" in row]])
    lines = [_line(columns, [column[1] for column in columns], name, "# ")]
    lines.append(_line(columns, [f"[{column[2]}]" if column[2] else "" for column in columns], name, "# "))
    return lines + [_line(columns, [_cell(column, row, "-", True) for column in columns], name, "  ") for row in rows]


def _fold(text):
    """Returns a comment in lines of up to COLUMNS characters."""
    lines, lead = [], "# "
    while text:
        cut = len(text)
        if cut > COLUMNS - len(lead):
            cut = text.rfind(" ", 0, COLUMNS - len(lead) + 1)
            cut = cut if cut > 0 else len(text.split(" ", 1)[0])
        lines.append(lead + text[:cut])
        text, lead = text[cut:].lstrip(" "), "#   "
    return lines


def _size(number):
    if number < 1024:
        return f"{number} B"
    value = number / 1024
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1023.95:
            break
        value /= 1024
    else:
        unit = "EiB"
    return f"{value:.{2 if value < 10 else 1}f} {unit}"


def _comments(document):
    """Yields the lines below the table."""
    world = predict.requested_world(document)
    if not document["sweep"]:
        yield f"memory of a rank: {_size(world['memory_bytes'])}, of which the heap is {_size(world['heap_bytes'])}"
    for one in document["worlds"]:
        if document["sweep"] and "total" not in one:
            yield f"{one['ranks']} ranks: {one['why']}"
    yield f"measured here: {document['measured_text']}"
    yield from document["notes"]
    for row in document["check"] or []:
        if row["ratio"] is not None and math.isfinite(row["ratio"]):
            yield (
                f"check: {row['name']}: predicted {_us(row['predicted_ns'])} us, measured {_us(row['measured_ns'])} us: "
                f"{row['ratio']:.2f}"
            )
    yield f"error: {document['error']['text']}"


def text(document):
    """Returns a prediction as text: the answer, then a row for each stage, or for each world of a sweep."""
    lines = _fold(_answer(document)) + _fold(_head(document)) + _table(document)
    for comment in _comments(document):
        lines += _fold(clean(comment))
    return "\n".join(lines)


def _escape(value):
    return "".join("\\" + c if c in "|\\`*_<>[]#" else c if c.isprintable() else " " for c in value)


def markdown(document):
    """Returns a prediction as Markdown: the answer, the table and the error."""
    columns, rows = _rows(document)
    head = [f"{name} [{unit}]" if unit else name for _, name, unit, *_ in columns]
    lines = [_escape(_answer(document)), "", "| " + " | ".join(head) + " |"]
    lines.append("|" + "".join("---|" if column[5] == 0 else "---:|" for column in columns))
    lines += ["| " + " | ".join(_escape(_cell(column, row, "-")) for column in columns) + " |" for row in rows]
    return "\n".join(lines + ["", f"error: {_escape(document['error']['text'])}", ""])


def csv(document):
    """Returns a prediction as CSV: a line for each stage of each world."""
    return predict.frame(document).to_csv(index=False)
