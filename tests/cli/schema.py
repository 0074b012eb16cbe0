#!/usr/bin/env python3
"""Holds documents of --json against epa2a-result.schema.json.

schema.py SCHEMA EPA2A CONFIG GRAPH PLUGINS: what the program writes of several runs must be valid, and the
same with one thing spoilt must not be: a schema that takes all would prove nothing.
schema.py SCHEMA -- FILE...: only holds the files against it."""
import copy
import json
import pathlib
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: no jsonschema for this python3 (package python3-jsonschema)")
    sys.exit(77)


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def load(path):
    return json.loads(pathlib.Path(path).read_text("utf-8"), parse_constant=refuse_constant)


def spoilt(document):
    """Copies of the document, each with one thing that the schema must refuse."""
    def with_change(change):
        other = copy.deepcopy(document)
        change(other, other["results"][0])
        return other

    yield "schema 2", with_change(lambda d, r: d.update(schema=2))
    yield "no results", with_change(lambda d, r: d.pop("results"))
    yield "unknown key", with_change(lambda d, r: r.update(surprise=1))
    yield "unknown status", with_change(lambda d, r: r.update(status="fine"))
    yield "exit code of another status", with_change(
        lambda d, r: r.update(exit_code=0 if r["exit_code"] else 5))
    yield "boolean as text", with_change(lambda d, r: r["machine"]["build"].update(debug="no"))
    yield "count as text", with_change(lambda d, r: r["machine"].update(cores="2"))
    yield "fraction of a nanosecond", with_change(
        lambda d, r: r["stages"][0]["ns"].update(median=1.5))
    yield "negative time", with_change(lambda d, r: r["stages"][0]["ns"].update(min=-1))
    yield "NaN as text", with_change(lambda d, r: r["stages"][-1]["rate"].update(bus="nan"))
    yield "null sample", with_change(lambda d, r: r["stages"][0]["samples_ns"].append(None))
    yield "foreign variable", with_change(
        lambda d, r: r["machine"]["environment"].update(HOME="/root"))
    if document["results"][0]["timing"]:
        yield "clock unknown", with_change(lambda d, r: r["timing"].update(clock="sundial"))
        yield "no calls", with_change(lambda d, r: r["timing"].update(calls=0))
    yield "id of another form", with_change(lambda d, r: r.update(id="0123"))
    yield "row that ended otherwise", with_change(lambda d, r: d["summary"][0].update(end="fine"))
    yield "row without a ratio", with_change(lambda d, r: d["summary"][0].pop("ratio"))
    yield "summary of none", with_change(lambda d, r: d.update(summary=[]))
    yield "links without latency", with_change(
        lambda d, r: r["machine"].update(links={"rate": 1.0}))
    yield "local time", with_change(lambda d, r: r.update(started="2026-01-01 10:00:00"))


def main(schema_path, *rest):
    schema = load(schema_path)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    if rest[0] == "--":
        for path in rest[1:]:
            validator.validate(load(path))
        print(f"{len(rest) - 1} valid")
        return 0
    failed = 0
    epa2a, config, graph, plugins = rest
    for code, *command in ((2, "bench", config, "-n", "3", "--set", "matrix={transport: [shm, nowhere]}"),
                           (0, "bench", graph, "--plugin-path", plugins), (0, "verify", config, "-n", "2"),
                           (5, "run", config, "--set", "fault={kind: kill, rank: 1, iteration: 1}")):
        done = subprocess.run([epa2a, *command, "--set", "repeat=2", "--quiet", "--json", "-"], capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        document = json.loads(done.stdout, parse_constant=refuse_constant)
        for error in validator.iter_errors(document):
            print(f"{command}: {'/'.join(map(str, error.path))}: {error.message}")
            failed += 1
        for what, other in spoilt(document):
            if validator.is_valid(other):
                print(f"{command}: {what} is not refused")
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
