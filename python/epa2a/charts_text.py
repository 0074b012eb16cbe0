"""Charts in characters, by plotille. plotille has linear axes only, so logarithms are plotted, and
the labels of the axes show the values."""

import datetime
import math
import shutil
import textwrap

from .charts import number
from .console import clean

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FILE_COLUMNS = 80  # of text in a file
DAY_S = 86400


def terminal_columns():
    return shutil.get_terminal_size((FILE_COLUMNS, 24)).columns


def _wrap(text, columns):
    return textwrap.wrap(text, columns, break_on_hyphens=False) or []


def table(head, rows, columns):
    """Returns lines of a table whose first column is text and whose others are numbers."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    widths[0] = min(widths[0], max(8, columns - sum(widths[1:]) - 2 * len(widths)))
    lines = []
    for row in [head, *rows]:
        cells = [row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"]
        cells[0] = cells[0].ljust(widths[0])
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return lines


def _bars(chart, columns):
    """Draws a row of blocks for each run; each stage has a letter."""
    letters = {line.name: LETTERS[place % 26] for place, line in enumerate(chart.lines)}
    sums = [sum(v for v in values if not math.isnan(v)) for values in zip(*(line.y for line in chart.lines))]
    label = min(max(len(row) for row in chart.rows), columns // 3)
    room = columns - label - 28
    scale = room / max([*sums, 1e-9])
    out = ["  ".join(f"{letter}: {name}" for name, letter in letters.items())]
    for place, row in enumerate(chart.rows):
        end, bar = 0.0, ""
        for line in chart.lines:
            end += 0 if math.isnan(line.y[place]) else line.y[place]
            bar += letters[line.name] * (round(end * scale) - len(bar))
        row = row if len(row) <= label else row[: label - 1] + "…"
        out.append(f"{row.ljust(label)} |{bar} {number(sums[place])} us{chart.limit_text(place, sums[place])}")
    head = ["", *[line.name for line in chart.lines], "sum"]
    rows = [
        [row, *[number(line.y[place]) for line in chart.lines], number(sums[place])]
        for place, row in enumerate(chart.rows)
    ]
    return out + ["", *table(head, rows, columns)]


def _power(logarithm):
    """Returns 10 to a power that a float holds: the room beside the largest value may not."""
    return 10 ** min(logarithm, 300)


def _canvas(chart, columns):
    import plotille  # the other parts of this module do without

    figure = plotille.Figure()
    figure.width = max(20, columns - 24)
    figure.height = 18
    figure.x_label, figure.y_label = "X", "Y"
    figure.with_colors = False
    figure.origin = False

    def to_x(value):
        value = value.replace(tzinfo=datetime.timezone.utc).timestamp() if chart.dates else float(value)
        return math.log10(value) if chart.log_x else value

    def to_y(value):
        return math.log10(value) if chart.log_y else float(value)

    def show_x(value, _next):
        if chart.dates:
            moment = datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
            return moment.strftime("%m-%d")
        return number(_power(value) if chart.log_x else value)

    def show_y(value, _next):
        return number(_power(value) if chart.log_y else value)

    points = []
    for place, line in enumerate(chart.lines):
        pairs = [
            (to_x(x), to_y(y))
            for x, y in zip(line.x, line.y)
            if not (chart.log_y and y <= 0) and not (chart.log_x and x <= 0)
        ]
        if chart.style == "bins":
            pairs = [(x, h) for x, y in pairs for h in (0.0, y, 0.0)]
        if chart.style == "steps":
            pairs = [p for a, b in zip(pairs, pairs[1:]) for p in (a, (b[0], a[1]))] + pairs[-1:]
        if not pairs:
            continue
        points.extend(pairs)
        xs, ys = zip(*pairs)
        figure.plot(xs, ys)
        if chart.style != "bins" and len(chart.lines) > 1:
            marked = len(xs) // 2 if chart.style == "steps" else len(xs) - 1
            # plotille has no line of characters for the upper limit.
            y = min(ys[marked], 99) if chart.style == "steps" else ys[marked]
            figure.text([xs[marked]], [y], [LETTERS[place % 26]])
    _set_limits(figure.set_x_limits, [p[0] for p in points], DAY_S if chart.dates else None)
    if chart.style == "steps":
        figure.set_y_limits(0, 100)
    else:
        _set_limits(figure.set_y_limits, [p[1] for p in points])
    figure.x_ticks_fkt, figure.y_ticks_fkt = show_x, show_y
    return figure.show().splitlines()


def _set_limits(set_limits, values, single=None):
    """Leaves room beside the values: `single` beside a single value, or a tenth of it."""
    low, high = min(values), max(values)
    room = (high - low) * 0.03 or single or abs(high) * 0.1 or 1.0
    set_limits(low - room, high + room)


def _values(chart, columns):
    """Returns the values of a chart of points, which characters show coarsely."""
    if chart.style == "steps":
        rows = []
        for place, line in enumerate(chart.lines):
            quantiles = [next(x for x, y in zip(line.x, line.y) if y >= q) for q in (5, 50, 95)]
            name = f"{LETTERS[place % 26]}: {line.name}"
            rows.append([name, *[number(x) for x in quantiles], number(line.x[-1])])
        return table(["time [us]", "5 %", "median", "95 %", "largest"], rows, columns)
    if chart.style == "bins":
        return []
    out = []
    for place, line in enumerate(chart.lines):
        head = f"{LETTERS[place % 26]}: {line.name}" if len(chart.lines) > 1 else line.name
        out.extend(_wrap(head, columns))
        bounds = line.low is not None
        rows = []
        for n, x in enumerate(line.x):
            shown = x.strftime("%Y-%m-%d %H:%M") if chart.dates else number(x)
            mark = "?" if line.hollow is not None and line.hollow[n] else ""
            more = [number(line.low[n]), number(line.high[n]) + mark] if bounds else []
            rows.append(["  " + shown, number(line.y[n]), *more])
        head = ["  " + ("start" if chart.dates else chart.x_label.split(" (")[0]), "value"]
        out.extend(table(head + (["low", "high"] if bounds else []), rows, columns))
    return out


def draw(chart, columns):
    """Returns the chart, and its values, in lines of up to `columns` characters."""
    lines = _wrap(chart.title, columns)
    if chart.style == "bars":
        lines += _bars(chart, columns)
    else:
        lines += [line[:columns].rstrip(" \u2800") for line in _canvas(chart, columns)]
        lines += _wrap(f"Y: {chart.y_label}; X: {chart.x_label}", columns) + [""] + _values(chart, columns)
    lines.append("")
    for text in (chart.note, chart.machine):
        lines += _wrap(text, columns)
    return clean("\n".join(lines))
