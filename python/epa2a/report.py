"""A page of HTML about results: conclusions, tables, charts, failures, warnings and machines.

    from epa2a import report, results

    page = report.render(results.load("batch.json"))

The page is one file without scripts and without addresses. Its conclusions are sentences of
results_compare: a run is called fastest only if all others are slower, and as fast only if the
bounds of its loss support this. Everything else is undecided.
"""

import base64
import io
import math

import jinja2

from . import charts, results, results_compare
from .console import clean

NAMED_MOST = 8  # runs with one warning


def _microseconds(ns):
    if ns is None or math.isnan(ns):
        return "–"
    return f"{ns / 1e3:.2f}" if ns < 1e8 else f"{ns / 1e3:.0f}"


def _bytes(value):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.1f} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return ""


def _picture(chart):
    """Returns a chart as an address of data; a picture of its own shares no ids with the page."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "epa2a", "svg.fonttype": "path"})
        chart.figure().savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def _charts(frame, only):
    """Returns the charts that the results allow; a reason replaces a chart that cannot be drawn."""
    rows = results.choose(frame, only=only)
    settings = len(set(results.name_runs(list(rows["document"]))))
    kinds = [None]
    if settings > 1:
        kinds.append("ratio")
    kinds += ["stages", "distribution"]
    if rows["started"].dropna().dt.date.nunique() > 1:
        kinds.append("nights")
    drawn, titles = [], set()
    for kind in kinds:
        try:
            chart = charts.draw(frame, kind, only=only)
        except results.ResultsError as error:
            drawn.append({"reason": f"No chart of {kind}: {error}."})
            continue
        if chart.title not in titles:
            titles.add(chart.title)
            drawn.append({"title": chart.title, "note": chart.note, "picture": _picture(chart)})
    return drawn


def _stage_columns(frame):
    names = [name for name in dict.fromkeys(frame["stage"].dropna()) if name not in results.TOTALS]
    return names + [name for name in results.TOTALS if name in set(frame["stage"])]


def _counts(run):
    """Returns the checked iterations and elements of a run, and its wrong elements, if verify ran it."""
    if run.get("verb") != "verify":
        return ["", "", ""]
    return [f"{results.at(run, 'verify.' + key, 0):.0f}" for key in ("iterations", "compared", "wrong")]


def _run_rows(frame, columns, unmeasured):
    rows = []
    for number, one in frame.groupby("run", sort=True):
        first = one.iloc[0]
        median = dict(zip(one["stage"], one["median_ns"]))
        rows.append(
            {
                "label": first["label"] or first["name"],
                "status": first["status"],
                "error": first["error"] if isinstance(first["error"], str) else "",
                "samples": int(one["n"].max()),
                "times": [_microseconds(median.get(column, math.nan)) for column in columns],
                "counts": _counts(first["document"]),
            }
        )
    for run in unmeasured:
        row = {"label": run["label"], "status": run["end"], "error": run["error"], "samples": 0}
        rows.append({**row, "times": ["–"] * len(columns), "counts": ["", "", ""]})
    return rows


def _figure_name(key):
    """Returns the heading of a figure of a stage: "ns.p99" is p99 [us]."""
    known = {"peak_ns": "limit [us]", "of_peak": "of limit [%]", "ns.n": "samples", "ns.outliers": "outliers"}
    section, _, name = key.rpartition(".")
    unit = {"ns": " [us]", "rate": " [GB/s]"}.get(section, "")
    return known.get(key, f"{name}{unit}" if unit or not section else key)


def _figure_text(key, value):
    if not results.is_number(value):
        return "–"
    if key.startswith("ns.") and key not in ("ns.n", "ns.outliers") or key == "peak_ns":
        return _microseconds(value)
    return f"{100 * value:.1f}" if key == "of_peak" else charts.number(value)


def _stage_figures(run):
    """Returns the figures of a run: a row for each figure, with a cell for each stage."""
    stages = [results.flatten(stage) for stage in run.get("stages") or []]
    keys = dict.fromkeys(key for stage in stages for key, value in stage.items() if results.is_number(value))
    keys.pop("line", None)  # of an imported file
    return {
        "stages": [stage["name"] for stage in stages],
        "rows": [(_figure_name(key), [_figure_text(key, stage.get(key)) for stage in stages]) for key in keys],
    }


def _details(frame):
    """Returns figures and experiment of each run."""
    out = []
    for row in frame.drop_duplicates("run").itertuples():
        experiment = results.flatten(row.document.get("experiment"))
        settings = "\n".join(f"{key}: {results.show(value)}" for key, value in experiment.items())
        out.append({"label": row.label or row.name, "settings": settings, **_stage_figures(row.document)})
    return out


def _notes(frame, batches):
    """Returns the notes of the user, and the orders of runs that are not the order of the file."""
    notes = {}
    for run in frame.drop_duplicates("run")["document"]:
        if isinstance(run.get("context"), dict) and run["context"]:
            notes["Context: " + ", ".join(f"{key}={results.show(value)}" for key, value in run["context"].items())] = None
    for batch in batches:
        if batch["order"] not in (None, "declared"):
            notes[f"Order of runs: {batch['order']}, by seed {batch['seed']}"] = None
    return list(notes)


def _warnings(frame):
    """Returns each warning once, with the runs that have it."""
    runs = {}
    for row in frame.drop_duplicates("run").itertuples():
        for text in row.document.get("warnings") or []:
            runs.setdefault(str(text), []).append(row.label)
    out = []
    for text, labels in runs.items():
        more = len(labels) - NAMED_MOST
        out.append((text, ", ".join(labels[:NAMED_MOST]) + (f" and {more} more" if more > 0 else "")))
    return out


def _machines(frame):
    """Returns a description of each machine and build, with the peak of the links in its first run."""
    found = {}
    for run in frame.drop_duplicates("run")["document"]:
        machine = run.get("machine") or {}
        build = machine.get("build") or {}
        parts = [
            machine.get("cpu") or "unknown processor",
            f"{machine['cores']} cores" if machine.get("cores") else None,
            _bytes(machine["memory_bytes"]) if machine.get("memory_bytes") else None,
            results.at(machine, "device.device"),
            machine.get("kernel"),
            f"on {machine['host']}" if machine.get("host") else None,
            f"epa2a {build['version']}" if build.get("version") else None,
            f"commit {build['git']}" if build.get("git") else None,
            build.get("compiler"),
            f"{build['isa']} kernels" if build.get("isa") else None,
        ]
        rate, latency_ns = (results.at(machine, f"links.{key}") for key in ("rate", "latency_ns"))
        link = ""
        if results.is_number(rate) and results.is_number(latency_ns):
            link = f"; link peak: {rate:.2f} GB/s out of a rank, {latency_ns / 1e3:.2f} us for a signal"
        found.setdefault(", ".join(str(part) for part in parts if part), link)
    return [machine + link for machine, link in found.items()]


def _groups(frame, only, close):
    try:
        groups = results_compare.best(frame, only=only, close=close)
    except results.ResultsError:
        return []
    out = []
    for group in groups:
        facts = [group.title]
        facts += [f"delivers: {group.delivers}"] if group.delivers else []
        facts += [f"differs from a group above: {group.note}"] if group.note else []
        rows = [
            {
                "size": f"{contest.size:.0f}" if contest.size else "–",
                "name": one.name,
                "runs": one.runs,
                "times": [_microseconds(x) for x in (one.spread.median, one.spread.low, one.spread.high)],
                "verdict": "least median" if one.verdict == "best" else one.loss_text(),
                "kind": "" if one.as_fast else "slower" if one.verdict == "slower" else "undecided",
            }
            for contest in group.contests
            for one in contest.candidates
        ]
        overall = None
        if group.overall and any(len(contest.candidates) > 1 for contest in group.contests):
            name, mean, worst = group.overall
            overall = (
                f"One setting for all sizes: {name}; its medians are {100 * (mean - 1):.1f} % behind the least of each "
                f"size on average, and {100 * (worst - 1):.1f} % at worst."
            )
        out.append(
            {
                "facts": "; ".join(facts),
                "unit": group.unit,
                "sentences": [contest.sentence(group.unit) for contest in group.contests],
                "rows": rows,
                "overall": overall,
                "one_run": any(row["runs"] == 1 for row in rows),
            }
        )
    return out


def render(frame, title=None, only=(), close=results_compare.CLOSE):
    """Returns a page about a frame of results.load(). Runs that failed or have not run are listed with the reason."""
    chosen = frame[frame["document"].map(lambda run: results.is_chosen(run, only)).astype(bool)]
    batches = frame.attrs.get("batches", [])
    unmeasured = [run for batch in batches for run in batch["unmeasured"] if results.is_chosen(run, only)]
    if len(chosen) == 0 and not unmeasured:
        raise results.ResultsError(f"--only '{only[0]}': no run has that label or id" if only else "there are no results")
    columns = _stage_columns(chosen)
    timed = ((chosen["n"] > 0) & chosen["ok"].astype(bool)).any()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("epa2a", ""), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    files = list(dict.fromkeys(chosen["path"]))
    page = environment.get_template("report_page.html").render(
        title=title or "epa2a: " + ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else ""),
        close=f"{100 * close:g}",
        groups=_groups(chosen, only, close) if timed else [],
        columns=columns,
        runs=_run_rows(chosen, columns, unmeasured),
        verified=any(run.get("verb") == "verify" for run in chosen["document"]),
        notes=_notes(chosen, batches),
        details=_details(chosen),
        charts=_charts(chosen, only) if timed else [],
        failures=results.failures(chosen),
        warnings=_warnings(chosen),
        machines=_machines(chosen),
    )
    return clean(page)
