#!/usr/bin/env python3
"""matrix_mutants.py BUILD NAME: the first 60 faults of matrix.py report a defect of the launcher, on any day.

plan: every kind and signal is in the first 100 faults, and the faults that show the defects below are in the first 60.
Other names are those of --mutant; the run of matrix.py takes only the faults that show the defect, to save time."""
import collections
import pathlib
import re
import subprocess
import sys

BUILD, NAME = sys.argv[1:3]
MATRIX = [sys.executable, str(pathlib.Path(__file__).with_name("matrix.py")), BUILD]
SHOWS = {"hup": "SIGHUP of the command", "heartbeat": "SIGSTOP of a rank with a long time limit", "limit": "SIGSTOP of a rank under way"}


def plan(seed, n):
    listed = subprocess.run([*MATRIX, "--list", "--seed", str(seed), "--faults", str(n)], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split(" ", 1)[1] for line in listed.splitlines()]


def kind(name):
    """Launcher and fault, without transport, ranks, command and moment."""
    launch, fault = name.split(" ")[0], name.split(" | ")[1]
    return launch, re.sub(r" (at start|in set-up|under way|at any time|in \w+( \w+)* of iteration \d+)$", "", fault)


def check_plan():
    every = collections.Counter()
    plans = {seed: plan(seed, 400) for seed in range(1, 6)}
    for names in plans.values():
        every.update({kind(name) for name in names})
    launchers = {launch for launch, _ in every}
    wanted = set(every)
    for seed, names in plans.items():
        missing = wanted - {kind(name) for name in names[:100]}
        assert not missing, f"seed {seed}: not in the first 100 faults: {sorted(missing)}"
        for text in SHOWS.values():
            assert "long" in text and "env" not in launchers or any(text in name for name in names[:60]), (seed, text)
    return 0


def check_mutant():
    faults = plan(1, 60)
    if not any(SHOWS[NAME] in name for name in faults):
        print("no launcher here has this fault")
        return 77
    done = subprocess.run([*MATRIX, "--mutant", NAME, "--only", SHOWS[NAME], "--faults", "60", "--seed", "1", "--slack", "30", "--first"],
                          stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 1 and "VIOLATION" in done.stdout, done.returncode
    return 0


sys.exit(check_plan() if NAME == "plan" else check_mutant())
