#!/usr/bin/env python3
"""doctor.py EPA2A: what `epa2a doctor --json` writes has just the keys and kinds of values that SHAPE
names, and agrees with the table and with /proc."""
import json
import os
import subprocess
import sys
import tempfile


def number(least, null=True, kind=(int, float)):
    """A number of `least` or more."""
    return lambda x: (null and x is None) or (
        isinstance(x, kind) and not isinstance(x, bool) and x >= least)


def may_be_null(shape):
    return lambda x: x is None or not list(differences(x, shape))


def is_text(x):
    return isinstance(x, str) and x != ""


def is_text_or_null(x):
    return x is None or is_text(x)


def is_yes_or_no(x):
    return isinstance(x, bool)


COUNT, WHOLE = number(1, kind=int), number(0, kind=int)
POSITIVE, FROM_0, FROM_1 = number(1e-9), number(0, False, int), number(1, False, int)
FINDING = {"what": is_text, "fix": is_text_or_null}
SHAPE = {  # null: not known, or no limit
    "schema": lambda x: x == 4, "program": lambda x: x == "epa2a", "runs": is_yes_or_no,
    "machine": {  # as in a result, and what is below the next line
        **dict.fromkeys(("host", "kernel", "arch", "cpu", "governor", "clocksource", "huge_pages",
                         "shmem_huge_pages"), is_text_or_null),
        **dict.fromkeys(("sockets", "numa_nodes", "threads_per_core", "l1d_bytes", "l2_bytes",
                         "l3_bytes", "memory_bytes"), COUNT),
        "cores": FROM_1, "timer_ns": POSITIVE, "load_average": number(0, False),
        "build": {**dict.fromkeys(("version", "compiler", "type", "sanitizers", "libc", "isa"), is_text),
                  "git": is_text_or_null, "isa_refused": is_text_or_null, "plugin_abi": FROM_1,
                  "debug": is_yes_or_no},
        "environment": lambda x: all(map(is_text, x)),
        "cores_online": COUNT, "cores_quota": POSITIVE, "virtual": is_yes_or_no,
        "numa_balancing": is_yes_or_no, "isas": [is_text]},
    "memory": {
        "available_bytes": WHOLE, "available_by": is_text_or_null,
        "address_space_bytes": WHOLE, "locked_bytes": WHOLE, "open_files": WHOLE,
        "reserved_huge_pages": {"bytes": COUNT, "pages": FROM_0, "free": FROM_0},
        "dev_shm": {"bytes": COUNT, "free_bytes": FROM_0, "left_files": FROM_0, "left_bytes": FROM_0,
                    "left_first": is_text_or_null}},
    "devices": {
        "rdma": [{"device": is_text, "port": FROM_1, "state": is_text_or_null,
                  "link": is_text_or_null, "rate": is_text_or_null}],
        "gpus": [is_text], "gpu_driver": is_text_or_null,
        "networks": [{"name": is_text, "megabits": COUNT}],
        "programs": [{"name": is_text, "path": is_text, "version": is_text_or_null}],
        "libraries": [{"name": is_text, "path": is_text, "version": is_text_or_null, "use": is_text}]},
    "plugins": [{
        "kind": lambda x: x in ("backend", "launcher", "transport", "algorithm"), "name": is_text,
        "loaded": is_yes_or_no, "usable": is_yes_or_no, "text": is_text_or_null,
        # A signal that waited for a core gives no latency.
        "links": may_be_null({"ranks": FROM_1, "rate": POSITIVE, "latency_ns": may_be_null(POSITIVE)}),
        "facts": lambda x: all(map(is_text, x.values()))}],
    "warnings": [FINDING], "missing": [FINDING]}


def differences(value, shape, at="document"):
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{at}: {value!r} is no list"
            return
        for i, one in enumerate(value):
            yield from differences(one, shape[0], f"{at}[{i}]")
    elif isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            yield f"{at}: keys {sorted(value)}, not {sorted(shape)}"
            return
        for key, inner in shape.items():
            yield from differences(value[key], inner, f"{at}.{key}")
    elif not shape(value):
        yield f"{at}: {value!r}"


def facts(document):
    """Yields pairs of reported and real values that must be equal, beyond the shape."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    shm = next(p for p in document["plugins"] if (p["kind"], p["name"]) == ("transport", "shm"))
    yield document["runs"], True
    yield document["machine"]["cores"], len(os.sched_getaffinity(0))
    yield document["machine"]["memory_bytes"], total
    yield (shm["usable"], shm["links"] is not None), (True, True)
    for p in document["plugins"]:
        if not p["usable"]:
            yield (p["name"], is_text(p["text"]), p["links"]), (p["name"], True, None)


def main(epa2a):
    def run(*args):
        return subprocess.run([epa2a, "doctor", *args], capture_output=True, text=True,
                              timeout=120, check=True)

    with tempfile.TemporaryDirectory() as folder:
        table = run("--json", os.path.join(folder, "doctor.json")).stdout.splitlines()
        with open(os.path.join(folder, "doctor.json"), encoding="utf-8") as file:
            document = json.load(file)
    failures = [*differences(document, SHAPE),
                *(f"{have!r}, not {want!r}" for have, want in facts(document) if have != want)]
    for plugin in document["plugins"]:
        words = ("can be used" if plugin["usable"] else
                 "cannot be used" if plugin["loaded"] else "cannot be loaded")
        if not any(line.split()[:1] == [plugin["name"]] and words in line for line in table):
            failures.append(f"the table does not say: {plugin['name']} {words}")
    listed = subprocess.run([epa2a, "list", "--json", "-"], capture_output=True, text=True, timeout=120, check=True)
    if json.loads(listed.stdout)["libraries"] != document["devices"]["libraries"]:
        failures.append("list has other libraries")
    alone = run("--quick", "--json", "-")
    failures += [*differences(json.loads(alone.stdout), SHAPE), *alone.stderr.splitlines()]
    print(*failures, f"{len(document['plugins'])} plugins, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
