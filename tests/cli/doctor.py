#!/usr/bin/env python3
"""doctor.py SCHEMA EPA2A: what `epa2a doctor --json` writes is held against its schema, must agree
with the table and with /proc, and copies of it with one thing spoilt must be refused."""
import copy
import json
import os
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    print("skipped: no jsonschema for this python3 (package python3-jsonschema)")
    sys.exit(77)

failures = []


def expect(what, have, want):
    if have != want:
        failures.append(f"{what}: {have!r}, not {want!r}")


def run(epa2a, *args, **more):
    return subprocess.run([epa2a, "doctor", "--quick", *args], capture_output=True, text=True,
                          timeout=120, **more)


def spoilt(document):
    def with_change(change):
        other = copy.deepcopy(document)
        change(other)
        return other

    yield "schema 2", with_change(lambda d: d.update(schema=2))
    yield "unknown key", with_change(lambda d: d["machine"].update(surprise=1))
    yield "no plugins", with_change(lambda d: d.pop("plugins"))
    yield "no cores", with_change(lambda d: d["machine"].update(cores=0))
    yield "empty text", with_change(lambda d: d["machine"].update(cpu=""))
    yield "rate of 0", with_change(lambda d: d["measured"]["memory"]["one"].update(read=0))
    yield "unknown kind", with_change(lambda d: d["plugins"][0].update(kind="engine"))
    yield "no reason", with_change(lambda d: d["plugins"][0].update(usable=False, text=None))
    yield "finding without words", with_change(lambda d: d["missing"].append({"fix": "x"}))


def check_document(validator, document):
    for error in validator.iter_errors(document):
        failures.append(f"{'/'.join(map(str, error.path))}: {error.message}")
    for what, other in spoilt(document):
        if validator.is_valid(other):
            failures.append(f"{what} is not refused")


def check_numbers(document):
    expect("runs", document["runs"], True)
    expect("cores", document["machine"]["cores"], len(os.sched_getaffinity(0)))
    with open("/proc/meminfo", encoding="ascii") as lines:
        total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    expect("memory", document["memory"]["bytes"], total)
    shm = next(p for p in document["plugins"] if (p["kind"], p["name"]) == ("transport", "shm"))
    expect("shm", shm["usable"], True)
    expect("links of shm", sorted(shm["links"]), ["latency_ns", "ranks", "rate"])
    expect("memory on all cores", document["measured"]["memory"]["cores"],
           document["machine"]["cores"])
    if document["machine"]["cores"] > 1 and document["measured"]["flags"] is not None:
        flags = document["measured"]["flags"]
        if not flags["least_ns"] <= flags["median_ns"] <= flags["most_ns"]:
            failures.append(f"flags: {flags}")


def main(schema_path, epa2a):
    with open(schema_path, encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "doctor.json")
        both = run(epa2a, "--json", path)
        expect("exit code", both.returncode, 0)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        check_document(validator, document)
        check_numbers(document)
        for plugin in document["plugins"]:
            words = ("can be used" if plugin["usable"] else
                     "cannot be used" if plugin["loaded"] else "cannot be loaded")
            if not any(line.split()[:1] == [plugin["name"]] and words in line
                       for line in both.stdout.splitlines()):
                failures.append(f"the table does not say: {plugin['name']} {words}")
    alone = run(epa2a, "--json", "-")
    check_document(validator, json.loads(alone.stdout))
    expect("nothing but JSON", alone.stderr, "")
    for failure in failures:
        print(failure)
    print(f"{len(document['plugins'])} plugins, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
