#!/usr/bin/env python3
"""tune.py EPA2A [--gpu] [NAME...]: `epa2a tune` against an exhaustive sweep of the same options, for six shapes on this
host. The sweep measures each combination twice or more, RUNS runs in all, in an order by chance, and takes the least median; tune
gets one part in PART of the time that this took. Then what both have found takes turns (`compare --run`): a ratio of
1.02 is 2 % behind the sweep. PART is small as these sweeps are: the last comparison alone takes 40 turns. With --gpu: four
shapes on one GPU, where a run takes a second to begin."""
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time

RUNS, PART = 300, 2
MOE = "moe: {max_tokens: %d, hidden: %d, experts: 16, topk: 4, fp8_group_size: 128}"
GPU_MOE = "moe: {max_tokens: %d, hidden: 7168, experts: 256, topk: 8, fp8_group_size: 128, dtype: %s}"
SHAPES = {
    "ll_v2, 16 x 256": ("algorithm: ll_v2\n" + MOE % (16, 256),
                        "algorithm.dedup algorithm.recv_layout algorithm.nontemporal transport.wait"),
    "ll_v1, 16 x 512": ("algorithm: ll_v1\n" + MOE % (16, 512),
                        "algorithm.exchange algorithm.nontemporal transport.wait"),
    "token_flag, 16 x 256": ("algorithm: token_flag\n" + MOE % (16, 256),
                             "algorithm.counter_reset algorithm.work_partition algorithm.chunks algorithm.nontemporal "
                             "transport.wait"),
    "ll_v2, 2 x 2048": ("algorithm: ll_v2\n" + MOE % (2, 2048),
                        "algorithm.dedup algorithm.recv_layout algorithm.nontemporal transport.wait"),
    "allgather, 64 x 4096": ("algorithm: allgather\nallgather: {max_rows: 64, row_bytes: 4096}",
                             "algorithm.mode algorithm.chunks algorithm.nontemporal transport.wait"),
    "ag_gemm_2d, 256": ("algorithm: ag_gemm_2d\ngemm: {m: 256, n: 256, k: 256}",
                        "algorithm.mode algorithm.chunks algorithm.order"),
}

GPU_SHAPES = {
    "ll_v2, 128 x 7168": ("algorithm: ll_v2\n" + GPU_MOE % (128, "bf16"),
                          "algorithm.pdl algorithm.blocks"),
    "ll_v2, 4096 x 7168": ("algorithm: ll_v2\n" + GPU_MOE % (4096, "bf16"),
                           "algorithm.pdl algorithm.blocks"),
    "ll_v1, 128 x 7168": ("algorithm: ll_v1\n" + GPU_MOE % (128, "bf16"),
                          "algorithm.pdl algorithm.blocks"),
    "token_flag, 128 x 7168": ("algorithm: token_flag\n" + GPU_MOE % (128, "f16"),
                               "algorithm.counter_reset algorithm.work_partition algorithm.chunks"),
}


def main(epa2a, *names):
    def run(*args):
        done = subprocess.run([epa2a, *args], capture_output=True, text=True, check=False)
        # 4: a run of a sweep was late
        assert done.returncode in (0, 4, 10, 77), (args, done.returncode, done.stdout, done.stderr)
        return done.stdout

    print("| shape | combinations | sweep [s] | tune [s] | fastest of the sweep | found by tune | tune / sweep | 99 % |\n"
          "|---|---:|---:|---:|---|---|---:|---|", flush=True)
    gpu = names[:1] == ("--gpu",)
    world = "ranks: 1\nbackend: cuda\ntransport: nvlink" if gpu else "ranks: 2"
    runs, part, last = (48, 3, "20s") if gpu else (RUNS, PART, "45s")
    names = names[gpu:]
    for name, (text, keys) in (GPU_SHAPES if gpu else SHAPES).items():
        if names and name.split(",")[0] not in names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = {which: str(pathlib.Path(folder, which)) for which in ("x.yaml", "sweep.yaml", "tuned.yaml", "x.json")}
            pathlib.Path(path["x.yaml"]).write_text(
                f"version: 1\n{world}\n{text}\nbench: {{warmup: 20, iterations: 200}}\n")
            algorithm = re.search(r"algorithm: (\w+)", text)[1]
            tried = {}
            for key in keys.split():
                kind, option = key.split(".")
                plugin = {"algorithm": algorithm, "transport": "nvlink" if gpu else "shm", "launcher": "fork",
                          "backend": "cuda" if gpu else "host"}[kind]
                tried[key] = re.search(r"^  tune +(?:cuda: )?([^(\n]*)", run("help", f"{plugin}.{option}"), re.M)[1].split()
            # What this machine does not allow is in no matrix.
            tried = {key: [value for value in values if subprocess.run(
                [epa2a, "run", path["x.yaml"], "--quiet", "--set", f"{key}={value}", "--set", "run.iterations=1"],
                capture_output=True, check=False).returncode == 0] for key, values in tried.items()}
            repeat = max(2, runs // math.prod(len(values) for values in tried.values()))
            start = time.monotonic()
            out = run("bench", path["x.yaml"], "--quiet", "--set", f"repeat={repeat}", "--json-lines", path["x.json"],
                      "--order", "shuffled", *itertools.chain(*(("--set", f"matrix.{key}=[{', '.join(values)}]")
                                                                for key, values in tried.items())))
            spent, medians, chosen = time.monotonic() - start, {}, {}
            for line in pathlib.Path(path["x.json"]).read_text().splitlines():
                for result in json.loads(line)["results"]:
                    label = re.sub(r" #\d+$", "", result["label"])
                    if result["status"] == "ok":
                        medians.setdefault(label, []).append(result["stages"][-1]["ns"]["median"])
                        chosen[label] = {key: result["experiment"][key.split(".")[0]][key.split(".")[1]] for key in tried}
            assert medians, out
            best = min(medians, key=lambda label: sorted(medians[label])[(len(medians[label]) - 1) // 2])
            sets = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in chosen[best].items()]
            pathlib.Path(path["sweep.yaml"]).write_text(
                run("config", "show", path["x.yaml"], *itertools.chain(*(("--set", one) for one in sets))))
            run("tune", path["x.yaml"], "--budget", f"{spent / part:.1f}s", "--out", path["tuned.yaml"], "--json",
                path["x.json"] + "2", *itertools.chain(*(("--keys", key) for key in keys.split())))
            tuned = json.loads(pathlib.Path(path["x.json"] + "2").read_text())
            run("compare", "--run", path["sweep.yaml"], path["tuned.yaml"], "--budget", last, "--threshold", "2%", "--json",
                path["x.json"] + "3")
            row = [r for r in json.loads(pathlib.Path(path["x.json"] + "3").read_text())["compared"] if r["verdict"]][0]
            won = " ".join(tuned["best"]["set"]) if tuned["better"] else "the file's settings"
            print(f"| {name} | {len(medians)} | {spent:.0f} | {tuned['spent_s']:.1f} | {' '.join(sets)} | {won} "
                  f"| {row['ratio']:.3f} | {row['low'] or 0:.3f} to {row['high'] or 0:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
