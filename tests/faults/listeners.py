#!/usr/bin/env python3
"""Access of other users to ranks on one host: while ranks run over UCX, no TCP port is open beyond this host, and
they own no System V segment.

listeners.py EPA2A EXPERIMENT"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

epa2a, experiment = sys.argv[1:3]
RANKS = 4


def descendants(pid):
    out, todo = set(), [pid]
    while todo:
        at = todo.pop()
        out.add(at)
        for task in pathlib.Path(f"/proc/{at}/task").glob("*/children"):
            todo += [int(child) for child in task.read_text().split()]
    return out


def listeners(pids):
    """Addresses, as the kernel writes them in hexadecimal, of TCP sockets that listen."""
    inodes = set()
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(fd)))
            except FileNotFoundError:
                pass
    for name in "tcp", "tcp6":
        try:
            lines = pathlib.Path("/proc/net", name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].split(":")[0]


def segments(pids):
    lines = pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()
    creator = lines[0].split().index("cpid")
    return [line for line in lines[1:] if int(line.split()[creator]) in pids]


def under_way(pid):
    text = subprocess.run([epa2a, "status", "--json", "-", str(pid)], capture_output=True, text=True).stdout
    return any(int(n) >= 1 for n in re.findall(r'"iteration":\s*(\d+)', text))


def run(env, *settings):
    args = [epa2a, "bench", experiment, "--set", f"ranks={RANKS}", "--set", "bench.iterations=1000000", "--set", "bench.warmup=0"]
    for setting in settings:
        args += ["--set", setting]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(args, stdout=out, stderr=out, env=env)
        end = time.monotonic() + 60
        while not under_way(process.pid) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        pids = descendants(process.pid) if process.poll() is None else set()
        found = set(listeners(pids)), segments(pids)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        out.seek(0)
        text = out.read().decode()
    assert len(pids) == RANKS + 1 and code == 130, (pids, code, text)
    return found


own = {k: v for k, v in os.environ.items() if not k.startswith("UCX_")}
ports, shared = run(own)
assert not ports and not shared, ("by default", ports, shared)
ports, shared = run(own, "transport.tls=tcp")
assert ports <= {"0100007F", "00000000000000000000000001000000"} and ports and not shared, ("tcp", ports, shared)
# Default settings of UCX, or settings of the user's environment, show that the test can fail.
ports, shared = run({**own, "UCX_TLS": "all", "UCX_NET_DEVICES": "all"})
assert ports - {"0100007F"} or shared, "UCX listens nowhere and shares nothing, so nothing was tested"
