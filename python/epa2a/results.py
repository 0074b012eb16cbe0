"""Results of the program epa2a in pandas.

    from epa2a import results

    frame = results.load("batch.json", "nights/")      # a row for each stage of each run
    frame[frame.stage == "total"].groupby("name").median_ns.min()
    results.samples(frame)                             # a row for each sample
    results.ranks(frame)                               # a row for each rank

A path is a JSON document of --json, JSON lines of --json-lines, or a folder of --out-dir. Times are
nanoseconds. Runs that failed have rows too: `ok` is False, and charts and reports leave them out.
"""

import fnmatch
import json
import os
import re

import numpy
import pandas

from .result_files import (  # noqa: F401  users of results need no second module
    NUMBER, RUN_SHAPE, SCHEMA, TEXT, ResultsError, at, check_shape, documents, flatten, is_number, parse, read_text,
)  # fmt: skip

# The key of the experiment that is the size of a run, by operation: key, unit, label of an axis,
# and the other sections that describe the problem.
SIZES = {
    "moe": ("moe.max_tokens", "tokens", "tokens of a rank", ("moe", "routing", "tokens")),
    "allgather": ("allgather.max_rows", "rows", "rows of a rank", ("allgather", "tokens")),
    "ag_gemm": ("gemm.m", "rows", "rows of all ranks", ("gemm", "tokens")),
    "collective": ("collective.bytes", "bytes", "bytes", ("collective",)),
}

# Rows of whole iterations, the usual one first.
TOTALS = ("total", "wall", "latency")

# Keys of an experiment that select or configure a plugin; keys that do not change the measured work.
MEANS = ("launcher", "backend", "transport", "algorithm", "api")
MEASURES = (
    "model", "run", "verify", "expect", "profile", "name", "timeout", "seed",
    "bench.warmup", "bench.iterations", "bench.ci95", "bench.min_iterations", "bench.min_time",
    "bench.max_time", "bench.check",
)  # fmt: skip

# Properties of a machine that differ between two runs on one machine.
VARYING = (
    "device.clock", "device.memory_clock", "device.throttle", "device.power", "device.temperature",
    "host", "kernel", "load_average", "timer_ns", "memory_bytes", "build.version", "build.git",
    "build.compiler", "build.libc", "build.plugin_abi", "build.isa_refused", "environment", "links",
)  # fmt: skip

COLUMNS = (
    "run", "path", "label", "repetition", "id", "named", "name", "verb", "operation", "status", "ok",
    "error", "started", "host", "cpu", "cores", "device", "version", "git", "ranks", "size",
    "algorithm", "transport", "backend", "imported", "fault", "stage", "n", "min_ns", "median_ns",
    "p95_ns", "p99_ns", "p999_ns", "max_ns", "mean_ns", "stdev_ns", "low_ns", "high_ns", "goodput",
    "wire", "peak_ns", "samples_ns", "document",
)  # fmt: skip


def is_below(key, names):
    """Returns True if a dotted key is one of the names, or below one."""
    return any(key == name or key.startswith(name + ".") for name in names)


def size_key(run):
    """Returns the operation of a run with its SIZES: of a fused layer, of its problem."""
    experiment = run.get("experiment")
    if at(experiment, "collective") is not None:
        return "collective"
    for operation, (key, *_) in SIZES.items():
        if is_number(at(experiment, key)) and at(experiment, key) > 0:
            return operation
    return run.get("operation") if run.get("operation") in SIZES else "moe"


def strip_repetition(label):
    """Returns a label without the number of a repetition, and this number: "wide #3"."""
    found = re.fullmatch(r"(.*?) *#([0-9]+)", label, re.DOTALL)
    return (found[1], int(found[2])) if found else (label, None)


def show(value):
    """Returns a value of an experiment in plain notation."""
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _number(value):
    return float(value) if is_number(value) else numpy.nan


def _samples(path, stage):
    for number, ns in enumerate(stage["samples_ns"]):
        if ns < 0:
            raise ResultsError(f"{path}: sample {number} of stage {stage['name']} is not a time of 0 or more")
    return numpy.array(stage["samples_ns"], dtype=float)


def _stage_row(path, stage):
    samples = _samples(path, stage)
    ns = stage.get("ns") or {}
    low, high = ns["ci95"] if len(ns.get("ci95") or []) == 2 else (None, None)
    median = _number(ns.get("median"))
    if numpy.isnan(median) and len(samples) > 0:
        median = percentile(numpy.sort(samples), 500)
    rate = stage.get("rate")
    return {
        "stage": stage["name"],
        "n": len(samples),
        "min_ns": _number(ns.get("min", stage.get("min_ns"))),
        "median_ns": median,
        "p95_ns": _number(ns.get("p95")),
        "p99_ns": _number(ns.get("p99")),
        "p999_ns": _number(ns.get("p999")),
        "max_ns": _number(ns.get("max", stage.get("max_ns"))),
        "mean_ns": _number(ns.get("mean")),
        "stdev_ns": _number(ns.get("stdev")),
        "low_ns": _number(low),
        "high_ns": _number(high),
        "goodput": _number(at(rate, "goodput") if isinstance(rate, dict) else rate),
        "wire": _number(at(rate, "wire")) if isinstance(rate, dict) else numpy.nan,
        "peak_ns": _number(stage.get("peak_ns")),
        "samples_ns": samples,
    }


def _run_rows(path, number, run):
    check_shape(f"{path}: result {number}", run, RUN_SHAPE)
    operation = size_key(run)
    label = run.get("label") or run.get("name") or ""
    repetition = strip_repetition(label)[1]
    common = {
        "run": number,
        "path": path,
        "label": label,
        "repetition": repetition if repetition is not None else numpy.nan,
        "id": run.get("id"),
        "named": run.get("run"),
        "verb": run.get("verb"),
        "operation": operation,
        "status": run.get("status"),
        # A run that missed its expectations still has valid measurements.
        "ok": run.get("status") in ("ok", "missed"),
        "error": at(run, "error.text"),
        "started": run.get("started"),
        "host": at(run, "machine.host"),
        "cpu": at(run, "machine.cpu"),
        "cores": _number(at(run, "machine.cores")),
        "device": at(run, "machine.device.device"),
        "version": at(run, "machine.build.version"),
        "git": at(run, "machine.build.git"),
        "ranks": _number(at(run, "experiment.ranks")),
        "size": _number(at(run, "experiment." + SIZES[operation][0])),
        "algorithm": at(run, "experiment.algorithm.name"),
        "transport": at(run, "experiment.transport.name"),
        "backend": at(run, "experiment.backend.name"),
        "imported": run.get("source") is not None,
        "fault": isinstance(run.get("fault"), dict),
        "document": run,
    }
    stages = run.get("stages") or []
    if not stages:
        return [{**common, "stage": None, "n": 0, "samples_ns": numpy.array([])}]
    return [{**common, **_stage_row(path, stage)} for stage in stages]


# ---- names ----


def _plugin_section(key):
    """Returns the section of a key that selects a plugin or kind, such as algorithm.name, or ''."""
    section, dot, last = key.partition(".")
    return section if dot and last in ("name", "kind") else ""


def name_runs(runs):
    """Returns names that distinguish runs: the name in runs:, else ALGORITHM/TRANSPORT, followed by
    the keys in which runs of that name or algorithm differ, except the size. Keys that follow from
    the model have no part in a name."""
    flat = [flatten(run.get("experiment")) for run in runs]
    slots = {}

    def slot(run, key, of_model=False):
        section = {} if _plugin_section(key) or "." not in key else at(run, f"experiment.{key.split('.')[0]}")
        section = section if isinstance(section, dict) else {}
        model = at(run, "experiment.model.name") if of_model else ""
        place = (key, run.get("run"), section.get("name"), section.get("kind"), model)
        return slots.setdefault(place, {"n": 0, "values": set()})

    def note(run, key, value, of_model=False):
        one = slot(run, key, of_model)
        one["n"] += 1
        one["values"].add(json.dumps(value, sort_keys=True))
        return one

    for run, values in zip(runs, flat):
        for section in {key.split(".")[0] for key in values if "." in key}:
            note(run, section + ".", True)
        for key, value in values.items():
            note(run, key, value)
            if is_below(key, ("moe", "expert")) and len(note(run, key, value, True)["values"]) > 1:
                slot(run, key)["beyond_model"] = True

    def is_shown(run, key):
        operation = size_key(run)
        plugins = () if run.get("run") else ("algorithm.name", "transport.name")
        if key in {size[0] for size in SIZES.values()} | {SIZES[operation][0], "version", *plugins}:
            return False
        if key != "model.name" and is_below(key, MEASURES):
            return False
        one = slot(run, key)
        models = len(slot(run, "model.name")["values"]) > 1
        if is_below(key, ("moe", "expert")) and models and not one.get("beyond_model"):
            return False
        everywhere = "." not in key or one["n"] == slot(run, key.split(".")[0] + ".")["n"]
        return len(one["values"]) > 1 or (not _plugin_section(key) and not everywhere)

    names = []
    for run, values in zip(runs, flat):
        algorithm = at(run, "experiment.algorithm.name") or "?"
        parts = [run.get("run") or f"{algorithm}/{at(run, 'experiment.transport.name') or '?'}"]
        parts += [f"{_plugin_section(k) or k}={show(v)}" for k, v in values.items() if is_shown(run, k)]
        names.append(" ".join(parts))
    return names


# ---- frames ----


def _batch(path, document):
    """Returns the order of the runs of a document, and its runs that were skipped or have not run."""
    rows = document.get("summary") or []
    check_shape(path, rows, [{"label": TEXT, "id": TEXT, "end": TEXT, "error": TEXT}], "summary")
    measured = {run.get("label") for run in document["results"] if isinstance(run, dict)}
    return {
        "order": document.get("order"),
        "seed": document.get("order_seed"),
        "unmeasured": [
            {"label": row.get("label") or "", "id": row.get("id") or "", "end": row.get("end") or "", "error": row.get("error") or ""}
            for row in rows
            if row.get("label") not in measured
        ],
    }


def load(*paths):
    """Reads results into a frame with a row for each stage of each run.

    Each path is a JSON document, JSON lines, or a folder of results; a list of paths counts as its
    members. `run` numbers the runs, `name` tells settings from each other, `label` and `repetition`
    are those of the program, `size` is the number of tokens or rows, `samples_ns` an array, and
    `document` the result as the program wrote it. `attrs["batches"]` has the order of each document's runs, and
    the runs without a result."""
    files = []
    for path in paths:
        files.extend(path if isinstance(path, (list, tuple)) else [path])
    if not files:
        raise ResultsError("load() takes the path of one file or folder of results at least")
    rows, runs, batches = [], [], []
    for path in files:
        for document in documents(path):
            batches.append(_batch(path, document))
            for run in document["results"]:
                rows.extend(_run_rows(os.fspath(path), len(runs), run))
                runs.append(run)
    names = name_runs(runs)
    frame = pandas.DataFrame(rows, columns=[column for column in COLUMNS if column != "name"])
    frame.insert(COLUMNS.index("name"), "name", [names[number] for number in frame["run"]])
    frame["started"] = pandas.to_datetime(frame["started"], utc=True, errors="coerce")
    frame.attrs["batches"] = batches
    return frame


def samples(frame):
    """Returns a row for each sample: the columns of the frame, `sample` and `ns`."""
    kept = frame[frame["n"] > 0].drop(columns="document")
    numbers = kept["samples_ns"].map(lambda values: list(range(len(values))))
    long = kept.assign(sample=numbers).explode(["samples_ns", "sample"], ignore_index=True)
    long = long.rename(columns={"samples_ns": "ns"})
    return long.astype({"ns": float, "sample": int})


def ranks(frame):
    """Returns a row for each rank of each stage: `rank`, `rank_median_ns` and its bounds."""
    rows = []
    for row in frame.itertuples():
        stage = next((s for s in row.document.get("stages") or [] if s.get("name") == row.stage), {})
        for one in stage.get("ranks") or []:
            rows.append(
                {
                    "run": row.run, "path": row.path, "label": row.label, "name": row.name,
                    "stage": row.stage, "rank": one.get("rank"),
                    "rank_min_ns": _number(one.get("min_ns")),
                    "rank_median_ns": _number(one.get("median_ns")),
                    "rank_p95_ns": _number(one.get("p95_ns")),
                    "rank_max_ns": _number(one.get("max_ns")),
                }
            )  # fmt: skip
    columns = ["run", "path", "label", "name", "stage", "rank"]
    return pandas.DataFrame(
        rows, columns=columns + [f"rank_{figure}_ns" for figure in ("min", "median", "p95", "max")]
    )


def percentile(values, permille):
    """Returns a percentile by nearest rank of sorted values."""
    rank = -(-len(values) * permille // 1000)
    return float(values[max(rank, 1) - 1])


def is_chosen(run, only):
    """Returns True if a run's label or id matches one of the globs."""
    label, run_id = run.get("label") or run.get("name") or "", run.get("id") or ""
    return not only or any(
        label == glob or fnmatch.fnmatchcase(label, glob) or fnmatch.fnmatchcase(run_id, glob) for glob in only
    )


def choose(frame, stage=None, only=()):
    """Returns the rows of one stage of the successful runs: of whole iterations by default."""
    chosen = frame["document"].map(lambda run: is_chosen(run, only)).astype(bool)
    good = frame[frame["ok"].astype(bool) & chosen]
    timed = good[good["n"] > 0]
    if stage is not None:
        rows = timed[timed["stage"] == stage]
    else:
        order = timed["stage"].map({name: place for place, name in enumerate(TOTALS)})
        rows = timed[order.notna()].assign(_order=order).sort_values(["run", "_order"], kind="stable")
        rows = rows.drop_duplicates("run").drop(columns="_order")
    if len(rows) > 0:
        return rows
    if len(frame) == 0:
        raise ResultsError("there are no results in the files")
    where = ", ".join(dict.fromkeys(frame["path"]))
    if len(good) > 0:
        raise ResultsError(
            f"{where}: no run has samples of stage {stage or 'total'}; bench and run take them, verify does not"
        )
    if only:
        raise ResultsError(f"--only '{only[0]}': no run that ended well has that label or id")
    raise ResultsError(f"{where}: no run in it that ended well")


def failures(frame):
    """Returns a sentence for each file and status of runs that did not end well."""
    failed = frame[~frame["ok"].astype(bool)].drop_duplicates("run")
    sentences = []
    for (path, status), group in failed.groupby(["path", "status"], sort=False, dropna=False):
        label, more = group["label"].iloc[0], len(group) - 1
        runs = f"'{label}' and {more} more" if more else f"'{label}'"
        where = "" if path == "-" else f"{path}: "
        sentences.append(f"{where}{runs} ended with status {status} and {'are' if more else 'is'} left out")
    return sentences
