#!/usr/bin/env python3
"""bad_inputs.py EPA2A CASES PLUGINS: checks the messages and places that `epa2a config check` prints for each bad
experiment in CASES, which describes their format."""
import os
import re
import subprocess
import sys
import tempfile

LINE = re.compile(r"(?P<place>.*?): (?P<kind>error|note): (?P<words>.*)")


def bytes_of(yaml):
    """What \\n, \\t and <<ff>> stand for."""
    text = yaml.replace("\\n", "\n").replace("\\t", "\t").encode()
    return re.sub(rb"<<([0-9a-f]{2})>>", lambda found: bytes([int(found[1], 16)]), text) + b"\n"


def main(epa2a, cases, plugins):
    epa2a, failed, n = os.path.abspath(epa2a), 0, 0
    with open(cases, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if not line.startswith("#")]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        while lines:
            case, *wants = lines.pop(0).split(" => ")
            while lines and lines[0].startswith("    "):
                wants.append(lines.pop(0)[4:])
            name, whole, yaml = re.match(r"(.*?) \|(\|?) ?(.*)", case).groups()
            sets = []
            while found := re.match(r"--set (.*?) \|(?: |$)", yaml):
                sets += ["--set", bytes_of(found[1])[:-1]]
                yaml = yaml[found.end():]
            with open("bad.yaml", "wb") as file:
                file.write((b"" if whole else b"version: 1\n") + (bytes_of(yaml) if yaml else b""))
            done = subprocess.run([epa2a, "config", "check", "bad.yaml", "--plugin-path", plugins, *sets], capture_output=True, text=True, check=False)
            said = []
            for line in done.stderr.splitlines():
                if found := LINE.match(line):
                    place = re.sub(r"^bad\.yaml:?", "", found["place"]) or "-"
                    said.append([("note " if found["kind"] == "note" else "") + place, found["words"]])
                elif mark := re.match(r" +\| +(\^~*)(.*)", line):
                    said[-1][0] += f"+{len(mark[1])}"
                    said[-1][1] += mark[2]
            good = len(said) == len(wants) and all(
                want.startswith(place + " ") and re.search(".*".join(map(re.escape, want[len(place) + 1:].split(" .. "))), words)
                for (place, words), want in zip(said, wants))
            if not good or done.returncode not in (2, 3):
                print(f"{name}\n{done.stderr}  {said}\n  {wants}")
                failed += 1
            n += 1
    print(f"{n} bad inputs, {failed} failures")
    return failed > 0 or n < 140


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
