#!/usr/bin/env python3
"""AllGather and GEMM on GPUs: verifies the shapes of configs/ag_gemm-nvlink.yaml in all ways, then
measures each, taking turns, on dense random values, and prints a table. The fourth shape is of 4091 rows a
rank: with --ranks 2 it has m 8182.

    tests/bench/ag_gemm_gpu.py build/src/epa2a [--ranks 4] [--rounds 3] [--only TEXT] [--dtype fp8]
                               [--no-verify] [--json FILE] [--set KEY=VALUE...]

Times are microseconds: medians over rounds of the median of the slowest rank, in graphs. `gather` and
`gemm` are each alone, in graphs too: the best of all ways. A way that a shape cannot
run is left out, with the reason on stderr. Without --no-verify nothing is measured that is wrong."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/ag_gemm-nvlink.yaml")
SHAPES = ["m 8192 n 49152 k 12288", "m 8192 n 28672 k 8192", "m 8192 n 29568 k 8192",
          "m 16364 n 5120 k 1024", "m 2048 n 2880 k 2880"]
ROWS = {"m 16364 n 5120 k 1024": 4091}
ENGINE, SM = "algorithm.mover=copy_engine", "algorithm.mover=sm"
WAYS = {
    "default": [],
    "copy engines": [ENGINE],
    "copy engines, 1 chunk": [ENGINE, "algorithm.chunks=1"],
    "copy engines, 4 chunks": [ENGINE, "algorithm.chunks=4"],
    "copy engines, swizzle": [ENGINE, "algorithm.order=swizzle"],
    "copy engines, order none": [ENGINE, "algorithm.order=none"],
    "copy engines, panel 8": [ENGINE, "algorithm.panel=8"],
    "copy engines, not across": [ENGINE, "algorithm.across_ranks=false"],
    "sm": [SM],
    "sm, 1 chunk": [SM, "algorithm.chunks=1"],
    "sm, 8 chunks": [SM, "algorithm.chunks=8"],
    "sm, 8 chunks, panel 4": [SM, "algorithm.chunks=8", "algorithm.panel=4"],
    "sm, swizzle": [SM, "algorithm.order=swizzle"],
    "sm, 8 blocks apart": [SM, "algorithm.comm_blocks=8"],
    "sm, 16 blocks apart": [SM, "algorithm.comm_blocks=16"],
    "wide tiles": ["algorithm.tile_cols=256"],
    "narrow tiles": ["algorithm.tile_cols=128"],
    "sm, pull": [SM, "algorithm.mode=pull"],
    "two nodes": ["ranks_per_node=2"],
    "one after the other": ["algorithm=ag_then_gemm"],
}


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("epa2a")
    a.add_argument("--ranks", type=int, default=4)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--only", default="", help="ways whose name has this")
    a.add_argument("--dtype", choices=["bf16", "f16", "fp8"], help="of all shapes")
    a.add_argument("--no-verify", action="store_true")
    a.add_argument("--json", help="all that was measured")
    a.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return a.parse_args()


def run(o, verb, shape, way):
    """(status of the run, its result or None)."""
    command = [o.epa2a, verb, CONFIG, "--only", shape, "--quiet", "--set", f"ranks={o.ranks}"]
    settings = WAYS[way] + ([f"gemm.dtype={o.dtype}"] if o.dtype else [])
    settings += [f"gemm.m={ROWS[shape] * o.ranks}"] if shape in ROWS else []
    settings += ["gemm.values=random"] if verb == "bench" else []
    settings += o.set
    for setting in settings:
        command += ["--set", setting]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = subprocess.run(command + ["--json", path], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, check=False, timeout=600)
        if done.returncode != 0:
            print(f"{verb}, {way}, {shape}: exit {done.returncode}: {done.stdout.strip()[-300:]}",
                  file=sys.stderr)
            return done.returncode, None
        with open(path, encoding="utf-8") as file:
            return 0, json.load(file)["results"][0]


def main():
    o = arguments()
    ways = [way for way in WAYS if o.only in way]
    times, parts, wrong = {}, {}, set()
    if not o.no_verify:
        for shape in SHAPES:
            for way in ways:
                code, _ = run(o, "verify", shape, way)
                if code != 0:
                    wrong.add((shape, way))
                if code not in (0, 2):
                    print(f"WRONG: {way}, {shape}", file=sys.stderr)
        print(f"verified: {len(SHAPES) * len(ways) - len(wrong)} of {len(SHAPES) * len(ways)}")
    for _ in range(o.rounds):
        for shape in SHAPES:
            for way in ways:
                if (shape, way) in wrong:
                    continue
                code, result = run(o, "bench", shape, way)
                if code != 0:
                    wrong.add((shape, way))
                    continue
                times.setdefault((shape, way), []).append(result["stages"][-1]["ns"]["median"] / 1e3)
                for part in result["compute"]["parts"]:
                    parts.setdefault((shape, part["name"]), []).append(part["median_ns"] / 1e3)
    middle = {key: statistics.median(value) for key, value in times.items()}
    print("| us | " + " | ".join(shape for shape in SHAPES) + " |")
    print("|---" * (len(SHAPES) + 1) + "|")
    for name in ("gather", "gemm"):
        cells = [f"{min(parts[shape, name]):.0f}" if (shape, name) in parts else "" for shape in SHAPES]
        print(f"| {name} alone | " + " | ".join(cells) + " |")
    for way in ways:
        cells = [f"{middle[shape, way]:.0f}" if (shape, way) in middle else "" for shape in SHAPES]
        print(f"| {way} | " + " | ".join(cells) + " |")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as file:
            json.dump([{"shape": shape, "way": way, "us": us} for (shape, way), us in times.items()],
                      file, indent=1)
    return 0 if times else 1


if __name__ == "__main__":
    sys.exit(main())
