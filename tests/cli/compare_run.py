#!/usr/bin/env python3
"""compare_run.py EPA2A: `compare --run` ends in time and names the side that failed, whatever signals its parent
ignores and its sides receive."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

WAIT = 100  # seconds for anything at all
EXPERIMENT = """version: 1
ranks: 2
timeout: 2s
moe: {max_tokens: 8, hidden: 256, experts: 8, topk: 2}
bench: {iterations: 100, warmup: 2}
"""
ENDLESS = "--budget", "60s", "--set", "bench.iterations=100000", "--set", "moe.max_tokens=64", "--threshold", "0.001%"
# LeakSanitizer stops all threads of a process that ends and prints this line for a thread that ended meanwhile.
NOT_OF_THE_PROGRAM = re.compile(r"^(\[rank \d+\] )?==\d+==Unable to get registers from thread \d+\.\n", re.M)
SLOW_SET_UP = 16384  # tokens, whose inputs take longer than the signals of the test


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def children(pid):
    try:
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_measuring(epa2a, side):
    done = subprocess.run([epa2a, "status", str(side)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return re.search(r"^ +0 +\d+ .* (dispatch|combine|between)\D* [1-9]\d* ", done.stdout, re.M)


class Compare:
    def __init__(self, epa2a, work, *options, **how):
        self.child = subprocess.Popen([epa2a, "compare", "--run", work / "a.yaml", work / "b.yaml", *options],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **how)

    def sides(self):
        """Both, once their ranks run."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self.child.poll() is None:
            sides = children(self.child.pid)
            if len(sides) == 2 and all(len(children(side)) == 2 for side in sides):
                return sides
            time.sleep(0.002)
        return fail("two sides with two ranks each were never seen", self.child.poll())

    def end(self, code, words, left=()):
        """The command ends with one message: the side, the signal or limit, and a remedy."""
        try:
            said = NOT_OF_THE_PROGRAM.sub("", self.child.communicate(timeout=WAIT)[1])
        except subprocess.TimeoutExpired:
            self.child.kill()
            fail("compare --run does not end; expected:", words)
        if self.child.returncode not in code or not re.search(words, said):
            fail(f"exit code {self.child.returncode}, not {code}, or not '{words}':\n{said}")
        if len(said.splitlines()) > 1 or "error: interrupted" in said:
            fail(f"more than one message:\n{said}")
        if any(os.path.exists(f"/proc/{pid}") for pid in left):
            fail("processes are left behind")


def main():
    epa2a = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name in "a.yaml", "b.yaml":
            (work / name).write_text(EXPERIMENT, "utf-8")
        for budget, codes, words in ("2s", (0, 2, 10), "a turn takes|^$"), ("60s", (0, 10), ""):
            compare = Compare(epa2a, work, "--budget", budget, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
            compare.end(codes, words)
            if compare.child.returncode != 2:  # otherwise a busy machine needs more time for a turn
                break
        for side, name in enumerate("AB"):
            compare = Compare(epa2a, work, *ENDLESS)
            sides = compare.sides()
            os.kill(sides[side], signal.SIGKILL)
            compare.end((5,), rf"{name} \(.*/{name.lower()}.yaml\) \(pid {sides[side]}\) was killed by signal 9 .*; the kernel", sides)
            compare = Compare(epa2a, work, *ENDLESS)
            sides = compare.sides()
            os.kill(sides[side], signal.SIGTERM)
            compare.end((143,), rf"{name} \(.*/{name.lower()}.yaml\) \(pid {sides[side]}\) was ended by signal 15 .*; ", sides)
        compare = Compare(epa2a, work, *ENDLESS)
        sides = compare.sides()
        os.kill(sides[0], signal.SIGSTOP)
        compare.end((4,), r"A \(.*/a.yaml\) \(pid \d+\) was stopped by a signal for 2 s", sides)
        compare = Compare(epa2a, work, *ENDLESS, "--set", "timeout=60s")
        sides = compare.sides()
        os.kill(sides[1], signal.SIGSTOP)
        compare.child.send_signal(signal.SIGTERM)
        compare.end((143,), r"compare --run: interrupted by signal 15 \(", sides)
        compare = Compare(epa2a, work, "--budget", "3s", *ENDLESS[2:])
        sides = compare.sides()
        begun = time.monotonic()
        while not all(is_measuring(epa2a, side) for side in sides) and time.monotonic() - begun < WAIT:
            time.sleep(0.01)
        begun = time.monotonic()
        for rank in children(sides[0]) + children(sides[1]):
            os.kill(rank, signal.SIGSTOP)
        compare.end((4,), r"did not end within --budget, timeout and 5 s|has ranks that were all stopped", sides)
        if time.monotonic() - begun > 3 + 2 + 5 + 10:
            fail(f"with all ranks stopped, it ends after {time.monotonic() - begun:.1f} s")
        compare = Compare(epa2a, work, "--budget", "3s", *ENDLESS[2:], "--set", f"moe.max_tokens={SLOW_SET_UP}")
        sides = compare.sides()
        begun = time.monotonic()
        for rank in children(sides[0]) + children(sides[1]):
            os.kill(rank, signal.SIGSTOP)
        compare.end((4,), r"(A|B) .* has ranks that were all stopped by a signal for 2 s", sides)
        if time.monotonic() - begun > 2 + 10:
            fail(f"with all ranks stopped in set-up, it ends after {time.monotonic() - begun:.1f} s")


main()
