#!/usr/bin/env python3
"""refusals.py EPA2A: `config check` refuses an experiment that verify (or bench, or run) refuses before its first
iteration, with the same message and place, and each refusal has a line and a column.

Each case is an experiment with one error, and the part of the key or value that the message must point to. A case
whose plugin is missing in this build is left out; 60 cases must remain."""
import os
import re
import subprocess
import sys
import tempfile

MOE = {"ranks": "2", "moe": "{max_tokens: 8, hidden: 512, experts: 8, topk: 2}"}
GEMM = {"ranks": "2", "gemm": "{m: 96, n: 128, k: 64}"}
GATHER = {"ranks": "2", "allgather": "{max_rows: 8, row_bytes: 64}"}
MLP = "{kind: mlp, ffn: 128}"


def moe(algorithm, at, verb="verify", **keys):
    return verb, {**MOE, "algorithm": algorithm, **keys}, at


def gemm(algorithm, at, verb="verify", **keys):
    return verb, {**GEMM, "algorithm": algorithm, **keys}, at


def gather(algorithm, at, verb="verify", **keys):
    return verb, {**GATHER, "algorithm": algorithm, **keys}, at


def shape(**keys):
    return "{" + ", ".join(f"{k}: {v}" for k, v in {"max_tokens": 8, "hidden": 512, "experts": 8, "topk": 2, **keys}.items()) + "}"


CASES = [
    # order and faults
    *(moe(f"{{name: {name}, buffers: 1}}", "pipelined", verify="{order: pipelined}") for name in ("ll_v1", "ll_v2", "token_flag")),
    moe("fused", "pipelined", expert=MLP, verify="{order: pipelined}"),
    moe("ll_v2", "discard", verify="{order: discard}"),
    moe("token_flag", "discard", verify="{order: discard}"),
    moe("ll_v2", "again", verify="{order: again}"),
    moe("token_flag", "again", verify="{order: again}"),
    moe("ll_v2", "nope", fault="{kind: kill, rank: 0, stage: nope}"),
    moe("token_flag", "dispatch", fault="{kind: kill, rank: 0, stage: dispatch}"),
    moe("ll_v2", "7", fault="{kind: kill, rank: 7}"),
    moe("ll_v2", "kill", launcher="thread", fault="{kind: kill, rank: 0}"),
    # workers
    gemm("{name: ag_gemm_2d, comm_worker: true}", "ag_gemm_2d"),
    gemm("{name: ag_gemm_2d, comm_worker: true}", "1}", backend="{name: host, workers: 1}"),
    moe("{name: fused, dispatch_workers: 1}", "fused", expert=MLP),
    moe("{name: fused, dispatch_workers: 2, combine_workers: 1}", "3}", expert=MLP, backend="{name: host, workers: 3}"),
    # shapes, by each algorithm
    *(moe(name, "20", moe=shape(hidden=20)) for name in ("ll_v1", "ll_v2", "token_flag", "alltoallv")),
    *(moe(name, "8, topk", ranks="3", moe=shape()) for name in ("ll_v1", "ll_v2", "token_flag", "alltoallv")),
    *(moe(f"{{name: {name}, dispatch_dtype: native}}", "fp8", moe=shape(input_dtype="fp8")) for name in ("ll_v1", "ll_v2", "token_flag")),
    *(moe(f"{{name: {name}, dispatch_dtype: fp8}}", "512", moe=shape(fp8_group_size=48)) for name in ("ll_v1", "ll_v2", "token_flag")),
    *(moe(name, "4000000", moe=shape(max_tokens=4000000, topk=8), ranks="8") for name in ("ll_v1", "token_flag")),
    moe("{name: ll_v2, combine_dtype: fp8}", "512", moe=shape(fp8_group_size=48)),
    moe("{name: ll_v2, fuse_expert: true, layout: rank}", "true"),
    moe("{name: ll_v2, recv_layout: padded}", "4000000", moe=shape(max_tokens=4000000, experts=2048), ranks="8"),
    moe("{name: token_flag, chunks: 2, flag_granularity: rank}", "2, flag"),
    moe("{name: token_flag, parts: 2}", "2}"),
    moe("{name: token_flag, parts: 2, fuse_expert: true}", "true", expert=MLP),
    moe("{name: token_flag, parts: 2, buffers: 1}", "1}", expert=MLP),
    moe("{name: token_flag, parts: 2}", "pipelined", expert=MLP, verify="{order: pipelined}"),
    # options for GPUs only
    *(moe(f"{{name: {name}, blocks: 3}}", "3") for name in ("ll_v1", "ll_v2", "token_flag")),
    *(moe(f"{{name: {name}, pdl: false}}", "false") for name in ("ll_v1", "ll_v2")),
    *(moe(f"{{name: ll_v2, {option}: true}}", "true") for option in ("split_phase", "fuse_expert")),
    *(moe(f"{{name: ll_v2, combine_mode: {mode}}}", mode) for mode in ("pull", "push")),
    *(moe(f"{{name: token_flag, {option}: [2, 2, 2, 2]}}", "[2") for option in ("kernel_blocks", "kernel_warps")),
    *(moe(f"{{name: fused, {option}: 3}}", "3", expert=MLP) for option in ("lag", "waves", "blocks")),
    *(gemm(f"{{name: ag_gemm_2d, {option}: 1}}", "1}") for option in ("cluster", "panel", "comm_blocks", "blocks", "put_blocks")),
    gemm("{name: ag_gemm_2d, product: own}", "own"),
    moe("fused", "fused", moe=shape()),
    moe("fused", "560", moe=shape(hidden=560), expert=MLP),
    moe("fused", "208", expert="{kind: mlp, ffn: 208}"),
    moe("{name: fused, tail_workers: 1}", "1", expert=MLP),
    moe("{name: fused, dispatch_dtype: fp8}", "32}", moe=shape(fp8_group_size=32), expert="{kind: mlp, ffn: 128, weights: fp8}"),
    *(moe(name, "576", moe=shape(hidden=576), expert="{kind: mlp, ffn: 128, weights: fp8}") for name in ("fused", "ll_v2")),
    *(moe(name, "192", expert="{kind: mlp, ffn: 192, weights: fp8}") for name in ("fused", "ll_v2")),
    *(moe(name, "160", expert="{kind: mlp, ffn: 160, weights: fp8, fp8_group_size: 64}") for name in ("fused", "ll_v2")),
    moe("{name: alltoallv, mode: shared}", "shared", ranks="4", ranks_per_node="2", transport="{name: ucx}"),
    moe("ll_v2", "9", moe=shape(topk=9)),
    moe("ll_v2", "9", tokens="{kind: random, min: 9}"),
    moe("ll_v2", "9]", tokens="[8, 9]"),
    moe("ll_v2", "[8]", tokens="[8]"),
    moe("ll_v2", "nope", expert="{output: nope}"),
    gemm("ag_gemm_2d", "60", gemm="{m: 96, n: 128, k: 60}"),
    gemm("ag_then_gemm", "60", gemm="{m: 96, n: 128, k: 60}"),
    gemm("{name: ag_gemm_2d, tile_rows: 7}", "7"),
    *(gemm(f"{{name: ag_gemm_2d, {option}: copy_engine}}", "copy_engine") for option in ("mover", "forward")),
    gemm("{name: ag_gemm_2d, gather: 2d}", "3", ranks="4", ranks_per_node="3", transport="{name: ucx}"),
    gather("allgather", "24", allgather="{max_rows: 8, row_bytes: 24}"),
    gather("{name: allgather, blocks: 4}", "4"),
    gather("{name: allgather, mode: pull}", "pull", ranks_per_node="1", transport="{name: ucx, tls: tcp}"),
    # contradictory settings
    moe("ll_v2", "2", ranks="4", ranks_per_node="2"),
    moe("ll_v2", "3", ranks="4", ranks_per_node="3"),
    moe("ll_v2", "stop", launcher="thread", transport="{name: ucx}", fault="{kind: stop, rank: 0}"),
    moe("ll_v2", "gemm", gemm="{m: 96}"),
    moe("{name: ll_v2, nope: 1}", "nope"),
    moe("{name: ll_v2, buffers: 3}", "3"),
    moe("nope", "nope"),
    moe("ll_v2", "nope", transport="nope"),
    moe("{name: ll_v2, dispatch_dtype: fp8}", "allclose", verify="{tolerance: allclose}"),
    moe("{name: ll_v2, fuse_expert: true}", "true", expert=MLP),
    moe("ll_v2", "20s", timeout="10s", verify="{straggle: 20s}"),
    # memory, files
    moe("ll_v2", "4000000", moe=shape(max_tokens=4000000, hidden=8192, topk=1)),
    moe("ll_v1", "1000000", moe=shape(max_tokens=1000000, hidden=8192, topk=1), ranks="8"),
    gather("allgather", "4000000", allgather="{max_rows: 4000000, row_bytes: 1048576}"),
    gemm("ag_then_gemm", "2000000", gemm="{m: 2000000, n: 128, k: 65536}"),
    moe("ll_v2", "nowhere", routing="{kind: file, path: nowhere.jsonl}"),
    moe("ll_v2", "bad.jsonl", routing="{kind: file, path: bad.jsonl}"),
    moe("ll_v2", "5}", routing="{kind: file, path: short.jsonl, skip: 5}"),
    moe("ll_v2", "nowhere", profile="nowhere/trace"),
    # bench and run
    moe("ll_v2", "3", verb="bench", bench="{calls_per_graph: 3}"),
    moe("ll_v2", "graph", verb="bench", bench="{clock: graph}"),
    moe("ll_v2", "cold", verb="bench", bench="{cache: cold}"),
    moe("ll_v2", "poisson", verb="bench", bench="{arrivals: poisson}"),
    moe("ll_v2", "9s", verb="bench", bench="{min_time: 9s, max_time: 1s}"),
    moe("ll_v2", "4000000000", verb="bench", bench="{iterations: 4000000000}"),
    moe("ll_v2", "4000000000", verb="run", run="{iterations: 4000000000}"),
    moe("ll_v2", "500000", verb="bench", bench="{input_sets: 500000}"),
]
PLACE = re.compile(r"^([^\s:]+):(\d+):(\d+): (?:skipped|error): (.*)$")


def first_refusal(epa2a, *args):
    done = subprocess.run([epa2a, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    line = next((line for line in done.stderr.splitlines() if "error:" in line), "")
    return done.returncode, line, PLACE.match(line)


def main():
    epa2a = os.path.abspath(sys.argv[1])
    wrong, ran = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("bad.jsonl", "w") as file:
            file.write('{"topk_ids": [0, 99]}\n')
        with open("short.jsonl", "w") as file:
            file.write('{"topk_ids": [0, 1]}\n')
        for verb, keys, at in CASES:
            lines = ["version: 1", *(f"{key}: {value}" for key, value in keys.items())]
            with open("x.yaml", "w") as file:
                file.write("\n".join(lines) + "\n")
            name = f"{verb} {keys}"
            code, line, here = first_refusal(epa2a, verb, "x.yaml")
            check_code, check_line, check = first_refusal(epa2a, "config", "check", "x.yaml")
            if "not part of this build" in line or "cannot be loaded" in line or re.search("there is no transport '(ucx|mpi)'", line):
                continue
            ran += 1
            if code not in (2, 3) or line == "":
                wrong.append(f"{name}: {verb} does not refuse it: {code} {line}")
            elif here is None or check is None:
                wrong.append(f"{name}: no place:\n    {line}\n    {check_line}")
            elif (code, line) != (check_code, check_line):
                wrong.append(f"{name}: {verb} and config check differ:\n    {code} {line}\n    {check_code} {check_line}")
            elif here.group(1) == "x.yaml" and not lines[int(here.group(2)) - 1][int(here.group(3)) - 1:].startswith(at):
                wrong.append(f"{name}: points at '{lines[int(here.group(2)) - 1][int(here.group(3)) - 1:]}':\n    {line}")
    print(*wrong, f"{ran} experiments, {len(wrong)} wrong", sep="\n")
    return wrong != [] or ran < 60


if __name__ == "__main__":
    sys.exit(main())
