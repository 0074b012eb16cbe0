#!/usr/bin/env python3
"""pauses.py EPA2A: a run that is suspended longer than its time limits goes on after it resumes."""
import json
import os
import re
import signal
import subprocess
import sys
import time

EXPERIMENT = """version: 1
ranks: {ranks}
timeout: 500ms
launcher: {launcher}
transport: {transport}
moe: {{max_tokens: 16, hidden: 256, experts: 8, topk: 2}}
verify: {{iterations: {iterations}}}
bench: {{iterations: {iterations}, warmup: 2}}
"""
PAUSE = 2.5  # seconds, five times the limit
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


def pause(epa2a, verb, ranks, launcher, transport, number):
    text = EXPERIMENT.format(ranks=ranks, launcher=launcher, transport=transport, iterations=1000000)
    who = f"{verb} with {ranks} ranks, {launcher}, {transport}, {signal.Signals(number).name}"
    with subprocess.Popen([epa2a, verb, "/dev/stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, preexec_fn=os.setpgrp) as child:
        child.stdin.write(text)
        child.stdin.close()
        child.stdin = None
        end = time.monotonic() + WAIT
        while not runs(epa2a, child.pid) and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        for _ in range(3):
            if child.poll() is not None:
                break
            os.killpg(child.pid, number)
            while any(state != "T" for state in processes(child.pid).values()) and time.monotonic() < end:
                time.sleep(0.005)
            time.sleep(PAUSE)  # the pause itself
            os.killpg(child.pid, signal.SIGCONT)
            time.sleep(0.7)  # longer than the limit: a wait that fails has ended
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=WAIT)
    if child.returncode != 130:
        fail(f"{who}: exit code {child.returncode}, not 130 of the interrupt\n{out[-300:]}{said[-600:]}")


if __name__ == "__main__":
    listed = subprocess.run([sys.argv[1], "list", "transport", "--json", "-"], stdout=subprocess.PIPE, text=True, check=True).stdout
    built = {plugin["name"] for plugin in json.loads(listed)["plugins"] if plugin["why_not"] is None}
    for what in (("bench", 2, "fork", "shm", signal.SIGSTOP), ("bench", 8, "fork", "shm", signal.SIGTSTP),
                 ("verify", 4, "thread", "shm", signal.SIGSTOP), ("bench", 4, "fork", "ucx", signal.SIGSTOP)):
        if what[3] in built:
            pause(sys.argv[1], *what)
    print("suspended runs go on over", ", ".join(sorted(built)))
