#!/usr/bin/env python3
"""stopped_rank.py EPA2A SOURCE: with each algorithm and transport, a rank that waits for a stopped rank names it: in the
text of its time-out, and by the field of the error that `verify.stop` compares."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

LIMIT = "3s"
FILES = {"moe": "configs/small.yaml", "ag_gemm": "tests/contract/algorithm/ag_gemm/fault.yaml",
         "allgather": "tests/contract/algorithm/allgather/fault.yaml", "fused": "tests/contract/algorithm/fused_faults.yaml",
         "layer": "tests/contract/algorithm/token_flag_layer_faults.yaml"}
RUNS = [  # file and settings
    ("moe", "algorithm=ll_v1"), ("moe", "algorithm=ll_v2", "transport=reorder"), ("moe", "algorithm=token_flag"),
    ("moe", "algorithm=ll_v2", "transport=ucx"), ("moe", "algorithm=ll_v2", "api=calls"), ("fused",), ("layer",), ("ag_gemm",),
    ("ag_gemm", "transport=reorder"), ("allgather",), ("allgather", "transport=reorder"),
]


def verify(epa2a, *arguments):
    done = subprocess.run([epa2a, "verify", *arguments, "--timeout", LIMIT, "--quiet"], capture_output=True, text=True, check=False,
                          timeout=600)
    return done.returncode, done.stdout + done.stderr


def main(epa2a, source):
    wrong = []
    for name, *settings in RUNS:
        path = pathlib.Path(source, FILES[name]).resolve()
        common = [path, *(word for setting in settings for word in ("--set", setting))]
        with tempfile.TemporaryDirectory() as work:
            batch = pathlib.Path(work, "x.yaml")
            batch.write_text(f"include: {path}\nverify: {{iterations: 2}}\nmatrix: {{verify.stop: [first, last]}}\n")
            code, said = verify(epa2a, batch, *common[1:])
            if code != 0:
                wrong.append(f"{name} {settings}: verify.stop: exit code {code}: {said}")
            report = pathlib.Path(work, "x.json")
            shown = subprocess.run([epa2a, "config", "show", *common], capture_output=True, text=True, check=True).stdout
            last = int(re.search(r"^ranks: (\d+)", shown, re.M).group(1)) - 1
            fault = f"fault={{kind: stop, rank: {last}, iteration: 1, for: 60s}}"
            code, said = verify(epa2a, *common, "--set", fault, "--json", report)
            error = json.loads(report.read_text())["results"][0]["error"]
            if code != 4 or not re.search(rf"\brank {last}\b", error["text"]):
                wrong.append(f"{name} {settings}: planted stop of rank {last}: exit code {code}: {error}: {said}")
    print(*wrong, f"{len(RUNS)} runs, {len(wrong)} without the name of the stopped rank", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
