#!/usr/bin/env python3
"""tune.py EPA2A: `epa2a tune` of ranks on GPUs, which are threads of one process that is kept: over kernels on CPUs."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

FILE = """version: 1
ranks: 2
backend: {name: cuda, share: true}
transport: nvlink
algorithm: ll_v2
moe: {max_tokens: 4, hidden: 256, experts: 8, topk: 2, fp8_group_size: 128}
timeout: 20s
bench: {warmup: 2, iterations: 40, calls_per_graph: 2}
"""


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main(epa2a):
    epa2a = os.path.abspath(epa2a)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("x.yaml").write_text(FILE)
        journal = pathlib.Path("dir/tune.jsonl")

        def turns():
            lines = journal.read_text().splitlines()[1:] if journal.exists() else []
            return [json.loads(line) for line in lines]

        def wait_for(n):
            while len(turns()) < n:
                assert job.poll() is None, job.communicate()
                time.sleep(0.01)

        job = subprocess.Popen([epa2a, "tune", "x.yaml", "--keys", "algorithm.*", "--budget", "600s", "--out-dir", "dir",
                                "--json", "x.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # All turns use one process. A setting that ends the process is dropped, and another
        # process continues. (Stopped, tune waits for a turn of the first round; the next turn must
        # not be the one with the settings of the file, which is required.)
        wait_for(5)
        (first,) = children(job.pid)
        wait_for(6)
        job.send_signal(signal.SIGSTOP)
        assert children(job.pid) == [first] and len(turns()) <= 8, turns()
        os.kill(first, signal.SIGKILL)
        job.send_signal(signal.SIGCONT)
        while not any(turn["code"] for turn in turns()):
            wait_for(len(turns()) + 1)
        wait_for(len(turns()) + 3)
        (second,) = children(job.pid)
        assert second != first
        # An interrupted tune prints its results so far and leaves no process.
        job.send_signal(signal.SIGINT)
        printed = job.communicate()[0]
        assert job.returncode == 130 and "ranks were threads of one" in " ".join(printed.split("\n#   ")), printed
        assert not pathlib.Path(f"/proc/{second}").exists()
        (lost,) = [turn for turn in turns() if turn["code"] != 0]
        assert "died" in lost["error"], lost
        # A sample is a graph of two calls: twenty samples suffice, or as many as take a third of a
        # turn.
        first, usual = turns()[1:4], turns()[4]["what"]
        most = max(turn["took_ns"] for turn in first) / 3 / (2 * min(turn["fastest_ns"] for turn in first))
        assert usual["iterations"] <= max(20, most), (first, usual)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
