"""Runs that an importer finds, and the results that they become.

Values keep their printed form: a mean becomes the only sample of a stage, and if each rank prints its
own value, the slowest counts. Values that are not printed are left out, not guessed."""

import difflib
import math
from dataclasses import dataclass, field

from ..result_files import ResultsError
from .programs import LOW_LATENCY, STAGES, Program

KEYS = (
    "ranks", "ranks_per_node", "moe.max_tokens", "moe.hidden", "moe.experts", "moe.topk", "delivers.layout",
    "delivers.rows", "delivers.outputs",
)  # fmt: skip


def is_time(us):
    return us is not None and 1e-3 <= us < 1e12


@dataclass
class Found:
    """A run. `said` has the fields of a line for each stage and rank, or line number; `keys` has
    keys of the experiment with dots, and properties of the output without."""

    program: Program
    variant: str
    line: int
    clock: str = None  # host, kernels
    keys: dict = field(default_factory=dict)
    said: dict = field(default_factory=lambda: {stage: {} for stage in STAGES})
    wrong: str = None  # reason of a mismatch
    statistic: str = None

    def slowest(self, stage):
        lines = self.said[stage].values()
        return max(lines, key=lambda fields: fields[stage]) if lines else {}

    def label(self):
        parts = (self.program.id, self.keys.get("backend"), self.variant)
        return " ".join(part for part in parts if part)


def _find_rows(run):
    """DeepEP's low-latency test prints rates instead of the type: the bytes of a row of FP8 with its
    scales are 0.52 of the bytes of bf16."""
    dispatch, combine = run.slowest("dispatch"), run.slowest("combine")
    if run.program is not LOW_LATENCY or not (dispatch.get("dispatch.rate") and combine.get("combine.rate")):
        return
    ratio = dispatch["dispatch"] * dispatch["dispatch.rate"] / (combine["combine"] * combine["combine.rate"])
    rows = "fp8" if 0.51 < ratio < 0.54 else "bf16" if 0.99 < ratio < 1.01 else None
    if rows:
        run.keys.update(rows=rows, outputs="bf16")


def parse_sets(settings):
    """Returns the keys of --set KEY=VALUE."""
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"they are {', '.join(KEYS)}"
            raise ResultsError(f"--set {setting}: no key of an import; {hint}")
        if key.startswith("delivers."):
            valid = bool(equals) and value.isascii() and value.isalnum() and value == value.lower()
        else:
            valid = value.isascii() and value.isdigit() and len(value) < 19 and int(value) >= 1
        if not valid:
            raise ResultsError(f"--set {setting}: not a value of {key}")
        found[key] = value if key.startswith("delivers.") else int(value)
    return found


def _add_sets(run, path, sets):
    for key, value in sets.items():
        own = key.removeprefix("delivers.")
        if own in run.keys and run.keys[own] != value:
            raise ResultsError(f"{path}:{run.line}:1: error: --set {key}={value}, but it prints {run.keys[own]}")
        run.keys[own] = value


def _nest(keys):
    out = {}
    for key, value in keys.items():
        *folders, last = key.split(".")
        at = out
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = value
    return out


def _stage(run, stage):
    lines = run.said[stage]
    slowest = run.slowest(stage)
    ranks = [rank for rank in lines if isinstance(rank, int)]
    # Ranks are counted if no rank's line is missing.
    if len(ranks) == len(lines) > 1 and max(ranks) + 1 == len(ranks) and "ranks" not in run.keys:
        run.keys["ranks"] = len(ranks)

    def extreme(what, choose):
        values = [fields[f"{stage}.{what}"] for fields in lines.values() if f"{stage}.{what}" in fields]
        return round(1e3 * choose(values)) if values else None

    rate = slowest.get(f"{stage}.rate")
    return {
        "name": stage, "samples_ns": [round(1e3 * slowest[stage])], "min_ns": extreme("min", min),
        "max_ns": extreme("max", max), "rate": None if rate is None or math.isnan(rate) else rate, "line": slowest["line"],
    }  # fmt: skip


def to_result(run, path, sets):
    """Returns the result of a run, in the form of `epa2a import --json`."""
    _find_rows(run)
    _add_sets(run, path, sets)
    program, label = run.program, run.label()
    stages = [_stage(run, stage) for stage in STAGES if run.said[stage]]
    collective = program.layout is None
    delivers = None
    if not collective:
        delivers = {"layout": program.layout, "rows": "unknown", "outputs": program.outputs, "fused": False}
        delivers.update({key: run.keys[key] for key in ("layout", "rows", "outputs") if key in run.keys})
    experiment = {k: v for k, v in run.keys.items() if "." in k or not isinstance(v, str)}
    error = run.wrong and {"status": "mismatch", "text": f"{path}:{run.line}: {run.wrong}"}
    return {
        "name": program.name, "file": path, "label": label, "id": None, "run": label, "verb": "bench",
        "operation": "collective" if collective else "moe", "status": "mismatch" if error else "ok",
        "exit_code": 1 if error else 0, "error": error or None,
        "source": {"program": program.name, "clock": run.clock, "line": run.line,
                   "statistic": run.statistic or program.statistic, "rate": program.rates},
        "experiment": _nest({**experiment, "algorithm.name": program.id}), "context": {}, "machine": {},
        "timing": None, "stages": stages, "delivers": delivers, "warnings": [],
    }  # fmt: skip
