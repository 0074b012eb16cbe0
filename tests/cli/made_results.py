#!/usr/bin/env python3
"""Writes results like --json with made-up runs: made_results.py SEED RUN... A run is LABEL,MEDIAN_US[,KEY=VALUE]: KEY
is a dotted key of the run, such as experiment.moe.hidden or status; samples (200) and noise (0.005, as a part of the
median) apply to its stages."""
import json
import random
import sys

random.seed(sys.argv[1])
results = []
for text in sys.argv[2:]:
    label, median, *rest = text.split(",")
    given = dict(setting.split("=") for setting in rest)
    samples, noise = int(given.pop("samples", 200)), float(given.pop("noise", 0.005))
    stages = [
        {"name": name, "samples_ns": [round(float(median) * share * random.gauss(1000, 1000 * noise)) for _ in range(samples)]}
        for name, share in (("dispatch", 0.4), ("combine", 0.6), ("total", 1))
    ]
    run = {
        "id": label.split("#")[0].strip() or "none",
        "label": label,
        "name": "made up",
        "verb": "bench",
        "status": "ok",
        "run": None,
        "delivers": {"layout": "expert", "rows": "fp8", "outputs": "bf16", "fused": False},
        "experiment": {
            "name": label,
            "seed": 1,
            "ranks": 2,
            "algorithm": {"name": "ll_v2"},
            "transport": {"name": "shm"},
            "moe": {"hidden": 7168},
        },
        "machine": {"cpu": "made up", "cores": 2, "load_average": 0.5, "build": {"version": "1", "isa": "avx2"}},
        "stages": stages,
    }
    for path, value in given.items():
        *folders, key = path.split(".")
        at = run
        for folder in folders:
            at = at[folder]
        at[key] = json.loads(value)
    results.append(run)
print(json.dumps({"schema": 1, "program": "epa2a", "results": results}))
