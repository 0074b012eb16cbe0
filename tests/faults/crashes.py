#!/usr/bin/env python3
"""crashes.py EPA2A EXPERIMENT: UCX catches no crash of a rank, unless UCX_HANDLE_ERRORS is set."""
import os
import re
import signal
import subprocess
import sys
import time

WAIT = 60  # seconds until a rank has loaded UCX


def loads_ucx(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "libucs.so" in maps.read()


def caught_by_ranks(epa2a, experiment, handlers):
    """Returns True if a rank that has loaded UCX catches SIGILL, which no sanitizer catches."""
    env = {name: value for name, value in os.environ.items() if name != "UCX_HANDLE_ERRORS"}
    if handlers is not None:
        env["UCX_HANDLE_ERRORS"] = handlers
    command = [epa2a, "bench", experiment, "--quiet", "--set", "bench.iterations=1000000"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        end = time.monotonic() + WAIT
        try:
            while program.poll() is None and time.monotonic() < end:
                with open(f"/proc/{program.pid}/task/{program.pid}/children", encoding="utf-8") as children:
                    rank = (children.read().split() or [None])[0]
                if rank is not None and loads_ucx(rank):
                    time.sleep(0.2)  # its constructor installs the handlers
                    with open(f"/proc/{rank}/status", encoding="utf-8") as status:
                        caught = int(re.search(r"SigCgt:\s*(\w+)", status.read())[1], 16)
                    return caught >> (signal.SIGILL - 1) & 1 == 1
                time.sleep(0.02)
        finally:
            program.terminate()
            said = program.communicate()[1]
    sys.exit(f"FAIL: no rank has loaded UCX: {said}")


def main(epa2a, experiment):
    for handlers, expected in ((None, False), ("bt", True)):
        if caught_by_ranks(epa2a, experiment, handlers) != expected:
            sys.exit(f"FAIL: with UCX_HANDLE_ERRORS={handlers} a rank {'does not catch' if expected else 'catches'} SIGILL")


main(*sys.argv[1:])
