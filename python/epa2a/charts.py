"""Charts of results: matplotlib draws PNG, SVG and PDF, plotille draws text for terminals.

    from epa2a import charts, results

    chart = charts.tokens(results.load("batch.json"))
    chart.figure()               # a matplotlib Figure, which a notebook shows
    chart.save("latency.svg")    # or .png, .pdf, .txt
    print(chart.text(columns=100))

tokens        median time over tokens, with whiskers from 5 % to 95 % of the samples
distribution  histogram of one run, cumulative distributions of several, on a logarithmic axis
skew          median of each rank against the median of all ranks
stages        medians of stages, stacked
ratio         time over the time of a baseline, with its bounds
trend         median of each run over the time of its start
nights        median of each night

Repetitions of a run in one file are one run, whose samples are pooled. One label in two files is
two runs, except in trend and nights.
"""

import datetime
import fnmatch
import math
import os
import re
from dataclasses import dataclass, field

import numpy

from . import results, results_compare
from .console import clean, write_file

LINES_MOST = 24  # a reader cannot distinguish more
ROWS_MOST = 64
MATPLOTLIB_LEAST = (3, 6)  # of Debian 12
BOUNDS = f"95 %, or all of fewer than {results_compare.INTERVAL_LEAST} runs"
FEW = 20  # samples; with fewer, p5 and p95 are minimum and maximum
STEPS = 200  # of a cumulative distribution
SUFFIXES = (".png", ".svg", ".pdf", ".txt")


@dataclass
class Line:
    """Points of one name. `low` and `high` bound y; a point of `hollow` has no certain verdict."""

    name: str
    x: list
    y: list
    low: list = None
    high: list = None
    hollow: list = None


@dataclass
class Chart:
    """Data of a chart. `marks` are vertical positions x of horizontal bars, by row."""

    title: str
    x_label: str
    y_label: str
    lines: list
    note: str = ""
    style: str = "points"  # or steps, bins, bars
    log_x: bool = False
    log_y: bool = False
    rows: list = field(default_factory=list)
    marks: list = field(default_factory=list)
    dates: bool = False
    whole_x: bool = False  # x counts, such as ranks
    level: float = None  # a horizontal line
    machine: str = ""

    def figure(self):
        """Returns the chart as a Figure of matplotlib. The figure has no window and no state."""
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        if matplotlib.__version_info__ < MATPLOTLIB_LEAST:
            least = ".".join(map(str, MATPLOTLIB_LEAST))
            raise results.ResultsError(
                f"charts need matplotlib {least} or later; version {matplotlib.__version__} is installed"
            )
        count = len(self.rows) if self.style == "bars" else 0
        figure = Figure(figsize=(9.6, max(5.4, 2 + 0.3 * count)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        figure.suptitle(_short(self.title, 100))
        axes.set_xlabel(_plain(self.x_label))
        axes.set_ylabel(_plain(self.y_label))
        axes.set_axisbelow(True)
        axes.grid(True, color="#dddddd")
        {"points": _draw_points, "steps": _draw_steps, "bins": _draw_bins, "bars": _draw_bars}[self.style](
            axes, self
        )
        if self.level is not None:
            axes.axhline(self.level, color="black", linewidth=1)
        if self.log_x:
            sizes = {x for line in self.lines for x in line.x} if self.style == "points" else range(99)
            _set_log(axes.set_xscale, axes.xaxis, sorted(sizes))
        if self.log_y:
            _set_log(axes.set_yscale, axes.yaxis, range(99))
        if self.dates:
            figure.autofmt_xdate()
            _show_single_date(axes, {x for line in self.lines for x in line.x})
        if self.whole_x:
            axes.xaxis.get_major_locator().set_params(integer=True)
        if any(line.name for line in self.lines):
            longest = max(len(_short(line.name)) for line in self.lines)
            columns = max(1, min(3, 120 // (1 + longest)))
            axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=columns, fontsize=8, frameon=False
            )
        figure.supxlabel(_plain("\n".join(filter(None, (self.note, self.machine)))), fontsize=7, x=0.01, ha="left")
        return figure

    def save(self, path, columns=100, overwrite=True, option=""):
        """Writes the chart in the form of the suffix: .png, .svg, .pdf, or .txt. The file appears
        complete, or not at all. Messages begin with the option."""
        suffix = suffix_of(path)
        if suffix == ".txt":
            write_file(path, (self.text(columns) + "\n").encode(), overwrite, option)
            return
        import io

        import matplotlib

        out = io.BytesIO()
        # Equal data make equal files: no date, and ids by a fixed salt. Text stays text in SVG.
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # settings of the user change nothing
            matplotlib.rcParams.update({"svg.hashsalt": "epa2a", "svg.fonttype": "none"})
            self.figure().savefig(out, format=suffix[1:], dpi=150, metadata=_undated(suffix))
        write_file(path, out.getvalue(), overwrite, option)

    def limit_text(self, place, end):
        """Returns the share of a bar of `end` us that its mark reaches."""
        share = self.marks[place] / end if end > 0 and self.marks else math.nan
        return "" if math.isnan(share) else f", limit {100 * share:.0f} %"

    def text(self, columns=100):
        """Returns the chart in characters, followed by its values."""
        from . import charts_text

        return charts_text.draw(self, max(columns, 40))


def suffix_of(path):
    """Returns the suffix of the file of a chart, which selects its form."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in SUFFIXES:
        raise results.ResultsError(f"{path}: a chart is a file {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return suffix


# ---- matplotlib ----


def _plain(text):
    """Returns text that matplotlib prints unchanged: a pair of $ would begin a formula."""
    return clean(text).replace("$", r"\$")


def _short(name, most=64):
    """Returns a name with an ellipsis in its middle if it would fill the picture."""
    return _plain(name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 + 1 :]}")


def _undated(suffix):
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]


def number(value):
    """Returns four significant digits without an exponent: 0.5, 12.35, 1234."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _set_log(set_scale, axis, values):
    """Sets a logarithmic axis with ticks at the values if they are few, else at round numbers."""
    from matplotlib import ticker

    set_scale("log", base=10)
    low, high = axis.get_view_interval()
    if len(values) <= 12:
        axis.set_major_locator(ticker.FixedLocator(values))
    elif high < 10 * low:
        round_numbers = ticker.MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        axis.set_major_locator(ticker.FixedLocator([tick for tick in round_numbers if low <= tick <= high]))
    else:
        subs = (1, 2, 5) if high < 1000 * low else (1,)
        axis.set_major_locator(ticker.LogLocator(base=10, subs=subs, numticks=15))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())


def _show_single_date(axes, dates):
    """The axis of a single date would span four years."""
    if len(dates) == 1:
        date = dates.pop()
        axes.set_xlim(date - datetime.timedelta(days=1), date + datetime.timedelta(days=1))
        axes.set_xticks([date], [f"{date:%Y-%m-%d %H:%M}"])


def _draw_points(axes, chart):
    for line in chart.lines:
        whiskers = None
        if line.low is not None:
            y = numpy.array(line.y, float)
            whiskers = numpy.clip([y - numpy.array(line.low, float), numpy.array(line.high, float) - y], 0, None)
        drawn = axes.errorbar(
            line.x, line.y, yerr=whiskers, marker="o", markersize=4, capsize=3, label=_short(line.name)
        )
        if line.hollow is not None:
            x = [x for x, hollow in zip(line.x, line.hollow) if hollow]
            y = [y for y, hollow in zip(line.y, line.hollow) if hollow]
            axes.plot(x, y, "o", markersize=4, color=drawn[0].get_color(), markerfacecolor="white", zorder=5)


def _draw_steps(axes, chart):
    for line in chart.lines:
        axes.step(line.x, line.y, where="post", label=_short(line.name))
    axes.set_ylim(0, 100)


def _draw_bins(axes, chart):
    line = chart.lines[0]
    axes.bar(line.low, line.y, width=numpy.subtract(line.high, line.low), align="edge", edgecolor="white")


def _draw_bars(axes, chart):
    places = numpy.arange(len(chart.rows))
    left = numpy.zeros(len(chart.rows))
    for line in chart.lines:
        width = numpy.nan_to_num(numpy.array(line.y, float))
        axes.barh(places, width, left=left, label=_short(line.name), height=0.7)
        left += width
    for place, mark in enumerate(chart.marks):
        if not math.isnan(mark):
            axes.plot([mark, mark], [place - 0.42, place + 0.42], color="black", linewidth=2)
    for place, end in enumerate(left):
        axes.text(end, place, f" {end:.1f} us{chart.limit_text(place, end)}", va="center", fontsize=8)
    axes.set_yticks(places, [_short(row) for row in chart.rows])
    axes.set_xlim(0, 1.35 * max([*left, *[m for m in chart.marks if not math.isnan(m)], 1e-9]))
    axes.invert_yaxis()


# ---- pooled runs ----


def _machine(rows):
    first = rows.iloc[0]
    if first["imported"]:
        return "imported from another program, on an unknown machine"
    device = f", {first['device']}" if isinstance(first["device"], str) else ""
    others = " and other machines" if len(rows[["host", "cpu"]].drop_duplicates()) > 1 else ""
    host = f", on {first['host']}" if isinstance(first["host"], str) else ""
    cores = f", {first['cores']:.0f} cores" if first["cores"] > 0 else ""
    cpu = first["cpu"] if isinstance(first["cpu"], str) else "unknown processor"
    return f"{cpu}{cores}{device}{host}{others}; epa2a {first['version']}"


def _titled(rows, titles, by_file=True):
    """Adds the name of the line of each run. One name in two files gets the file, so that files A
    and B can be compared."""
    rows = rows.assign(title=titles)
    if by_file and (rows.groupby("title")["path"].nunique() > 1).any():
        rows["title"] = rows["title"] + " (" + rows["path"] + ")"
    return rows


def _by_label(rows):
    """Names lines by label, without the number of a repetition."""
    return _titled(rows, [results.strip_repetition(label)[0] or name for label, name in zip(rows["label"], rows["name"])])


def _natural(text):
    """Returns the key of an order in which 2 tokens precede 16 tokens."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text)]


def _limit(names, most, what):
    if len(names) > most:
        raise results.ResultsError(
            f"{len(names)} {what} cannot be distinguished, {most} at most; --only selects runs"
        )


def _pool(rows):
    """Returns the sorted samples of all rows in microseconds."""
    return numpy.sort(numpy.concatenate(list(rows["samples_ns"]))) / 1e3


def _size_texts(rows):
    operation = rows["operation"].iloc[0]
    return results.SIZES[operation][:3]


def tokens(frame, stage=None, only=()):
    """Median time over tokens, or over the size of another operation: a line for each setting."""
    rows = results.choose(frame, stage, only)
    lacks = rows[~(rows["size"] > 0)]
    key, unit, label = _size_texts(rows)
    if len(lacks) > 0:
        raise results.ResultsError(f"{lacks['path'].iloc[0]}: '{lacks['label'].iloc[0]}' has no {key}")
    rows = _titled(rows, results.name_runs(list(rows["document"])))
    lines = []
    for title, one in sorted(rows.groupby("title"), key=lambda group: _natural(group[0])):
        line = Line(title, [], [], [], [])
        for size, same in one.groupby("size"):
            pool = _pool(same)
            line.x.append(size)
            line.y.append(results.percentile(pool, 500))
            line.low.append(results.percentile(pool, 0 if len(pool) < FEW else 50))
            line.high.append(results.percentile(pool, 1000 if len(pool) < FEW else 950))
        lines.append(line)
    _limit(lines, LINES_MOST, "lines")
    return Chart(
        f"Latency over {unit}: {rows['stage'].iloc[0]}", f"{label} ({key})", "time [us]", lines,
        note=f"medians; whiskers: 5 % to 95 % of samples, all of them below {FEW} samples",
        log_x=True, log_y=True, machine=_machine(rows),
    )  # fmt: skip


def _histogram(title, stage, pool, machine):
    """Bins have equal widths on the logarithmic axis."""
    low, high = pool[0], pool[-1]
    count = int(min(max(2 * len(pool) ** (1 / 3), 5), 40))
    if high <= low:
        low, high = low * 0.99, high * 1.01
    edges = numpy.geomspace(low, high, count + 1)
    edges[0], edges[-1] = low, high
    counts = numpy.histogram(pool, edges)[0]
    line = Line("", list(numpy.sqrt(edges[:-1] * edges[1:])), list(counts), list(edges[:-1]), list(edges[1:]))
    return Chart(
        f"Distribution of samples: {stage}, {title}", "time [us]", "samples", [line],
        note=f"{len(pool)} samples, median {results.percentile(pool, 500):.4g} us, largest {pool[-1]:.4g} us",
        style="bins", log_x=True, machine=machine,
    )  # fmt: skip


def distribution(frame, stage=None, only=()):
    """Samples of runs, pooled over repetitions: a histogram of one run, else a cumulative
    distribution of each run."""
    rows = _by_label(results.choose(frame, stage, only))
    rows = rows.sort_values(["size", "title"], kind="stable")
    groups = list(rows.groupby("title", sort=False))
    _limit(groups, LINES_MOST, "runs")
    # A logarithmic axis has no 0; the least step of clocks is above 1 ps.
    pools = [(title, numpy.maximum(_pool(one), 1e-6)) for title, one in groups]
    if len(pools) == 1:
        return _histogram(pools[0][0], rows["stage"].iloc[0], pools[0][1], _machine(rows))
    lines = []
    for title, pool in pools:
        places = numpy.unique(numpy.arange(STEPS + 1) * (len(pool) - 1) // STEPS)
        lines.append(Line(f"{title} ({len(pool)} samples)", list(pool[places]), list(100 * (places + 1) / len(pool))))
    return Chart(
        f"Distribution of samples: {rows['stage'].iloc[0]}", "time [us]", "samples up to that time [%]", lines,
        note="repetitions are pooled; a line further left is faster, a steeper line is steadier",
        style="steps", log_x=True, machine=_machine(rows),
    )  # fmt: skip


def _skew_line(title, ranks):
    """Returns the distance of each rank's median from the median of all ranks, in percent, or None.
    Repetitions count by the median of their values."""
    of_rank = ranks.groupby("rank")["rank_median_ns"].median().dropna()
    middle = results_compare.median(of_rank) if len(of_rank) > 1 else 0
    if middle <= 0:
        return None
    off = 100 * (of_rank / middle - 1)
    return Line(f"{title}, slowest: rank {off.idxmax()} ({off.max():+.1f} %)", list(off.index), list(off))


def skew(frame, stage=None, only=()):
    """Medians of ranks: a line for each run, or for each stage of a single run."""
    rows = _by_label(results.choose(frame, stage, only))
    titles = list(dict.fromkeys(rows["title"]))
    shown = rows["stage"].iloc[0]
    if len(titles) > 1 or stage is not None:
        parts = [(title, rows[rows["title"] == title]) for title in titles]
    else:
        all_stages = frame[frame["run"].isin(rows["run"]) & (frame["n"] > 0)]
        parts = list(all_stages.groupby("stage", sort=False))
        shown = titles[0]
    lines = [_skew_line(title, results.ranks(part)) for title, part in parts]
    lines = [line for line in lines if line is not None]
    _limit(lines, LINES_MOST, "runs")
    if not lines:
        raise results.ResultsError(f"{rows['path'].iloc[0]}: no run has times of two ranks or more to compare")
    return Chart(
        f"Ranks: {shown}", "rank", "off the median of its line [%]", lines, level=0, whole_x=True,
        note="median of each rank against the median of the ranks of its line", machine=_machine(rows),
    )  # fmt: skip


def stages(frame, stage=None, only=()):
    """Medians of stages, stacked: a row for each run, with repetitions pooled."""
    rows = _by_label(results.choose(frame, stage, only))
    titles = dict(zip(rows["run"], rows["title"]))
    labels = list(dict.fromkeys(rows["title"]))
    _limit(labels, ROWS_MOST, "runs")
    timed = frame[frame["run"].isin(titles) & (frame["n"] > 0)]
    timed = timed.assign(title=timed["run"].map(titles))
    names = [name for name in dict.fromkeys(timed["stage"]) if name not in results.TOTALS + ("service",)]
    if not names:
        raise results.ResultsError(f"{rows['path'].iloc[0]}: no run has stages beside the total")
    lines = []
    for name in names:
        parts = [timed[(timed["title"] == label) & (timed["stage"] == name)] for label in labels]
        medians = [results.percentile(_pool(part), 500) if len(part) else math.nan for part in parts]
        lines.append(Line(name, medians, medians))
    limits = {label: list(rows[rows["title"] == label]["peak_ns"].dropna()) for label in labels}
    peaks = [results_compare.median(limits[label]) / 1e3 if limits[label] else math.nan for label in labels]
    return Chart(
        "Stages", "time [us]", "", lines, style="bars", rows=labels, marks=peaks, machine=_machine(rows),
        note="medians of stages, one after the other; limit: the least time that the links allow",
    )  # fmt: skip


def _is_base(baseline, row_name, labels):
    return baseline == row_name or any(
        fnmatch.fnmatchcase(label, baseline) or results.strip_repetition(label)[0] == baseline for label in labels
    )


def ratio(frame, stage=None, only=(), baseline=None):
    """Time over the time of a baseline of the same size: a label, name or glob of labels; by
    default the first run. A hollow point is undecided: its bounds include 1, or have too few runs."""
    rows = results.choose(frame, stage, only)
    rows = _titled(rows, results.name_runs(list(rows["document"])))
    spreads = {}
    for (title, size), one in rows.fillna({"size": 0}).groupby(["title", "size"], sort=False):
        spreads[title, size] = results_compare.spread_of(list(one["samples_ns"]))
    names = list(dict.fromkeys(title for title, _ in spreads))
    if baseline is None:
        base = names[0]
    else:
        found = [t for t in names if _is_base(baseline, t, rows[rows["title"] == t]["label"])]
        if not found:
            raise results.ResultsError(f"--baseline {baseline}: no run has that name or label")
        if len(found) > 1:
            raise results.ResultsError(f"--baseline {baseline}: '{found[0]}' and '{found[1]}' match; name one of them")
        base = found[0]
    lines = []
    for name in names:
        line = Line(name, [], [], [], [], [])
        for (title, size), spread in sorted(spreads.items(), key=lambda item: item[0][1]):
            if title != name or name == base or (base, size) not in spreads:
                continue
            value, low, high = results_compare.ratio_with_bounds(spreads[base, size], spread)
            if all(math.isfinite(x) for x in (value, low, high)):
                line.x.append(size)
                for values, x in zip((line.y, line.low, line.high), (value, low, high)):
                    values.append(x)
                few = not results_compare.are_separable(spreads[base, size].units, spread.units)
                line.hollow.append(few or low <= 1 <= high)
        if line.x:
            lines.append(line)
    if not lines:
        raise results.ResultsError(f"no other run has the size of the baseline '{base}'")
    _limit(lines, LINES_MOST, "lines")
    key, _, label = _size_texts(rows)
    sized = min(min(line.x) for line in lines) > 0
    return Chart(
        f"Ratio to {base}: {rows['stage'].iloc[0]}", f"{label} ({key})", "time / time of the baseline", lines,
        log_x=sized, log_y=True, level=1, machine=_machine(rows),
        note=f"ratio of medians; whiskers: bounds of both medians ({BOUNDS}); hollow or ?: undecided, the bounds include 1, or too few runs",
    )  # fmt: skip


def _night(start):
    """Returns the date on which the night of a time began: a night ends at noon, UTC."""
    return (start - datetime.timedelta(hours=12)).floor("D")


def _over_time(frame, stage, only, by_night):
    rows = results.choose(frame, stage, only)
    rows = rows[rows["started"].notna()]
    if len(rows) == 0:
        raise results.ResultsError("no run has the time of its start")
    names = results.name_runs(list(rows["document"]))
    unit = _size_texts(rows)[1]
    if rows["size"].nunique() > 1:
        names = [f"{name}, {size:.0f} {unit}" for name, size in zip(names, rows["size"])]
    rows = _titled(rows, names, by_file=False).assign(when=rows["started"])
    if by_night:
        rows["when"] = rows["started"].map(_night)
    lines = []
    for title, one in sorted(rows.groupby("title"), key=lambda group: _natural(group[0])):
        line = Line(title, [], [], [], [])
        for when, same in one.groupby("when"):
            spread = results_compare.spread_of(list(same["samples_ns"]))
            line.x.append(when.to_pydatetime().replace(tzinfo=None))
            line.y.append(spread.median / 1e3)
            line.low.append(spread.low / 1e3)
            line.high.append(spread.high / 1e3)
        lines.append(line)
    _limit(lines, LINES_MOST, "lines")
    what = "nights" if by_night else "time"
    return Chart(
        f"Trend over {what}: {rows['stage'].iloc[0]}", "night that began on this day" if by_night else "start (UTC)",
        "time [us]", lines, log_y=True, dates=True, machine=_machine(rows),
        note=f"medians; whiskers: bounds of the median ({BOUNDS}) over the runs of "
        + ("a night" if by_night else "one start, or over blocks of samples"),
    )  # fmt: skip


def trend(frame, stage=None, only=()):
    """Median of each run over the time of its start, from results of several days."""
    return _over_time(frame, stage, only, by_night=False)


def nights(frame, stage=None, only=()):
    """Median of all runs of a night; a night begins and ends at noon, UTC."""
    return _over_time(frame, stage, only, by_night=True)


KINDS = {
    "tokens": tokens, "distribution": distribution, "skew": skew, "stages": stages, "ratio": ratio,
    "trend": trend, "nights": nights,
}  # fmt: skip


def draw(frame, kind=None, **options):
    """Returns a chart of a kind; by default tokens if the runs differ in size, distribution of one
    run, else stages."""
    if kind is None:
        rows = _by_label(results.choose(frame, options.get("stage"), options.get("only", ())))
        sizes = rows["size"][rows["size"] > 0]
        kind = "tokens" if sizes.nunique() > 1 else "distribution" if rows["title"].nunique() == 1 else "stages"
    return KINDS[kind](frame, **options)


def prediction(document):
    """Times of a sweep of predict over ranks."""
    worlds = [world for world in document.get("worlds", []) if world.get("total")]
    if not worlds:
        raise results.ResultsError("no world of the sweep is possible: there is nothing to draw")
    phases = worlds[0]["stages"] if len(worlds[0]["stages"]) > 1 else []
    lines = []
    for place, phase in enumerate([*phases, worlds[0]["total"]]):
        times = [world["stages"][place] if place < len(phases) else world["total"] for world in worlds]
        lines.append(
            Line(phase["name"], [world["ranks"] for world in worlds],
                 *[[math.nan if time.get(key) is None else time[key] / 1e3 for time in times]
                   for key in ("ns", "low_ns", "high_ns")])
        )  # fmt: skip
    return Chart(
        f"Predicted: {document.get('file')}", "ranks", "time [us]", lines, log_x=True, log_y=True,
        note="whiskers: predictions without one measured world, and their error",
    )  # fmt: skip
