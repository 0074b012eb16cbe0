#!/usr/bin/env python3
"""edges.py EPA2A KIND: numbers at the edges of what hosts and dtypes can hold. The functions below are the
kinds, and the docstring of each states its promise."""
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

HIDDEN, TOKENS = 256, 40
FILE = f"""version: 1
ranks: 2
moe: {{max_tokens: 8, hidden: {HIDDEN}, experts: 8, topk: 2}}
bench: {{iterations: 20, warmup: 2}}
verify: {{iterations: 4}}
expert: {{kind: mlp, ffn: 256}}
"""
FUSED = ("--set", "algorithm=fused")


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


class Bench:
    def __init__(self, epa2a, work):
        self.epa2a, self.work, self.file = epa2a, work, work / "x.yaml"
        self.file.write_text(FILE, "utf-8")
        made = pathlib.Path(__file__).parent / "plot-results.json"
        self.draws = self.run("plot", made, "--out", work / "made.svg", code=(0, 3)).returncode == 0  # 3: no matplotlib

    def run(self, *words, code=(0,)):
        done = subprocess.run([self.epa2a, *map(str, words)], capture_output=True, text=True, timeout=100, check=False)
        if done.returncode not in code:
            fail(" ".join(map(str, words)), f"ends with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def states(self, factor):
        """Writes hidden states; factor(row) multiplies the values of a row."""
        make, path = random.Random(7), self.work / "states.npy"
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({TOKENS}, {HIDDEN}), }}"
        head += " " * (63 - (10 + len(head)) % 64) + "\n"
        with open(path, "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
            for row in range(TOKENS):
                file.write(struct.pack(f"<{HIDDEN}f", *(make.gauss(0, 1) * factor(row) for _ in range(HIDDEN))))
        return "--set", f"routing.hidden_states={path}"


def verified(done):
    """Elements that were compared."""
    return int(re.search(r"^verified .*: ([\d,]+) elements compared", done.stdout, re.M)[1].replace(",", ""))


def zeros(bench):
    """Outputs of tokens that are zero, or too small for float32 once they are multiplied, are compared and right."""
    fp8 = ("--set", "expert.weights=fp8")
    for words in FUSED, ("--set", "algorithm.combine_dtype=fp8"), (*FUSED, "--set", "expert.activation=none"):
        want = verified(bench.run("verify", bench.file, *fp8, *words, *bench.states(lambda row: 1)))
        for least in 0, 1e-42, 1e-30, 1e-22, 1e-20:
            states = bench.states(lambda row, least=least: 1 if row % 4 else least)
            have = verified(bench.run("verify", bench.file, *fp8, *words, *states))
            if have != want:
                fail(words, least, have, "elements are compared, and", want, "without small tokens")


def overflow(bench):
    """Outputs that may overflow are counted and reported; verify fails if it could compare no output."""
    for words, factor, share in (((), 1e19, 1), (("--set", "moe.dtype=f16"), 1000, 1), (("--set", "moe.dtype=f16"), 150, .5)):
        for algorithm in FUSED, ("--set", "algorithm=ll_v2"):
            words = *words, *algorithm, *bench.states(lambda row, factor=factor: factor)
            done = bench.run("verify", bench.file, *words, "--json", bench.work / "v.json", "--force", code=(0, 1))
            result = json.loads((bench.work / "v.json").read_text("utf-8"))["results"][0]
            outputs, lost = result["verify"]["outputs"], result["verify"]["outputs_overflowed"]
            if not 0 < lost <= outputs or (lost == outputs) != (share == 1) or done.returncode != (share == 1):
                fail(words, factor, "exit code", done.returncode, "for", lost, "of", outputs, "outputs")
            if f"{lost:,} of {outputs:,} outputs" not in done.stderr or f", {lost:,} not compared" not in done.stdout:
                fail("verify does not report them:", done.stdout, done.stderr)
            done = bench.run("bench", bench.file, *words)
            if "not compared: their right values" not in done.stderr or not re.search("checked:.*(not compared|overflow)", done.stdout):
                fail("bench does not report them:", done.stdout, done.stderr)


def clock(bench):
    """Readers accept samples of 0 ns, which are below one step of the clock, and compute no ratio of them."""
    sizes = ("--set", "matrix.moe.max_tokens=[4, 8]", "--set", "repeat=5", "--set", "expert=scale")
    bench.run("bench", bench.file, *sizes, "--json", bench.work / "r.json")
    for stages, runs in (("combine",), 1), (("combine",), 99), (("dispatch", "combine", "total"), 1), (("total",), 99):
        document = json.loads((bench.work / "r.json").read_text("utf-8"))
        for run in document["results"][:runs]:
            for stage in run["stages"]:
                if stage["name"] in stages:
                    stage["samples_ns"] = [0] * len(stage["samples_ns"])
                    stage["ns"].update({name: 0 for name in ("min", "median", "p95", "p99", "max", "mean")})
        (bench.work / "z.json").write_text(json.dumps(document), "utf-8")
        said = "".join(bench.run(*words, code=(0, 10)).stdout for words in (
            ("best", bench.work / "z.json"), ("best", bench.work / "z.json", "--stage", "combine"),
            ("compare", bench.work / "r.json", bench.work / "z.json"), ("compare", bench.work / "z.json", bench.work / "r.json"),
            ("compare", bench.work / "z.json", bench.work / "z.json")))
        if re.search(r"\b-?(nan|inf)\b", said):
            fail(said)
        if runs == 99 and not re.search(rf"{stages[0]} +0.0 +0.0 .*unclear", said):
            fail("two sides of 0 ns are not unclear:", said)
        if bench.draws:
            for kind in "tokens", "distribution", "skew", "stages":
                bench.run("plot", bench.work / "z.json", "--kind", kind, "--out", bench.work / "z.svg", "--force")
    (bench.work / "z.json").write_text(json.dumps(document).replace('"samples_ns": [0', '"samples_ns": ["0"'), "utf-8")
    bench.run("best", bench.work / "z.json", code=(2,))


KINDS = {kind.__name__: kind for kind in (zeros, overflow, clock)}


def main():
    epa2a, kind = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        KINDS[kind](Bench(epa2a, pathlib.Path(work)))


main()
