#!/usr/bin/env python3
"""The table of "My first Multi-GPU kernel: Writing All-to-all for AMD MI300X", from its first row to its last:

    tests/bench/worklog.py EPA2A [--gpus] [--ranks 2] [--tokens 128] [--iterations 20]

Rows: the reference, which loops over tokens in Python; sorted rows and an all-to-all; each step of
configs/worklog.yaml. Times are means from a barrier to the next barrier, with cold caches and
experts included, as in the contest. On hosts the reference uses NumPy and processes, and the
all-to-all is the algorithm alltoallv under mpirun. --gpus: nccl.py (PyTorch and NCCL) measures the
first two rows, and configs/worklog-nvlink.yaml has the others. A row that cannot run has its reason
instead of a time, and the exit code is 77 if only programs or libraries are missing, otherwise 1. The
sums of the reference are checked."""

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


class Unavailable(Exception):
    """Reason why a row has no time."""


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("epa2a", help="the program, such as build/src/epa2a")
    a.add_argument("--gpus", action="store_true", help="ranks on GPUs of this host")
    for name, value in (("ranks", 2), ("tokens", 128), ("hidden", 7168), ("experts", 256), ("topk", 8), ("iterations", 20)):
        a.add_argument("--" + name, type=int, default=value)
    o = a.parse_args()
    if o.experts % o.ranks != 0:
        a.error(f"{o.experts} experts are not a multiple of {o.ranks} ranks")
    return o


# ---- the reference on hosts ----

class Reference:
    """One rank: loops over tokens and over rows as they arrive; rows of experts are padded."""

    def __init__(self, o, rank, queues, barrier):
        import numpy
        self.np, self.o, self.rank, self.queues, self.barrier = numpy, o, rank, queues, barrier
        self.local = o.experts // o.ranks
        random = numpy.random.default_rng(1000 + rank)
        self.x = random.standard_normal((o.tokens, o.hidden)).astype(numpy.float16)
        self.expert = numpy.argsort(random.random((o.tokens, o.experts)), axis=1)[:, :o.topk].tolist()
        self.weight = random.random((o.tokens, o.topk))

    def exchange(self, rows):
        """Sends rows[r] to rank r; returns the rows from all ranks in order of ranks."""
        for rank in range(self.o.ranks):
            self.queues[self.rank][rank].put(rows[rank])
        return [row for rank in range(self.o.ranks) for row in self.queues[rank][self.rank].get()]

    def dispatch(self):
        send = [[] for _ in range(self.o.ranks)]
        for t, choices in enumerate(self.expert):
            for k, e in enumerate(choices):
                send[e // self.local].append((e, self.rank, t, k, self.x[t]))
        x = self.np.zeros((self.local, self.o.ranks * self.o.tokens, self.o.hidden), self.np.float16)
        meta = [[] for _ in range(self.local)]
        for e, rank, t, k, row in self.exchange(send):
            x[e % self.local, len(meta[e % self.local])] = row
            meta[e % self.local].append((rank, t, k))
        return x, meta

    def combine(self, y, meta):
        send = [[] for _ in range(self.o.ranks)]
        for e, rows in enumerate(meta):
            for i, (rank, t, k) in enumerate(rows):
                send[rank].append((t, k, y[e, i]))
        out = self.np.zeros(self.x.shape, self.np.float32)
        for t, k, row in self.exchange(send):
            out[t] += row.astype(self.np.float32) * self.weight[t, k]
        return out.astype(self.np.float16)

    def layer(self):
        x, meta = self.dispatch()
        return self.combine(x * self.np.float16(1 + self.rank), meta)

    def is_right(self):
        factor = [sum(w * (1 + e // self.local) for w, e in zip(*row)) for row in zip(self.weight, self.expert)]
        want = self.x.astype(self.np.float32) * self.np.array(factor)[:, None]
        return self.np.allclose(self.layer().astype(self.np.float32), want, rtol=2e-2, atol=5e-2)

    def run(self, out):
        right, took = self.is_right(), []
        for _ in range(min(self.o.iterations, 5)):
            self.barrier.wait()
            begun = time.perf_counter()
            self.layer()
            self.barrier.wait()
            took.append((time.perf_counter() - begun) * 1e6)
        out.put((right, sum(took) / len(took)))


def reference_on_hosts(o):
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise Unavailable("needs NumPy") from None
    m = multiprocessing.get_context("fork")
    queues = [[m.Queue() for _ in range(o.ranks)] for _ in range(o.ranks)]
    barrier, out = m.Barrier(o.ranks, timeout=600), m.Queue()
    ranks = [m.Process(target=lambda r: Reference(o, r, queues, barrier).run(out), args=(r,)) for r in range(o.ranks)]
    for rank in ranks:
        rank.start()
    results = [out.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    if not all(right for right, _ in results):
        raise Unavailable("its sums are wrong")
    return max(mean for _, mean in results)


# ---- rows by programs ----

def nccl(o, *more):
    done = subprocess.run([sys.executable, SOURCE / "tests/bench/nccl.py", "--dtype", "f16", "--wall", *more]
                          + [f"--{name}={getattr(o, name)}" for name in ("ranks", "tokens", "hidden", "experts", "topk")],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        if "No module named" in reason:
            reason = "needs PyTorch"
        raise Unavailable(f"needs {o.ranks} GPUs" if "as many GPUs" in reason else reason)
    result = json.loads(done.stdout.splitlines()[-1])  # libraries may print before it
    if not result["ok"]:
        raise Unavailable("its sums are wrong")
    return result["wall_us"]["mean"]


def bench(o, config, before=()):
    """Returns the mean total of each run of a configuration by its name."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        settings = [f"ranks={o.ranks}", f"moe.max_tokens={o.tokens}", f"moe.hidden={o.hidden}", f"moe.experts={o.experts}",
                    f"moe.topk={o.topk}", "moe.dtype=f16", "algorithm.dispatch_dtype=native",
                    f"bench={{clock: end_to_end, cache: cold, warmup: 3, iterations: {o.iterations}}}"]
        done = subprocess.run([*before, o.epa2a, "bench", SOURCE / "configs" / config, "--json", result, "--quiet"]
                              + [word for setting in settings for word in ("--set", setting)],
                              capture_output=True, text=True, check=False)
        if not result.exists():
            raise Unavailable((done.stderr.strip().splitlines() or ["no reason"])[0])
        return {run["run"] or run["name"]: run["stages"][-1]["ns"]["mean"] / 1e3 if run["stages"] else run["error"]["text"]
                for run in json.loads(result.read_text("utf-8"))["results"]}


def alltoallv(o):
    plugins = subprocess.run([o.epa2a, "list", "algorithm"], capture_output=True, text=True, check=True).stdout
    if shutil.which("mpirun") is None or " alltoallv " not in plugins:
        raise Unavailable("needs mpirun and a build with MPI")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return next(iter(bench(o, "alltoallv.yaml", before=["mpirun", "-n", str(o.ranks), "--oversubscribe", *root]).values()))


def attempt(row, *args):
    try:
        return row(*args)
    except Unavailable as reason:
        return str(reason)


def main():
    o = arguments()
    if o.gpus:
        rows = {"reference: loops over tokens": attempt(nccl, o, "--reference", "--iterations", "5", "--warmup", "1"),
                "sort and all-to-all (PyTorch, NCCL)": attempt(nccl, o, "--iterations", str(o.iterations))}
    else:
        rows = {"reference: loops over tokens": attempt(reference_on_hosts, o),
                "sort and all-to-all (MPI)": attempt(alltoallv, o)}
    steps = attempt(bench, o, "worklog-nvlink.yaml" if o.gpus else "worklog.yaml")
    rows.update(steps if isinstance(steps, dict) else {"token_flag": steps})
    first = rows["reference: loops over tokens"]
    print("| step | mean total, us | reference / step |\n|---|---|---|")
    for name, us in rows.items():
        timed = isinstance(us, float)
        ratio = f"{first / us:.1f}" if timed and isinstance(first, float) else ""
        print(f"| {name} | {f'{us:.0f}' if timed else us} | {ratio} |")
    missing = [us for us in rows.values() if not isinstance(us, float)]
    return 0 if not missing else 77 if all(reason.startswith("needs ") for reason in missing) else 1


if __name__ == "__main__":
    sys.exit(main())
