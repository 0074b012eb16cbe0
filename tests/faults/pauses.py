#!/usr/bin/env python3
"""pauses.py EPA2A [cpu | gpu]: a run that is suspended longer than its time limits goes on after it resumes.

cpu, gpu: the waits are those of kernels, on CPUs by the plugins in EPA2A_PLUGIN_PATH, or on GPUs, where kernels run on while their
processes are suspended. If a single rank is suspended, the others still time out, and name it."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

EXPERIMENT = """version: 1
ranks: {ranks}
timeout: {limit_ms}ms
launcher: {launcher}
{backend}
moe: {{max_tokens: 16, hidden: 256, experts: 8, topk: 2}}
verify: {{iterations: {iterations}}}
bench: {{iterations: {iterations}, warmup: 2}}
"""
# Ranks share the GPUs of a machine that has fewer. A late rank keeps the kernel of the other waiting when the pause begins.
KERNELS = """backend: {{name: cuda, share: true}}
transport: nvlink
algorithm: {carrier}
fault: {{kind: straggle, rank: 1, every: 1, for: {late_ms}ms}}"""
# Each place of the waits has a time limit in seconds; a pause, a delay of rank 1, and a time between the resumption of two
# processes, as multiples of the limit; and a number of pauses. Kernels on CPUs are slow, and read the clock every 0.3 s.
HOW = {
    "host": (.5, 5, 0, 0, 3),
    "cpu": (2, 3, .4, .2, 2),
    "gpu": (.5, 3, .2, 0, 2),
}
WAIT = 120


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def processes(group):
    """The members of a process group, with their state."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            found[int(name)] = fields[0]
    return found


def runs(epa2a, pid):
    """Whether ranks are past their first iterations."""
    done = subprocess.run([epa2a, "status", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return re.search(r"^ +0 +\d+ .* (dispatch|combine|between)\D* [1-9]\d* ", done.stdout, re.M)


class Freezer:
    """A cgroup for a run, in the mounted hierarchy of cgroup v2 or in one of its own, else in the freezer of v1."""

    def __init__(self):
        self.mounted, self.group, self.why = None, None, "no freezer in /proc/mounts"
        with open("/proc/mounts", encoding="utf-8") as mounts:
            lines = [line.split() for line in mounts]
        roots = [(line[1], "cgroup.freeze", "1", "0") for line in lines if line[2] == "cgroup2"]
        if not roots:
            self.mounted = tempfile.mkdtemp()
            done = subprocess.run(["mount", "-t", "cgroup2", "none", self.mounted], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                roots = [(self.mounted, "cgroup.freeze", "1", "0")]
            else:
                os.rmdir(self.mounted)
                self.mounted, self.why = None, done.stderr.strip()
        roots += [(line[1], "freezer.state", "FROZEN", "THAWED") for line in lines
                  if line[2] == "cgroup" and "freezer" in line[3].split(",")]
        for root, self.file, self.on, self.off in roots:
            group = os.path.join(root, f"epa2a-pauses-{os.getpid()}")
            try:
                os.mkdir(group)
            except OSError as error:
                self.why = str(error)
                continue
            self.group = group
            if os.path.exists(os.path.join(group, self.file)):
                break
            os.rmdir(group)
            self.group = None

    def add(self, pid):
        self.write("cgroup.procs", str(pid))

    def write(self, name, text):
        with open(os.path.join(self.group, name), "w", encoding="utf-8") as file:
            file.write(text)

    def is_frozen(self):
        name, words = ("freezer.state", ("FROZEN",)) if self.file == "freezer.state" else ("cgroup.events", ("frozen 1",))
        with open(os.path.join(self.group, name), encoding="utf-8") as file:
            text = file.read()
        return any(word in text for word in words)

    def close(self):
        if self.group is not None:
            os.rmdir(self.group)
        if self.mounted is not None:
            subprocess.run(["umount", self.mounted], check=False)
            os.rmdir(self.mounted)


def experiment(place, ranks, launcher, carrier, factor=1):
    """carrier: a transport, or an algorithm for kernels."""
    limit, _, late, _, _ = HOW[place]
    limit *= factor
    backend = "transport: {carrier}" if place == "host" else KERNELS
    return EXPERIMENT.format(ranks=ranks, launcher=launcher, backend=backend.format(carrier=carrier, late_ms=int(limit * late * 1000)),
                             limit_ms=int(limit * 1000), iterations=1000000)


def resume(group, gap_s):
    """Rank 0 runs again before rank 1, which it waits for."""
    for member in sorted(processes(group)) if gap_s else []:
        os.kill(member, signal.SIGCONT)
        time.sleep(gap_s)
    os.killpg(group, signal.SIGCONT)


def pause(epa2a, place, verb, ranks, launcher, carrier, number):
    """number: the signal that suspends the run, or a Freezer. A rank without a core for the time limit also ends the run:
    the test tries again with four times the limit, and pauses as much longer."""
    for factor in 1, 4:
        who, code, said = pause_once(epa2a, place, verb, ranks, launcher, carrier, number, factor)
        if code == 130:
            return
        print(f"{who}: exit code {code}, not 130 of the interrupt\n{said}")
        if code != 4:
            break
    sys.exit(1)


def pause_once(epa2a, place, verb, ranks, launcher, carrier, number, factor):
    """Returns the name of the run, its exit code, and the end of its output."""
    text = experiment(place, ranks, launcher, carrier, factor)
    limit, length, _, gap, pauses = HOW[place]
    limit *= factor
    freezer = number if isinstance(number, Freezer) else None
    who = f"{verb} with {ranks} ranks, {launcher}, {carrier}, {freezer.file if freezer else signal.Signals(number).name}"
    with subprocess.Popen([epa2a, verb, "/dev/stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, preexec_fn=os.setpgrp) as child:
        if freezer is not None:
            freezer.add(child.pid)  # before it starts ranks: it waits for its standard input
        child.stdin.write(text)
        child.stdin.close()
        child.stdin = None
        end = time.monotonic() + WAIT
        while not runs(epa2a, child.pid) and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        for _ in range(pauses):
            if child.poll() is not None:
                break
            if freezer is not None:
                freezer.write(freezer.file, freezer.on)
            else:
                os.killpg(child.pid, number)
            while time.monotonic() < end and (not freezer.is_frozen() if freezer is not None else
                                              any(state != "T" for state in processes(child.pid).values())):
                time.sleep(0.005)
            time.sleep(length * limit)  # the pause itself
            if freezer is not None:
                freezer.write(freezer.file, freezer.off)
            else:
                resume(child.pid, gap * limit)
            time.sleep(1.4 * limit)  # a wait that fails has ended
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=WAIT)
    return f"{who}, limit {limit:g} s", child.returncode, out[-300:] + said[-600:]


def stop_one(epa2a, place, algorithm):
    """One rank is stopped: the others run, so that the time limit counts."""
    text, limit = experiment(place, 2, "fork", algorithm), HOW[place][0]
    done = subprocess.run([epa2a, "verify", "/dev/stdin", "--set", "fault={kind: stop, rank: 1, iteration: 3, for: 60s}"], input=text,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False)
    waited = re.search(r"error: rank 0,(?=.*rank 1).*waited ([0-9.]+) s", done.stderr)
    if done.returncode != 4 or not waited:
        fail(f"{algorithm}, rank 1 is stopped: exit code {done.returncode}, not 4 with a time-out for rank 1\n{done.stderr[-600:]}")
    if not limit <= float(waited[1]) < 1.5 * limit:
        fail(f"{algorithm}, rank 1 is stopped: rank 0 waited {waited[1]} s, with a limit of {limit} s")


def pause_kernels(epa2a, place):
    for algorithm, number in ("ll_v2", signal.SIGSTOP), ("token_flag", signal.SIGTSTP):
        pause(epa2a, place, "verify", 2, "fork", algorithm, number)
        stop_one(epa2a, place, algorithm)
    print("suspended runs with kernels go on, and a rank that is stopped alone is named")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        pause_kernels(*sys.argv[1:])
        sys.exit(0)
    listed = subprocess.run([sys.argv[1], "list", "transport", "--json", "-"], stdout=subprocess.PIPE, text=True, check=True).stdout
    built = {plugin["name"] for plugin in json.loads(listed)["plugins"] if plugin["why_not"] is None}
    for what in (("bench", 2, "fork", "shm", signal.SIGSTOP), ("bench", 8, "fork", "shm", signal.SIGTSTP),
                 ("verify", 4, "thread", "shm", signal.SIGSTOP), ("bench", 4, "fork", "ucx", signal.SIGSTOP)):
        if what[3] in built:
            pause(sys.argv[1], "host", *what)
    freezer = Freezer()
    try:
        if freezer.group is None:
            print("not tested: a frozen cgroup:", freezer.why)
        else:
            pause(sys.argv[1], "host", "bench", 4, "fork", "shm", freezer)
            print("a frozen cgroup goes on:", os.path.join(freezer.group, freezer.file))
    finally:
        freezer.close()
    print("suspended runs go on over", ", ".join(sorted(built)))
