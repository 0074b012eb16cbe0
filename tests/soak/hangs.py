#!/usr/bin/env python3
"""What soak.py calls a hang: a run that makes no progress, not one that takes long.

    hangs.py SOAK

The program is a script that says of itself that it is in iteration 1, 2, 3... each second, or always in the first."""
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = """#!/bin/sh
case $1 in
list) echo ;;
verify) sleep SECONDS; echo 'verified 1 iteration: 1 elements compared, 0 wrong' ;;
status) printf '{"commands": [{"run": {"ranks": [{"state": "running", "stage": "x", "iteration": %s, "samples": 0}]}}]}' "$(ITERATION)" ;;
esac
"""

failed = False
for iteration, seconds, hangs in ("date +%s", "5", 0), ("echo 1", "60", 1):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "epa2a")
        program.write_text(PROGRAM.replace("ITERATION", iteration).replace("SECONDS", seconds))
        program.chmod(0o755)
        # One run, of a fault that ends with 0.
        done = subprocess.run([sys.executable, sys.argv[1], program, "--seconds", "1", "--seed", "1", "--hang", "2.5"],
                              capture_output=True, text=True, check=False)
    if f" {hangs} hangs," not in done.stdout:
        print(f"{iteration}: not {hangs} hangs: {done.stdout}{done.stderr}")
        failed = True
sys.exit(failed)
