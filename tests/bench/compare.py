#!/usr/bin/env python3
"""compare.py EPA2A [PAIRS [PLANTED [PERCENT [BUDGET]]]]: can `epa2a compare --run` be trusted on this machine, as loaded
as it is? PAIRS (200) pairs of equal experiments: how many are called slower or faster, which are false alarms. Then
PLANTED (10) pairs whose second side has PERCENT (5) more tokens, all of which cross: how many are found within BUDGET
(60s). `chrt -r 1 compare.py ...` gives turns first call on the cores. What must be: 2 alarms of 200, and 9 of 10 found. 2 % wants --threshold 1%."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

EXPERIMENT = """version: 1
ranks: 2
transport: shm
algorithm: ll_v2
moe: {max_tokens: %d, hidden: 2048, experts: 16, topk: 4}
bench: {warmup: 10, iterations: 400}
"""
TOKENS = 100


def main(epa2a, pairs="200", planted="10", percent="5", budget="60s"):
    def turns(a, b, number):
        threshold = "3%" if float(percent) > 3 else "1%"
        start = time.monotonic()
        done = subprocess.run([epa2a, "compare", "--run", a, b, "--force", "--budget", budget, "--threshold", threshold,
                               "--json", "-"], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 2, 4, 10), (done.returncode, done.stderr)
        compared = json.loads(done.stdout) if done.stdout.startswith("{") else {"compared": [], "rounds": 0}
        row = [r for r in compared["compared"] if r["verdict"]] or [{"verdict": "no round", "ratio": 0}]
        print(f"{number}: {row[0]['verdict']} {row[0]['ratio']:.3f}, {compared['rounds']} rounds by percentile "
              f"{compared.get('percentile')} in {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
        return row[0]["verdict"]

    with tempfile.TemporaryDirectory() as folder:
        equal, more = (str(pathlib.Path(folder, name)) for name in ("equal.yaml", "more.yaml"))
        pathlib.Path(equal).write_text(EXPERIMENT % TOKENS, "utf-8")
        pathlib.Path(more).write_text(EXPERIMENT % round(TOKENS * (1 + float(percent) / 100)), "utf-8")
        found = [turns(equal, more, f"planted {i + 1}") for i in range(int(planted))]
        verdicts = [turns(equal, equal, f"equal {i + 1}") for i in range(int(pairs))]
    alarms = sum(verdict in ("SLOWER", "faster") for verdict in verdicts)
    print(f"{alarms} alarms in {len(verdicts)} equal pairs, {verdicts.count('same')} same, {verdicts.count('unclear')} "
          f"unclear; {percent} % planted: {found.count('SLOWER')} of {len(found)} found")
    return 0 if alarms <= len(verdicts) / 100 and found.count("SLOWER") >= 0.9 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
