#!/usr/bin/env python3
"""limits.py EPA2A BENCH_KERNELS: over 20 shapes no median is shorter than the time "at peak" by more than 3 %, and no
matrix product is faster than the peak of its instruction.

The measured rate and latency of links bound a stage only if no sample is faster: otherwise the bound is "?" in the
table and null in JSON. The number of such stages depends on other load during the measurement; the test prints it and
does not judge it."""
import itertools
import json
import re
import subprocess
import sys
import tempfile

SHAPES = [("ll_v2", *shape) for shape in itertools.product((2, 4), (1, 8, 32, 128), ((512, 4), (4096, 8)))]
SHAPES += [("ll_v1", 2, 8, (2048, 4)), ("token_flag", 2, 8, (2048, 4)), ("ll_v1", 4, 32, (2048, 8)), ("ll_v2", 8, 8, (1024, 4))]
MOST = 1.03

beaten, unknown, stages = [], 0, 0
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as base:
    base.write("version: 1\nname: limits\ntimeout: 60s\nbench: {warmup: 10, iterations: 40}\n")
    base.flush()
    for name, ranks, tokens, (hidden, topk) in SHAPES:
        sets = [f"algorithm={name}", f"ranks={ranks}", f"moe={{max_tokens: {tokens}, hidden: {hidden}, experts: 16, topk: {topk}}}"]
        done = subprocess.run([sys.argv[1], "bench", base.name, "--quiet", "--json", "-", *(w for s in sets for w in ("--set", s))],
                              stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout)["results"][0]
        assert result["machine"]["links"]["rate"] > 0, sets
        for stage in result["stages"]:
            stages += 1
            unknown += stage["of_peak"] is None
            if stage["of_peak"] is not None and stage["of_peak"] > MOST:
                beaten.append(f"{' '.join(sets)}: {stage['name']}: {stage['of_peak']:.0%} of peak")
# Medians of rounds, each beside the peak of that round, since clocks drift.
products = subprocess.run([sys.argv[2], "matrices", "128", "512", "2048", "2"], stdout=subprocess.PIPE, text=True, check=True).stdout
beaten += [line for line in products.splitlines() for peak in re.findall(r"(\d+) % of peak", line) if int(peak) > 101]
print(*beaten, f"{len(SHAPES)} shapes, {stages} stages, {len(beaten)} beat their limit, {unknown} have none", sep="\n")
sys.exit(beaten != [])
