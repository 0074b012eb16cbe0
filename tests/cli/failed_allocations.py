#!/usr/bin/env python3
"""failed_allocations.py EPA2A CONFIGS FAILING_ALLOC: makes each allocation and each thread of the ranks fail in turn,
under a limit of addresses. Each error ends with exit code 3 and names the limit."""
import os
import pathlib
import resource
import subprocess
import sys

MOST = 400  # allocations of an experiment; the last run of a sweep fails none
LIMIT = 1 << 36  # bytes of addresses; no real allocation exceeds them


def limit_addresses():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))


def sweep(epa2a, library, args):
    for at in range(1, MOST):
        done = subprocess.run([epa2a, *args], capture_output=True, text=True, timeout=60, preexec_fn=limit_addresses,
                              env=os.environ | {"LD_PRELOAD": library, "FAIL_AT": str(at)}, check=False)
        if done.returncode == 0:
            return at - 1
        if done.returncode != 3 or "ulimit -v" not in done.stderr:
            sys.exit(f"FAIL_AT={at} {' '.join(args)}: exit {done.returncode}: {done.stderr}")
    sys.exit(f"{' '.join(args)}: more than {MOST} allocations")


epa2a, configs, library = sys.argv[1:]
small = str(pathlib.Path(configs) / "small.yaml")
thread = ["--quiet", "--set", "launcher=thread"]
for experiment in (["verify", small, *thread, "--set", "verify.iterations=1", "--set", "backend.workers=2"],
                   ["bench", small, *thread, "--set", "transport=reorder", "--set", "algorithm=token_flag"]):
    count = sweep(epa2a, library, experiment)
    if count < 10:
        sys.exit(f"{' '.join(experiment)}: only {count} allocations: does the preloaded library count them?")
    print(f"{count} allocations: {' '.join(experiment)}")
