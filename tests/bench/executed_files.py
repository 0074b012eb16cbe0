#!/usr/bin/env python3
"""executed_files.py ROOT EPA2A ARGUMENTS...: lists the source files that a command executes in the process that starts
it, from main() to its output, with their lines and sums by folder.

Callgrind records each executed function with its source file. A file counts if one of its functions runs; headers
do not count. Each rank has an output of its own; the one of the starting process has the process id of valgrind."""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FILE = re.compile(r"^(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.+))?$")


def read_files(profile):
    """Returns the paths of the functions in the output of callgrind, which names a path once and then its number."""
    names, used = {}, set()
    for line in profile.read_text("utf-8", errors="replace").splitlines():
        match = FILE.match(line)
        if match is None:
            continue
        kind, number, name = match.groups()
        if name is not None:
            names[number] = name
        if kind == "fl":  # a file with executed functions; the others are called or included
            used.add(number)
    return {names[number] for number in used}


def main(root, *command):
    root = pathlib.Path(root).resolve()
    with tempfile.TemporaryDirectory() as work:
        with subprocess.Popen(["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={work}/%p", *command],
                              stdout=subprocess.DEVNULL) as started:
            code = started.wait()
        if code != 0:
            sys.exit(f"exit code {code}")
        profile = pathlib.Path(work, str(started.pid))
        found = read_files(profile)
    lines = collections.Counter()
    for path in found:
        at = next((pathlib.Path(root, path[i:]) for i in range(len(path)) if path[i:].startswith(("src/", "plugins/"))), None)
        if at is not None and at.suffix == ".c" and at.exists():
            lines[str(at.relative_to(root))] = len(at.read_text("utf-8").splitlines())
    for path in sorted(lines):
        print(f"{lines[path]:5} {path}")
    folders = collections.defaultdict(lambda: [0, 0])
    for path, n in lines.items():
        for folder in (os.path.dirname(path), "all"):
            folders[folder][0] += 1
            folders[folder][1] += n
    for folder, (files, n) in sorted(folders.items()):
        print(f"{files:3} files, {n:6} lines: {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
