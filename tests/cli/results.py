#!/usr/bin/env python3
"""Runs the program and holds the JSON of real results against the schema, which takes no spoilt copy of them, and
their numbers against what `epa2a help bandwidth` and src/tool/base/stats.h say, worked out here again.

results.py SCHEMA EPA2A CONFIG GRAPH PLUGINS: GRAPH is an experiment for the plugins there"""
import copy
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

try:
    import jsonschema
except ImportError:
    print("skipped: no jsonschema for this python3 (package python3-jsonschema)")
    sys.exit(77)

# Two ranks with two tokens each; experts 0 and 1 belong to rank 0. Rank 0 sends one choice to rank
# 1 (for expert 2), rank 1 sends two, for one token, to rank 0.
ROUTES = [[0, 1], [0, 2], [2, 3], [1, 0]]
TINY = """version: 1
ranks: 2
transport: shm
algorithm: {{name: ll_v2, layout: {layout}}}
moe: {{max_tokens: 2, hidden: 256, experts: 4, topk: 2, fp8_group_size: 64}}
routing: {{kind: file, path: routes.jsonl}}
bench: {{warmup: 0, iterations: 5, input_sets: 1}}
"""
# N = 4 choices * 256 bytes of FP8, and 4 * 512 bytes of bf16 on the way back. A message of 16 +
# 256 + 4 * 4 bytes, and 2 * 8 bytes of choices in layout rank, takes 320 bytes in whole lines of
# 64; routes take a line, flags 2 * 8: 80. In layout expert rank 0 sends 320 + 80, then 2 * 512,
# and rank 1 sends 2 * 320 + 80, then 512; in layout rank each sends one row and gets one back.
TRAFFIC = {
    "expert": {"dispatch": (1024, (400 + 720) / 2, 720), "combine": (2048, 768, 1024),
               "total": (3072, (1424 + 1232) / 2, 1424)},
    "rank": {"dispatch": (1024, 400, 400), "combine": (2048, 512, 512),
             "total": (3072, 912, 912)},
}

failures = []


def expect(what, have, want, slack=0.0):
    if (abs(have - want) > slack) if isinstance(want, float) else have != want:
        failures.append(f"{what} is {have}, should be {want}")


def percentile(ordered, percent):
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def interval(ordered):
    """Of the median: as many off each end as fewer heads of n coins are seen in 2.5 %."""
    n, below, k = len(ordered), 0, 0
    while 40 * (below + math.comb(n, k)) <= 2 ** n:
        below += math.comb(n, k)
        k += 1
    return [ordered[k - 1], ordered[n - k]] if k > 0 else None


def check_statistics(name, stage, traffic):
    """Times in `ns` are whole numbers, so that recomputed values differ by at most 1."""
    ordered, ns = sorted(stage["samples_ns"]), stage["ns"]
    n, mean = len(ordered), sum(ordered) / len(ordered)
    median = percentile(ordered, 50)
    spread = math.sqrt(sum((x - mean) ** 2 for x in ordered) / (n - 1)) if n > 1 else 0.0
    expect(f"{name} n", ns["n"], n)
    for key, want in (("min", ordered[0]), ("median", median), ("max", ordered[-1]),
                      ("p95", percentile(ordered, 95)), ("p99", percentile(ordered, 99)),
                      ("mad", percentile(sorted(abs(x - median) for x in ordered), 50)),
                      ("mean", mean), ("stdev", spread)):
        expect(f"{name} {key}", ns[key], float(want), 1.0)
    if n >= 1000:
        expect(f"{name} p999", ns["p999"], float(ordered[math.ceil(n * 0.999) - 1]), 1.0)
    else:
        expect(f"{name} p999", ns["p999"], None)
    expect(f"{name} cv", stage["cv"], spread / mean, 1e-3 * (1 + spread / mean))
    expect(f"{name} ci95", ns["ci95"], interval(ordered))
    if stage["name"] == "latency":  # time in a queue
        expect(f"{name} rate", stage["rate"], {"goodput": None, "wire": None, "bottleneck": None})
        return
    for key, of in (("goodput", "needed"), ("wire", "wire"), ("bottleneck", "bottleneck")):
        want = traffic[f"{of}_bytes"] / median
        expect(f"{name} {key}", stage["rate"][key], want, want / median + 1e-3 * want)


def check_result(result):
    for stage in result["stages"] if result["verb"] != "verify" else []:
        if stage["samples_ns"]:
            check_statistics(f"{result['verb']}, {stage['name']},", stage,
                             result["traffic"].get(stage["name"], result["traffic"]["total"]))
    if result["timing"] is None or result["timing"]["total"] == "measured":
        return
    stages = [stage["samples_ns"] for stage in result["stages"]]
    for parts in zip(*stages): # the slowest sum is at most the sum of the slowest
        if parts[-1] > sum(parts[:-1]) + len(parts):
            failures.append(f"{result['verb']}: a total of {parts[-1]} out of {parts[:-1]}")


def check_limits(name, result, least, memory):
    """`least`: bytes of the busiest rank on links, `memory`: in its memory; tests/plugins/fakelink.c defines the
    links, and fakegpu.c the rate of memory and the cache of 256 bytes."""
    links, limit = result["machine"]["links"], result["limit"]
    expect(f"{name}, links", links, {"rate": 500.0, "latency_ns": 25.0})
    expect(f"{name}, launches", limit["launches_ns"] > 0, True)
    expect(f"{name}, limit", {key: value for key, value in limit.items() if key != "launches_ns"},
           {"hops_ns": 50, "links_ns": round(least["total"] / 500), "memory_ns": (memory["total"] - 256) / 8,
            "memory_bytes": float(memory["total"]), "cache_bytes": 256.0, "memory_bytes_per_s": 8e9})
    pair = [stage["ns"]["in_pair"] for stage in result["stages"]]
    expect(f"{name}, in pair", [pair[0] > 0, pair[1] > 0, pair[2]], [True, True, None])
    for stage, crossings in (("dispatch", 1), ("combine", 1), ("total", 2)):
        want = (memory[stage] - 256) / 8 + crossings * (25 + limit["launches_ns"] / 2)
        have = next(s for s in result["stages"] if s["name"] == stage)
        expect(f"{name}, limit of {stage}", have["peak_ns"], want, 1.0)
        expect(f"{name}, of peak, {stage}", have["of_peak"], want / have["ns"]["median"],
               0.01 * want / have["ns"]["median"])
        expect(f"{name}, least of {stage}", result["traffic"][stage]["least_bytes"],
               float(least[stage]))


def check_clock(result, timing, stages, samples):
    name = " ".join(map(str, timing))
    expect(name, result["timing"], dict(zip(("clock", "calls", "cache", "total"), timing), arrivals=None))
    expect(f"{name}, stages", [stage["name"] for stage in result["stages"]], stages)
    expect(f"{name}, samples", [len(stage["samples_ns"]) for stage in result["stages"]], samples)
    return result


def check_graph(validator, epa2a, graph, plugins):
    """One token a rank that both ranks want: 128 bytes each way, sent twice to the other."""
    path = ("--plugin-path", plugins)
    layer = ["dispatch", "combine", "total"]
    first, _, _, wall = [
        check_clock(command(validator, epa2a, "bench", graph, *settings, options=path), *want) for settings, *want in (
            (("tokens=[1, 1]", "moe.topk=6"), ("graph", 20, "warm", "measured"), layer, [20, 20, 20]),
            (("bench.clock=events",), ("events", 1, "warm", "sum"), layer, [20, 20, 20]),
            (("bench.cache=cold", "algorithm.again=false"), ("graph", 1, "cold", "measured"), layer, [20, 0, 20]),
            (("bench.clock=end_to_end", "bench.cache=cold", "algorithm.fused=true"),
             ("end_to_end", 1, "cold", "measured"), ["wall"], [20]))]
    expect("graph", first["status"], "ok")
    expect("graph, device", first["machine"]["device"]["device"], "no GPU at all")
    expect("graph, places", [rank["device"]["place"] for rank in first["world"]["ranks"]], ["0", "1"])
    expect("graph, checks", (first["verify"]["iterations"], first["verify"]["wrong"]), (1, 0))
    # A token of 64 values for all 6 experts: each rank reads 1 token, and writes a row for each expert and token.
    check_limits("graph", first, {"dispatch": 128, "combine": 128, "total": 256},
                 {"dispatch": 128 + 6 * 128, "combine": 128 + 6 * 128, "total": 14 * 128})
    expect("wall, skew", wall["skew"], None)
    expect("wall, medians of ranks", [rank["median_ns"] is None for rank in wall["stages"][0]["ranks"]], [False, True])


SPOILT = {  # copies that the schema must refuse: path in the document, and value; ...: remove it
    "schema 2": ("schema", 2), "no results": ("results", ...), "unknown key": ("results.0.surprise", 1),
    "unknown status": ("results.0.status", "fine"), "boolean as text": ("results.0.machine.build.debug", "no"),
    "count as text": ("results.0.machine.cores", "2"), "negative time": ("results.0.stages.0.ns.min", -1),
    "fraction of a nanosecond": ("results.0.stages.0.ns.median", 1.5), "NaN as text": ("results.0.stages.-1.rate.bus", "nan"),
    "null sample": ("results.0.stages.0.samples_ns", [None]), "id of another form": ("results.0.id", "0123"),
    "foreign variable": ("results.0.machine.environment.HOME", "/root"), "local time": ("results.0.started", "2026-01-01 10:00:00"),
    "clock unknown": ("results.0.timing.clock", "sundial"), "no calls": ("results.0.timing.calls", 0),
    "row that ended otherwise": ("summary.0.end", "fine"), "row without a ratio": ("summary.0.ratio", ...),
    "summary of none": ("summary", []), "links without latency": ("results.0.machine.links", {"rate": 1.0}),
}


def spoilt(document):
    """Copies of the document, each with one thing that the schema must refuse."""
    result = document["results"][0]
    for what, (place, value) in {**SPOILT, "exit code of another status": ("results.0.exit_code", 0 if result["exit_code"] else 5)}.items():
        at = other = copy.deepcopy(document)
        *sections, key = place.split(".")
        for section in sections:
            at = at[int(section) if isinstance(at, list) else section]
        if at is None:  # a run without times
            continue
        if value is ...:
            del at[key]
        else:
            at[key] = value
        yield what, other


def read(validator, text, what):
    """The one result of a document that keeps to the schema and to itself."""
    document = json.loads(text)
    for error in validator.iter_errors(document):
        failures.append(f"{what}: {'/'.join(map(str, error.path))}: {error.message}")
    result = document["results"][0]
    check_result(result)
    return result


def iterating(epa2a, pid):
    """The processes of both ranks, once each has done an iteration; else none."""
    done = subprocess.run([epa2a, "status", str(pid), "--json", "-"], capture_output=True, text=True, check=False)
    run = json.loads(done.stdout)["commands"][0]["run"] if done.returncode == 0 else None
    ranks = run["ranks"] if run else []
    return [rank["pid"] for rank in ranks] if len(ranks) == 2 and all(rank["iteration"] for rank in ranks) else []


def command(validator, epa2a, verb, config, *settings, harm=None, options=()):
    """Runs a command; `harm` acts on its process when its ranks iterate. The checks below read the samples up to
    then."""
    args = [epa2a, verb, config, "--quiet", "--json", "-", *options]
    for setting in settings:
        args += ["--set", setting]
    child = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    while harm is not None and child.poll() is None:
        ranks = iterating(epa2a, child.pid)
        if ranks:
            harm(child.pid, ranks)
            break
        time.sleep(0.001)
    result = read(validator, child.communicate()[0], " ".join((verb,) + settings))
    expect(f"{verb}, exit code", child.returncode, result["exit_code"])
    return result


def check_tiny(validator, epa2a, layout):
    pathlib.Path("tiny.yaml").write_text(TINY.format(layout=layout), "utf-8")
    pathlib.Path("routes.jsonl").write_text(
        "".join(json.dumps({"topk_ids": row, "topk_weights": [0.75, 0.25]}) + "\n"
                for row in ROUTES), "utf-8")
    result = command(validator, epa2a, "bench", "tiny.yaml")
    for stage, want in TRAFFIC[layout].items():
        have = result["traffic"][stage]
        for key, bytes_ in zip(("needed_bytes", "wire_bytes", "bottleneck_bytes"), want):
            expect(f"layout {layout}, {stage}, {key}", have[key], float(bytes_))
    # In any layout: one token from each rank to the other, 256 bytes and 4 scales; back 512.
    for stage, want in (("dispatch", 272), ("combine", 512), ("total", 784)):
        expect(f"layout {layout}, {stage}, least", result["traffic"][stage]["least_bytes"],
               float(want))
    routing = result["routing"]
    expect("tokens per expert", routing["tokens_per_expert"],
           {"min": 1, "mean": 2, "max": 3, "imbalance": 1.5})
    expect("tokens per rank", routing["tokens_per_rank"],
           {"min": 3, "mean": 4, "max": 5, "imbalance": 1.25})
    expect("again in bench", "start again" in " ".join(result["warnings"]), False)
    result = command(validator, epa2a, "verify", "tiny.yaml", "verify.iterations=3")
    expect("again in verify", "start again after iteration 1 of 3" in
           " ".join(result["warnings"]), True)


def check_stop(validator, epa2a, config):
    """Rules that are met at once, and expectations that are missed for sure."""
    result = command(validator, epa2a, "bench", config, "bench.iterations=100", "bench.ci95=1000",
                     "bench.min_iterations=25")
    expect("ci95, reason", result["stop"]["reason"], "ci95")
    expect("ci95, samples", result["stop"]["samples"], 25)
    ns = result["stages"][-1]["ns"]
    expect("ci95, width", result["stop"]["ci95"], (ns["ci95"][1] - ns["ci95"][0]) / ns["median"], 1e-2)
    result = command(validator, epa2a, "bench", config, "api=calls", "bench.iterations=9")
    expect("api", [result["api"][key] for key in ("calls", "turns")], [2, 9])
    expect("api, medians", result["api"]["api_ns"] > 0 and result["api"]["direct_ns"] > 0, True)
    result = command(validator, epa2a, "bench", config, "bench.max_time=1ns")
    expect("max_time", result["stop"], {"reason": "time", "samples": 1, "ci95": None})
    result = command(validator, epa2a, "bench", config, "expect={dispatch: {median: 1ns}, median: 3600s, wire: 0}")
    expect("expect, status", (result["status"], result["exit_code"]), ("missed", 1))
    expect("expect", [(e["stage"], e["figure"], e.get("most"), e.get("least"), e["met"]) for e in result["expect"]],
           [("total", "median", 3600 * 10 ** 9, None, True), ("dispatch", "median", 1, None, False),
            ("total", "wire", None, 0, True)])
    for have in result["expect"][:2]:
        stage = next(s for s in result["stages"] if s["name"] == have["stage"])
        expect("expect, measured", have["measured"], stage["ns"]["median"])
    most, least = ("min", "p95", "p99", "max", "mean"), ("goodput", "wire", "bottleneck")
    result = command(validator, epa2a, "bench", config, "bench.iterations=30", "expect={" + ", ".join(
        [f"{name}: 3600s" for name in most] + [f"{name}: 0" for name in least]) + "}")
    total = result["stages"][-1]
    expect("figures", [(e["figure"], e["measured"], e["met"]) for e in result["expect"]],
           [(name, total["ns"][name], True) for name in most] + [(name, total["rate"][name], True) for name in least])


def check_table(validator, epa2a, config):
    """The table has the figures of the JSON, each in its column."""
    done = subprocess.run([epa2a, "bench", config, "--json", "table.json"], capture_output=True, text=True, check=False)
    result = read(validator, pathlib.Path("table.json").read_text("utf-8"), "table")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith("  ")}
    for stage in result["stages"]:
        wants = [stage["ns"][key] / 1e3 for key in ("min", "median", "p95", "p99", "max")]
        wants += [stage["rate"][key] for key in ("goodput", "wire", "bottleneck")]
        for cell, want in zip(rows[stage["name"]], wants):
            expect(f"table, {stage['name']}", float(cell), want, 0.06 + 0.01 * want)
        expect(f"table, {stage['name']}, cells", len(rows[stage["name"]]) >= len(wants), True)


def check_products(validator, epa2a, config):
    """The product of a rank, [100][72] by [48][72], and its lower bound with the measured rates."""
    small = ("gemm.m=100", "gemm.n=96", "gemm.k=72", "bench.iterations=5")
    weights = {"bf16": 48 * 72 * 2, "f16": 48 * 72 * 2, "fp8": 48 * 72 + 4}
    for dtype, algorithm in [(d, a) for d in weights for a in ("ag_gemm_2d", "ag_then_gemm")]:
        result = command(validator, epa2a, "bench", config, *small, f"gemm.dtype={dtype}", f"algorithm={algorithm}")
        name, compute, total = f"{algorithm}, {dtype}", result["compute"], result["stages"][-1]
        limit, links = compute["limit"], result["machine"]["links"]
        expect(f"{name}, operations", compute["flops"], 2.0 * 100 * 48 * 72)
        expect(f"{name}, limit is known", limit is not None, True)
        if limit is None:
            continue
        expect(f"{name}, weights", limit["weights_bytes"], float(weights[dtype]))
        for key, want in (("flops_ns", compute["flops"] / limit["flops_per_s"] * 1e9),
                          ("weights_ns", limit["weights_bytes"] / limit["memory_bytes_per_s"] * 1e9),
                          ("links_ns", result["traffic"]["total"]["least_bytes"] / links["rate"])):
            expect(f"{name}, {key}", limit[key], want, 1.0)
        if not total["beaten"]:
            least = max(limit["flops_ns"], limit["weights_ns"], limit["links_ns"] + (links["latency_ns"] or 0))
            expect(f"{name}, at peak", total["peak_ns"], float(least), 2.0)
        expect(f"{name}, by", compute["by"] is not None, algorithm == "ag_then_gemm")


def check_open(validator, epa2a, config):
    """One rank sleeps 60 ms while iterations are due each ms: later iterations are late by the rest of the sleep,
    which a closed loop would see once. All bounds hold on any machine."""
    result = command(validator, epa2a, "bench", config, "bench.arrivals=constant", "bench.rate=1000",
                     "bench.warmup=0", "bench.iterations=80",
                     "fault={kind: straggle, rank: 1, stage: dispatch, iteration: 10, for: 60ms}",
                     options=("--context", "switch=b", "--context", "rack=3"))
    service, latency = result["stages"][-2:]
    expect("open, rows", [s["name"] for s in result["stages"]], ["dispatch", "combine", "service", "latency"])
    expect("open, timing", result["timing"]["total"], "measured")
    arrivals = result["timing"]["arrivals"]
    expect("open, arrivals", (arrivals["process"], arrivals["rate"], arrivals["closed_rate"]),
           ("constant", 1000.0, None))
    expect("open, late", 50 / 80 <= arrivals["late"] <= 1, True)
    expect("open, latency is never less", all(x >= y for x, y in zip(latency["samples_ns"],
                                                                    service["samples_ns"])), True)
    for k in range(50):
        if latency["samples_ns"][10 + k] < (60 - k) * 1e6 - 1:
            failures.append(f"open: sample {k} behind the slow one took {latency['samples_ns'][10 + k]} ns")
    expect("open, elapsed", result["elapsed_s"] >= 0.079, True)
    expect("open, fault", (result["fault"]["kind"], result["fault"]["struck"]), ("straggle", 1))
    expect("open, context", result["context"], {"switch": "b", "rack": "3"})
    result = command(validator, epa2a, "bench", config, "bench.arrivals=poisson", "bench.load=0.5",
                     "bench.warmup=20", "bench.iterations=100")
    arrivals = result["timing"]["arrivals"]
    expect("load, rate", arrivals["rate"], arrivals["closed_rate"] / 2, 1e-6 * arrivals["rate"])
    expect("load, fault", (result["fault"], result["context"]), (None, {}))


def check_harm(validator, epa2a, config, *options):
    for name, code, harm in (
            ("interrupted", 130, lambda pid, ranks: os.kill(pid, signal.SIGINT)),
            ("interrupted", 143, lambda pid, ranks: os.kill(pid, signal.SIGTERM)),
            ("died", 5, lambda pid, ranks: os.kill(ranks[1], signal.SIGKILL))):
        for verb in ("bench", "verify"):
            result = command(validator, epa2a, verb, config, f"{verb}.iterations=1000000",
                             harm=harm, options=options)
            expect(f"{verb} with harm", result["status"], name)
            expect(f"{verb} with harm, exit code", result["exit_code"], code)


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def check_spoilt(validator, epa2a, config, graph, plugins):
    """Of several runs, also of some that failed: a schema that takes all would prove nothing."""
    for code, *words in ((2, "bench", config, "-n", "3", "--set", "matrix={transport: [shm, nowhere]}"),
                         (0, "bench", graph, "--plugin-path", plugins), (0, "verify", config, "-n", "2"),
                         (5, "run", config, "--set", "fault={kind: kill, rank: 1, iteration: 1}")):
        done = subprocess.run([epa2a, *words, "--set", "repeat=2", "--quiet", "--json", "-"], capture_output=True, text=True, check=False)
        expect(f"{words}, exit code", done.returncode, code)
        document = json.loads(done.stdout, parse_constant=refuse_constant)
        failures.extend(f"{words}: {'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(document))
        failures.extend(f"{words}: {what} is not refused" for what, other in spoilt(document) if validator.is_valid(other))


def main(schema, epa2a, config, graph, plugins):
    schema = json.loads(pathlib.Path(schema).read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    check_spoilt(validator, epa2a, config, graph, plugins)
    for verb in ("run", "bench", "verify"):
        result = command(validator, epa2a, verb, config, "bench.iterations=1001")  # enough for p999
        expect(verb, result["status"], "ok")
        expect(f"{verb} compares", result["verify"]["compared"] > 0, True)
    for layout in TRAFFIC:
        check_tiny(validator, epa2a, layout)
    check_graph(validator, epa2a, graph, plugins)
    for log in sorted(pathlib.Path(__file__).parent.glob("import/*.txt")):
        done = subprocess.run([epa2a, "import", str(log), "--json", "-"], capture_output=True, text=True, check=False)
        failures.extend(f"{log.name}: {error.message}" for error in validator.iter_errors(json.loads(done.stdout)))
    check_stop(validator, epa2a, config)
    check_table(validator, epa2a, config)
    check_products(validator, epa2a, pathlib.Path(config).with_name("ag_gemm-shm.yaml"))
    check_open(validator, epa2a, config)
    check_harm(validator, epa2a, config)
    check_harm(validator, epa2a, graph, "--plugin-path", plugins)
    print("\n".join(failures) or "all results are as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    paths = [os.path.abspath(path) for path in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        code = main(*paths)
        os.chdir("/")
    sys.exit(code)
