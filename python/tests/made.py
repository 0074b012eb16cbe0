"""Results of made-up runs, and the program for tests that compare with it."""

import json
import os
import random
import shutil

import pytest


def run(label, median_us, samples=200, noise=0.005, spread=None, **keys):
    """Returns a result with stages dispatch, combine and total; a key with __ is a path. Equal
    arguments give equal times."""
    spread = spread or random.Random(f"{label} {median_us} {samples} {noise}")
    stages = []
    for name, share in (("dispatch", 0.4), ("combine", 0.6), ("total", 1)):
        times = [round(abs(1000 * median_us * share * spread.gauss(1, noise))) for _ in range(samples)]
        ranks = [
            {"rank": r, "min_ns": 1, "median_ns": round(900 * median_us * share * (1 + r / 10)), "p95_ns": 2, "max_ns": 3}
            for r in range(2)
        ]
        stages.append({"name": name, "samples_ns": times, "ranks": ranks, "peak_ns": 10})
    made = {
        "id": "0123456789ab", "label": label, "name": "made up", "run": None, "verb": "bench", "operation": "moe",
        "status": "ok", "started": "2026-11-29T19:28:35Z", "stages": stages, "timing": {"clock": "host"},
        "delivers": {"layout": "expert", "rows": "fp8", "outputs": "bf16", "fused": False},
        "machine": {"host": "h", "cpu": "made up", "cores": 2, "build": {"version": "1"}},
        "experiment": {
            "ranks": 2, "seed": 1, "algorithm": {"name": "ll_v2"}, "transport": {"name": "shm"},
            "moe": {"max_tokens": 8, "hidden": 7168},
        },
    }  # fmt: skip
    for path, value in keys.items():
        *folders, key = path.split("__")
        at = made
        for folder in folders:
            at = at.setdefault(folder, {})
        at[key] = value
    return made


def document(*runs):
    return {"schema": 1, "program": "epa2a", "results": list(runs)}


def write(path, *runs):
    path.write_text(json.dumps(document(*runs)))
    return path


def batch(settings=8, repetitions=5, seed=1, **keys):
    """Returns repetitions of runs of 1, 2, 4 ... tokens."""
    spread = random.Random(seed)
    return [
        run(f"moe.max_tokens={2**i} #{k + 1}", 100 + 10 * i, spread=spread, experiment__moe__max_tokens=2**i, **keys)
        for i in range(settings)
        for k in range(repetitions)
    ]


def program():
    """Returns the program epa2a: of EPA2A, or of PATH. Skips the test without it."""
    found = os.environ.get("EPA2A") or shutil.which("epa2a")
    if found is None:
        pytest.skip("there is no program epa2a: set EPA2A to its path")
    return found
