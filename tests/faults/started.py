#!/usr/bin/env python3
"""Ranks that other programs start, one process each, in the environments that launchers, containers and
other jobs leave behind.

started.py EPA2A KIND: the functions below are the kinds, and the docstring of each states its promise."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

WAIT = 200  # seconds for anything at all
EXPERIMENT = """version: 1
ranks: 2
timeout: 60s
moe: {max_tokens: 4, hidden: 128, experts: 4, topk: 2}
bench: {iterations: 30, warmup: 2}
verify: {iterations: 3}
"""
BATCH = EXPERIMENT + "matrix: {moe.topk: [1, 2], moe.max_tokens: [1, 2]}\n"
# Variables of a job that runs this test.
FOREIGN = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_", "EPA2A_", "RANK", "WORLD_SIZE", "LOCAL_",
           "MASTER_")


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def skip(*what):
    print("skip:", *what)
    sys.exit(77)


def wait_until(what, holds, children=()):
    end = time.monotonic() + WAIT
    while not holds():
        for child in children:
            if child.poll() is not None:
                fail(f"{what}: a process ended with {child.returncode}\n{child.text()}")
        if time.monotonic() > end:
            fail(f"{what}: not within {WAIT} s")
        time.sleep(0.005)


class Process(subprocess.Popen):
    """A process of epa2a, whose output goes to files."""

    def __init__(self, job, command, variables):
        self.path = job.work / f"output.{job.started}"
        job.started += 1
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with open(self.path, "wb") as out:
            super().__init__([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT,
                             env={**env, **variables})

    def text(self):
        return self.path.read_text("utf-8", "replace")

    def end(self):
        try:
            return self.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.kill()
            return fail(f"a process runs after {WAIT} s\n{self.text()}")


class Job:
    def __init__(self, epa2a, work):
        self.epa2a, self.work, self.started, self.reserved = epa2a, work, 0, []
        self.reserve_port()
        self.one, self.batch = work / "one.yaml", work / "batch.yaml"
        self.one.write_text(EXPERIMENT, "utf-8")
        self.batch.write_text(BATCH, "utf-8")

    def reserve_port(self):
        """Chooses a port for rank 0. A bound socket keeps it from other programs. Rank 0 can listen there, since both set
        SO_REUSEADDR."""
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        self.reserved.append(one)
        self.port = one.getsockname()[1]

    def start(self, variables, *words, under=()):
        return Process(self, [*under, self.epa2a, *words], variables)

    def variables(self, rank, size=2):
        return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}

    def rank(self, rank, *words, under=()):
        """As a script starts one of two ranks."""
        return self.start(self.variables(rank), *words, under=under)

    def pair(self, *words, under=((), ())):
        return [self.rank(rank, *words, under=under[rank]) for rank in range(2)]


def ends(children, *codes):
    have = tuple(child.end() for child in children)
    if have != codes:
        fail(f"exit codes {have}, not {codes}\n" + "\n".join(child.text() for child in children))


def says(child, *words):
    for word in words:
        if word not in child.text():
            fail(f"'{word}' is missing in\n{child.text()}")


def late(job):
    """A rank that starts after rank 0 has made the folder of --out-dir takes part in the batch."""
    for command in "bench", "verify", "run":
        folder = job.work / command
        words = [command, job.batch, "--out-dir", folder]
        first = job.rank(0, *words)
        wait_until("rank 0 makes the folder", (folder / "results.jsonl").exists, [first])
        ends([first, job.rank(1, *words)], 0, 0)
        # Rank 0 refuses the folder of a finished batch before it waits for others.
        ends([job.rank(0, *words)], 2)


def steps(job):
    """Ranks of a Slurm step are one run, whatever a notebook, an outer launcher or PMI-2 adds to their variables."""
    def step(rank):
        return {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
                "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}

    for more in ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
                 {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
                 {"PMI_RANK": "RANK", "PMI_SIZE": "2", "PMI_JOBID": "7.0", "PMI_FD": "9"}):
        ranks = [job.start({**step(rank), **{name: value.replace("RANK", str(rank)) for name, value in more.items()}},
                           "run", job.one) for rank in range(2)]
        ends(ranks, 0, 0)
        says(ranks[0], "2 ranks by env", "Slurm: SLURM_PROCID=0 of SLURM_STEP_NUM_TASKS=2")


def thorough(job):
    """verify --thorough skips the variant that starts ranks itself, and runs the others."""
    path = job.work / "thorough.json"
    ends(job.pair("verify", job.one, "--thorough", "--json", path), 0, 0)
    rows = {row["label"]: row["end"] for row in json.loads(path.read_text("utf-8"))["summary"]}
    if rows.pop("threads") != "skipped" or rows.pop("reorder") != "ok" or not set(rows.values()) <= {"ok", "skipped"}:
        fail("ends of variants:", rows)


def again(job):
    """A result is run again under another launcher than its own, as bench would run."""
    fork, env = job.work / "fork.json", job.work / "env.json"
    ends([job.start({}, "bench", job.one, "--json", fork)], 0)
    ends(job.pair("bench", fork, "--json", env), 0, 0)
    back = job.start({}, "bench", env)
    ends([back], 0)
    says(back, 'world.launcher: "env" then, "fork" now')


def lost(job):
    """A batch waits once for a rank that never arrives, whichever rank that is. The limits of two waits leave time for
    other load."""
    begun, children = time.monotonic(), []
    for rank, words in (0, ("rank 1 of 2 did not connect", "3 more runs are not started")), \
                       (1, ("cannot reach rank 0", "3 more runs are not started")):
        children.append((job.rank(rank, "bench", job.batch, "--set", "launcher.start=10s"), words))
        job.reserve_port()
    for child, words in children:
        ends([child], 4)
        took = time.monotonic() - begun
        says(child, *words)
        if not 10 <= took < 20:
            fail("a rank ends after", took, "s")


def unshare(*options):
    """The words that start a rank in namespaces of its own."""
    words = "unshare", *options
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        skip("no", *words)
    return words


def clocks(job):
    """A rank in a time namespace has a clock of its own, whose offset a trace knows."""
    path = job.work / "t.json"
    under = (), unshare("-T", "--monotonic", "100000", "--fork")
    ends(job.pair("bench", job.one, "--set", f"profile={job.work / 't'}", under=under), 0, 0)
    ends([job.start({}, "trace", "summary", path)], 0)
    clock = json.loads(path.read_text("utf-8"))["otherData"]["clocks"][1]
    if "exchanged" not in clock["method"] or not 99999e9 < clock["offset_ns"] < 100001e9:
        fail("the clock of rank 1 is", clock)
    refused = job.pair("bench", job.one, "--set", "bench={arrivals: constant, rate: 1000}", under=under)
    ends(refused, 3, 3)
    says(refused[0], "different clocks")


def containers(job):
    """Ranks in PID or user namespaces of their own are nodes: shm says so, and UCX connects them."""
    ucx = subprocess.run([job.epa2a, "list"], capture_output=True, text=True, check=False).stdout
    for options in ("-p", "-f", "--mount-proc"), ("-U", "-r"):
        under = unshare(*options), unshare(*options)
        refused = job.pair("run", job.one, "--set", "transport=shm", under=under)
        ends(refused, 3, 3)
        says(refused[0], "namespace", "set transport to")
        if "ucx" in ucx:
            job.reserve_port()
            ends(job.pair("verify", job.one, "--set", "transport=ucx", under=under), 0, 0)


def strays(job):
    """A rank of another job is refused, by its experiment or by the job that its scheduler names, and the launch goes
    on. A rank that never arrives is reported with the stray."""
    other = {"SLURM_JOB_ID": "2"}
    for file, variables in (job.batch, {}), (job.one, other):
        job.reserve_port()
        first = job.start({**job.variables(0), "SLURM_JOB_ID": "1"}, "run", job.one)
        ends([job.start({**job.variables(1), **variables}, "run", file, "--fail-fast")], 2)
        says(first, "warning: rank 0 refused")
        ends([first, job.start({**job.variables(1), "SLURM_JOB_ID": "1"}, "run", job.one)], 0, 0)
    first = job.rank(0, "run", job.one, "--set", "launcher.start=10s")
    ends([job.rank(1, "run", job.batch, "--fail-fast"), first], 2, 4)
    says(first, "rank 1 of 2 did not connect", "another experiment")


KINDS = {kind.__name__: kind for kind in (late, steps, thorough, again, lost, clocks, containers, strays)}


def main():
    epa2a, kind = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        KINDS[kind](Job(epa2a, pathlib.Path(work)))


main()
