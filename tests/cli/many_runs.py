#!/usr/bin/env python3
"""many_runs.py EPA2A CONFIG: --dry-run of 100,000 runs takes little memory, time in proportion to the runs, and lists the
same ids and labels as a check that keeps all experiments."""
import os
import subprocess
import sys
import tempfile

MEMORY = 400 << 20  # bytes; 100,000 experiments have 3 GB
RUNS = 100000


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def list_runs(epa2a, file, *options):
    """Returns the lines, the CPU time in seconds and the peak memory in bytes."""
    with subprocess.Popen([epa2a, "run", "--dry-run", file, "--max-runs", str(RUNS), *options], stdout=subprocess.PIPE,
                          text=True) as child:
        lines = child.stdout.read().splitlines()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        fail(file, options, "exit code", child.returncode)
    return lines, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main(epa2a, config):
    with tempfile.TemporaryDirectory() as work:
        def write(name, text):
            path = os.path.join(work, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"include: {config}\n{text}\n")
            return path

        def matrix(runs):
            return write(f"{runs}.yaml", f"matrix: {{moe.topk: [1], moe.max_tokens: [1, 2], seed: {list(range(1, runs // 2 + 1))}}}")

        lines, _, peak = list_runs(epa2a, write("repeat.yaml", f"repeat: {RUNS}"))
        if len(lines) != RUNS or lines[-1].split()[-1] != f"#{RUNS}":
            fail("repeat:", len(lines), lines[-1])
        if peak > MEMORY:
            fail(f"{RUNS} repetitions have {peak >> 20} MiB")
        few, many = matrix(2500), matrix(20000)
        _, few_s, _ = list_runs(epa2a, few)
        lines, many_s, peak = list_runs(epa2a, many)
        if len(lines) != 20000 or len(set(lines)) != 20000 or peak > MEMORY // 4:
            fail(f"20,000 points: {len(lines)} lines, {len(set(lines))} different, {peak >> 20} MiB")
        if many_s > 3 * 8 * few_s:
            fail(f"8 times the points take {many_s / few_s:.1f} times as long")
        # --out-dir keeps all experiments until the end.
        mixed = write("mixed.yaml", "runs: {a: {}, b: {launcher: thread}}\nmatrix: {moe.topk: [1, 2]}\nrepeat: 3")
        for options in ((), ("--only", "b*"), ("--set", "profile=t")):
            lean = list_runs(epa2a, mixed, *options)[0]
            kept = list_runs(epa2a, mixed, "--out-dir", os.path.join(work, "d"), *options)[0]
            if lean != kept or not lean:
                fail("the lists differ:", options, lean, kept)
        print(f"20,000 points: {many_s:.1f} s, {peak >> 20} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
