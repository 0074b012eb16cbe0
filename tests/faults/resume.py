#!/usr/bin/env python3
"""An interrupted and resumed batch ends with the table of an uninterrupted one.

resume.py EPA2A CONFIG RESULT_SCHEMA kill|document|int|full|two|readonly: CONFIG is a file of many runs. Documents in the
folder are checked against the schema if python3 has jsonschema."""
import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

try:
    import jsonschema
except ImportError:
    jsonschema = None

FEW = ["--set", "bench.iterations=5", "--set", "bench.warmup=1", "--set", "matrix.transport=[shm]",
       "--set", "matrix.moe.max_tokens=[1, 8]"]
WAIT = 200  # seconds for anything at all


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def expect(what, have, want):
    if have != want:
        fail(f"{what} is {have}, should be {want}")


class Batch:
    def __init__(self, epa2a, config, schema):
        self.command = [epa2a, "bench", config]
        self.schema = json.loads(pathlib.Path(schema).read_text("utf-8"))

    def lines(self, folder):
        """Runs that have ended: whatever moment this is, all lines but a last one that is cut short are whole
        documents."""
        out = []
        for line in (folder / "results.jsonl").read_bytes().split(b"\n")[:-1]:
            document = json.loads(line)
            for error in jsonschema.Draft7Validator(self.schema).iter_errors(document) if jsonschema else ():
                fail("/".join(map(str, error.path)), error.message)
            expect("results and rows of a line", (len(document["results"]), len(document["summary"])), (1, 1))
            out.append(document["results"][0])
        return out

    def run(self, folder, *options, code=0, under=()):
        done = subprocess.run([*under, *self.command, "--out-dir", folder, *options], capture_output=True,
                              text=True, timeout=WAIT, check=False)
        if done.returncode != code:
            fail(f"exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done

    def start(self, folder, *options):
        """In a process group of its own."""
        child = subprocess.Popen([*self.command, "--out-dir", folder, "--quiet", *options],
                                 start_new_session=True, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT
        while not (folder / "results.jsonl").exists():
            if child.poll() is not None or time.monotonic() > end:
                fail("it does not begin")
            time.sleep(0.002)
        return child

    def check_whole(self, folder):
        """All runs are done, and all forms of the summary have them."""
        lines = self.lines(folder)
        expect("what is not done", [run["label"] for run in lines if run["status"] != "ok"], [])
        expect("lines", sorted(run["id"] for run in lines), sorted(row[2] for row in rows(folder)))
        expect("rows that are not ok", [row for row in rows(folder) if row[3] != "ok"], [])
        expect("rows of Markdown", (folder / "results.md").read_text("utf-8").count("\n| "), len(lines))
        expect("leftovers", [path.name for path in folder.glob("*.tmp")], [])


def rows(folder):
    """What does not differ from one time to the next."""
    with open(folder / "results.csv", newline="", encoding="utf-8") as file:
        return [(row["file"], row["label"], row["id"], row["end"]) for row in csv.DictReader(file)]


def table(text):
    """Returns the labels of the final table of the output."""
    lines = text.rpartition("# run ")[2].splitlines()[2:]
    return [line.split("  ")[1] for line in lines if not line.startswith("#")]


def process(child, file):
    """What /proc says of a child; "" of one that has ended."""
    try:
        return pathlib.Path(f"/proc/{child.pid}/{file}").read_text("utf-8") if child.poll() is None else ""
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stop_at(batch, child, folder, done):
    """Stops the whole group during a run, with at least `done` runs completed, and returns their ids. It reads the
    results while no process writes. A run may take milliseconds: until then it counts lines without parsing them."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end and child.poll() is None:
        if (folder / "results.jsonl").read_bytes().count(b"\n") < done:
            time.sleep(0.001)
            continue
        os.killpg(child.pid, signal.SIGSTOP)
        while process(child, "stat").rpartition(")")[2].split()[:1] not in ([], ["T"]):
            time.sleep(0.001)
        # Checks for ranks, which do not exist between two runs.
        if process(child, f"task/{child.pid}/children").split():
            return [run["id"] for run in batch.lines(folder)]
        os.killpg(child.pid, signal.SIGCONT)
        time.sleep(0.001)
    fail("it ended too early")


def left_over(before):
    """Returns the leftovers without the files of other programs."""
    return sorted(name for name in set(os.listdir("/dev/shm")) - before
                  if not re.match(r"cuda\.shm\.|vader_|osc_|open_mpi|ucx_shm_", name))


def kill(batch, work):
    """SIGKILL of all when half is done."""
    whole, part = work / "whole", work / "part"
    printed = batch.run(whole, *FEW)
    batch.check_whole(whole)
    n = len(rows(whole))
    before = set(os.listdir("/dev/shm"))
    child = batch.start(part, *FEW)
    done = stop_at(batch, child, part, n // 2)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    end = time.monotonic() + 20
    while left_over(before) and time.monotonic() < end:
        time.sleep(0.01)
    expect("left in /dev/shm", left_over(before), [])
    kept = batch.lines(part)
    expect("lines", [run["id"] for run in kept], done)
    with open(part / "results.jsonl", "a", encoding="utf-8") as file:  # as if killed while it wrote
        file.write('{"schema":1,"program":"epa2')
    again = batch.run(part, *FEW, "--resume")
    batch.check_whole(part)
    expect("rows", rows(part), rows(whole))
    expect("the table", table(again.stdout), table(printed.stdout))
    now = batch.lines(part)
    for run in kept:
        if run not in now:
            fail("a result that was there is another:", run["label"])
    by_id = subprocess.run([batch.command[0], "compare", whole, part, "--threshold", "100%"],
                           capture_output=True, text=True, check=False)
    if by_id.returncode not in (0, 10) or by_id.stdout.count(" total ") != n or by_id.stderr:
        fail(f"compare: {by_id.returncode} {by_id.stdout[-2000:]}{by_id.stderr}")
    # All runs are done: a resume starts no rank and prints the table again.
    expect("the table, a third time", table(batch.run(part, *FEW, "--resume").stdout), table(printed.stdout))
    expect("rows, a third time", rows(part), rows(whole))
    print(f"killed with {len(kept)} of {n} runs done, then {n}")


def document(batch, work):
    """SIGKILL of all while the last run goes on: --json has the runs that had ended. The samples of the first run
    make the document large, so that it is not written at once after the second run, which is short."""
    config, json_file, lines = (work / name for name in ("x.yaml", "x.json", "lines"))
    small = pathlib.Path(batch.command[2]).resolve().with_name("small.yaml")
    config.write_text(f"include: {small}\nruns: {{first: {{bench.iterations: 20000}}, second: {{bench.iterations: 3}}, "
                      "last: {bench.iterations: 1000000}}\n", "utf-8")
    child = subprocess.Popen([*batch.command[:2], config, "--json", json_file, "--json-lines", lines, "--quiet"],
                             start_new_session=True, stdout=subprocess.DEVNULL)
    end, labels = time.monotonic() + WAIT, []
    while len(labels) < 2 and time.monotonic() < end and child.poll() is None:
        if lines.exists() and lines.read_bytes().count(b"\n") == 2 and json_file.exists():
            labels = [run["label"] for run in json.loads(json_file.read_text("utf-8"))["results"]]
        time.sleep(0.01)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    expect("exit code", child.wait(), -signal.SIGKILL)
    expect("results", labels, ["first", "second"])


def interrupt(batch, work):
    """SIGINT, twice; then to the end."""
    whole, part = work / "whole", work / "part"
    batch.run(whole, *FEW)
    n, more = len(rows(whole)), []
    for done in (n // 3, 2 * n // 3):
        child = batch.start(part, *FEW, *more)
        stop_at(batch, child, part, done)
        os.kill(child.pid, signal.SIGINT)
        os.killpg(child.pid, signal.SIGCONT)
        expect("exit code", child.wait(WAIT), 130)
        cut = [run["status"] for run in batch.lines(part) if run["status"] != "ok"]
        if cut not in ([], ["interrupted"]):
            fail(f"runs ended with {cut}")
        more = ["--resume"]
    batch.run(part, *FEW, "--resume")
    batch.check_whole(part)
    expect("rows", rows(part), rows(whole))


def mounted(options, work):
    """A prefix for commands that have a small file system of their own at work/disk; None: no right to."""
    (work / "disk").mkdir()
    under = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c",
             f'mount -t tmpfs -o {options} none "{work}/disk" && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run(
            [*under, "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: no right to mount a file system here (unshare -m)")
        sys.exit(77)
    return under


def full(batch, work):
    """A disk that is too small: all is on standard output, what fits is whole, and a larger disk takes on."""
    under = mounted("size=64k", work)
    keep = ["sh", "-c", f'"$@"; code=$?; cp -r "{work}/disk/d" "{work}/kept"; exit $code', "sh"]
    done = batch.run(work / "disk/d", *FEW, code=3, under=[*under, *keep])
    if done.stderr.count("No space left") == 0:
        fail("nobody says that the disk is full:", done.stderr)
    if done.stderr.count("No space left") > 8:
        fail("that the disk is full is told too often:", done.stderr)
    kept = work / "kept"
    whole = work / "whole"
    printed = batch.run(whole, *FEW)
    expect("the table", table(done.stdout), table(printed.stdout))
    if " failed" in done.stdout.rpartition("# run ")[2]:
        fail(done.stdout)
    n = len(batch.lines(kept))
    if not 0 < n < len(rows(whole)):
        fail(f"{n} runs are done on a disk that is full")
    batch.run(kept, *FEW, "--resume")
    batch.check_whole(kept)
    expect("rows", rows(kept), rows(whole))


def readonly(batch, work):
    """An unwritable folder is reported before any run."""
    under = mounted("size=1m", work)
    made = ["sh", "-c", f'mkdir "{work}/disk/d" && mount -o remount,ro "{work}/disk" && exec "$@"', "sh"]
    for name in ("d", "new"):
        done = batch.run(work / "disk" / name, *FEW, code=3, under=[*under, *made])
        expect("standard output", done.stdout, "")
        if "cannot write into the folder" not in done.stderr or "Read-only file system" not in done.stderr:
            fail(done.stderr)


def two(batch, work):
    """Of two processes one writes, and the other names the writer."""
    folder = work / "d"
    child = batch.start(folder, *FEW, "--set", "bench.iterations=100000")
    stop_at(batch, child, folder, 0)
    before = (folder / "results.jsonl").read_bytes()
    for options in (["--resume"], ["--force"]):
        done = batch.run(folder, *FEW, "--set", "bench.iterations=100000", *options, code=2)
        if f"process {child.pid} writes into this folder" not in done.stderr:
            fail(done.stderr)
        expect("the results", (folder / "results.jsonl").read_bytes(), before)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    batch.run(folder, *FEW, "--force")
    batch.check_whole(folder)


if __name__ == "__main__":
    kinds = {"kill": kill, "document": document, "int": interrupt, "full": full, "readonly": readonly, "two": two}
    with tempfile.TemporaryDirectory() as name:
        kinds[sys.argv[4]](Batch(*sys.argv[1:4]), pathlib.Path(name))
