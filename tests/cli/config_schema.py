#!/usr/bin/env python3
"""config_schema.py EPA2A CONFIGS BAD_INPUTS PLUGINS: `epa2a config schema` against `epa2a config check`. Whatever
the program takes, the schema takes; and what the program refuses of one value alone, so does the schema,
where a schema can know."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"SKIP: {missing} (packages python3-jsonschema, python3-yaml)")
    sys.exit(77)

# Refusals of one value or key that a schema cannot express: about notation (equal after a YAML
# reader), about numbers with a unit, or about other values.
CANNOT_KNOW = [
    r"in quotes is a string",
    r"begins with 0, which some programs read as octal",
    r"is set twice",
    r"no value$",
    r"'\d+e\d+' (is not a whole number|has the unit)",  # 1000 all the same
    r"is not a whole number of (nanoseconds|bytes)",  # 0.0001us; a pattern cannot compute with a unit
    r": '[\d.]+ ?[a-zA-Z%]+' is out of range",  # a pattern can be held to it, and no more
]
# Refusals that depend on this value or key alone.
OF_ONE_VALUE = (r"is not a whole number|is not a number|is not true or false|is not a choice|is out of range"
                r"|is not a size|is not a duration|has the unit|has no unit|is negative|unknown key|must be a map"
                r"|a single value is expected|a list is expected|is too large|no 'version: 1'|version \d+ is not known"
                r"|has more than 6 digits|an experiment is a map of keys|is empty; it is a map of keys")

# Files of several runs or of parts: both accept these,
TAKEN = """
runs: {plain: {}, wide: {from: plain, moe.hidden: 8192}, bare: }
runs: {a: {algorithm: {name: ll_v2, dispatch_dtype: fp8}}, b: {algorithm.dispatch_dtype: native, moe: {topk: 4}}}
runs: {a: {transport: shm, tokens: [1, 2], tokens.kind: list, timeout: 1s}}
matrix: {moe.topk: [4, 8], routing: [uniform, {kind: zipf, exponent: 2.0}]}
matrix: {moe: {topk: [4, 8], hidden: [256, 128]}}
matrix: {moe.topk: [4, 8], moe.hidden: [256, 128], exclude: [{moe.topk: 4, moe.hidden: 256}]}
matrix: {moe.topk: [4, 8], include: [{moe.topk: 2, ranks: 4}]}
zip: {ranks: [2, 4], moe.experts: [8, 16]}
repeat: 3
x-notes: {any: [thing]}
moe: {x-why: because}
tokens: [1, 2]
tokens: {kind: list, per_rank: [1, 2]}
routing: zipf
algorithm: {dispatch_dtype: native}
transport: {name: fakelink, between_nodes: shm}
transport: {name: fakelink, between_nodes: {name: reorder, seed: 7}}
runs: {a: {transport: {name: fakelink, between_nodes: reorder}, transport.between_nodes.seed: 7}}
launcher: {name: auto}
launcher: {pin: none}
routing: {kind: file, path: "x.npy", layer: 3}
name: 123
name: true
timeout: 1.5s
timeout: 1 s
routing: {kind: hot, share: 25%}
routing: {kind: maxvio, violation: 2.5}
bench: {ci95: 1%, min_time: 100ms}
bench: {ci95: 0.5, max_time: 1s}
bench: {arrivals: poisson, load: 80%}
bench: {arrivals: constant, rate: 2000}
expect: {median: 120us, goodput: 40, of_peak: 50%, wrong: 0}
expect: {dispatch: {p99: 80us}, total.p99: 1 ms}
verify: {straggle: 0}
fault: none
fault: {kind: straggle, rank: 1, stage: combine, iteration: 10, for: 100us, every: 1}
matrix: {fault: [none, kill, {kind: stop, for: 1s}]}
verify: {straggle: 10us}
seed: 18446744073709551615
seed: ${SCHEMA_TEST_SEED}
moe: {topk: "${SCHEMA_TEST_TOPK:-4}", experts: "${SCHEMA_TEST_EXPERTS:-32}"}
transport: ${SCHEMA_TEST_TRANSPORT:-shm}
transport: {name: "${SCHEMA_TEST_TRANSPORT:-shm}", wait: "${SCHEMA_TEST_WAIT:-auto}"}
verify: {straggle: "${SCHEMA_TEST_STRAGGLE:-10us}"}
bench: {check: "${SCHEMA_TEST_CHECK:-true}", ci95: "${SCHEMA_TEST_CI95:-1%}"}
expect: {dispatch: {p99: "${SCHEMA_TEST_LIMIT:-80us}"}}
tokens: [1, "${SCHEMA_TEST_TOKENS:-2}"]
routing: ${SCHEMA_TEST_ROUTING:-zipf}
repeat: ${SCHEMA_TEST_REPEAT:-2}
"""
# and both refuse these, in addition to the values of all_values() and bad-inputs.txt.
REFUSED = """
runs: {a: {moe.hiden: 64}}
runs: {a: {moe.hidden: many}}
runs: {a: {moe: {hidden: -1}}}
runs: {a: {version: 2}}
runs: {a: 4}
matrix: {moe.topk: [4, x]}
matrix: {moe.topc: [4, 8]}
matrix: {moe.topk: []}
zip: {ranks: [2, 400]}
algorithm: {name: ll_v2, wyre: bf16}
algorithm: {wyre: bf16}
algorithm: {name: alltoallv, layout: rank}
transport: {name: shm, tls: all}
tokens: {kind: list, 1, 70000]}
fault: crash
fault: {kind: stop, for: 0}
bench: {arrivals: sometimes, rate: 1}
bench: {arrivals: poisson, load: 0}
expect: {mediam: 1s}
expect: {wrong: some}
expect: {dispatch: {mediam: 1s}}
expect: {dispatch.median: fast}
seed: $${SCHEMA_TEST_SEED}
bench: {check: "$${SCHEMA_TEST_CHECK}"}
"""


class Core(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML 1.2 as editors read it: no `yes`, no 1:30, and 1e-3 is a number."""


Core.yaml_implicit_resolvers = {}
for tag, pattern, first in [
    ("bool", r"^(true|false)$", "tf"),
    ("null", r"^(null|~|)$", "n~"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", "-+.0123456789"),
]:
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
Core.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^$"), [""])
Core.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
Core.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))


def read(text):
    """The document, or None where it is no YAML."""
    try:
        return yaml.load(text, Core)
    except (yaml.YAMLError, ValueError):
        return None


def check(epa2a, *paths):
    """For each path the messages of `config check`; [] where it is good."""
    done = subprocess.run([*epa2a, "config", "check", *paths], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2, 3), done
    said = {str(path): [] for path in paths}
    for path, message in re.findall(r"^(\S+?)(?::\d+:\d+)?: error: (.*)$", done.stderr, re.M):
        said[path].append(message)
    good = set(re.findall(r"^(\S+): good(?:, \d+ runs)?$", done.stdout, re.M))
    for path, messages in said.items():
        assert (path in good) != bool(messages), (path, done.stderr)
    return said


def knowable(messages):
    return [m for m in messages
            if re.search(OF_ONE_VALUE, m) and not any(re.search(c, m) for c in CANNOT_KNOW)]


class Comparison:
    def __init__(self, epa2a):
        self.epa2a = epa2a
        text = subprocess.run([*epa2a, "config", "schema"], capture_output=True, text=True, check=True).stdout
        self.schema = json.loads(text)
        jsonschema.Draft7Validator.check_schema(self.schema)
        self.validator = jsonschema.Draft7Validator(self.schema)
        self.failed = self.taken = self.refused = self.passed = 0

    def complain(self, what):
        print(what)
        self.failed += 1

    def compare(self, name, document, messages):
        valid = self.validator.is_valid(document)
        must = knowable(messages)
        if not messages and not valid:
            error = jsonschema.exceptions.best_match(self.validator.iter_errors(document))
            self.complain(f"{name}: the program takes it, and the schema says: {error.message:.300}")
        elif must and valid:
            self.complain(f"{name}: the schema takes it, and the program says: {must[0]}")
        elif not messages:
            self.taken += 1
        elif not valid:
            self.refused += 1
        else:
            self.passed += 1

    def configs(self, folder):
        paths = sorted(folder.glob("*.yaml"))
        assert paths, folder
        for path in paths:
            document = read(path.read_text())
            checked = subprocess.run([*self.epa2a, "config", "check", "--quiet", path], capture_output=True,
                                     check=False)
            if checked.returncode == 3:  # a plugin is missing in this build, and so in its schema
                continue
            if not self.validator.is_valid(document):
                error = jsonschema.exceptions.best_match(self.validator.iter_errors(document))
                self.complain(f"{path}: {error.message:.300}")
            shown = subprocess.run([*self.epa2a, "config", "show", path], capture_output=True, text=True,
                                   check=False)
            if shown.returncode == 0 and not shown.stdout.startswith("#"):
                self.compare(f"config show {path}", read(shown.stdout), [])

    def bad_inputs(self, path, folder):
        cases = re.findall(r"^([^ #].*?) \|(\|?) ?(.*?)(?: => .*)?$", path.read_text("utf-8"), re.M)
        assert len(cases) > 40, path
        for name, whole, text in cases:
            if "<<" in text or text.startswith("--set"):  # invalid bytes; --set
                continue
            text = ("" if whole else "version: 1\n") + text.replace("\\n", "\n").replace("\\t", "\t") + "\n"
            document = read(text)
            if document is None or re.search(r"^---", text, re.M):
                continue
            (folder / "bad.yaml").write_text(text)
            self.compare(f"'{name}'", document, check(self.epa2a, folder / "bad.yaml")[str(folder / "bad.yaml")])

    def forms(self, folder):
        for lines, good in ((TAKEN, True), (REFUSED, False)):
            for line in lines.strip().splitlines():
                text = f"version: 1\n{line}\n"
                (folder / "form.yaml").write_text(text)
                done = subprocess.run([*self.epa2a, "config", "check", folder / "form.yaml"],
                                      capture_output=True, text=True, check=False)
                # Referenced files are missing, which no schema can know.
                lacks = "absent" in done.stderr or "No such file" in done.stderr
                if (done.returncode == 2) == good and not lacks:
                    self.complain(f"{line}: exit code {done.returncode} {done.stderr}")
                valid = self.validator.is_valid(read(text))
                if valid != good:
                    self.complain(f"{line}: to the schema it is {'good' if valid else 'bad'}")

    def values(self, key, definition, folder):
        """Values of all kinds, and at the bounds of this one, for one key."""
        values = ["word", "true", "-1", "0", "1", "4x", "1.5", "1e3", "10us", "2s", "64KiB", "1.0000001s",
                  "[1, 2]", "[]", "[1, x]", "{a: 1}", "7e9999"]
        for bound, beyond in (("minimum", -1), ("maximum", 1)):
            for part in [definition, *definition.get("anyOf", []), definition.get("items", {})]:
                if bound in part:
                    values += [str(part[bound]), str(part[bound] + beyond), f"[{part[bound] + beyond}]"]
        for part in [definition, *definition.get("anyOf", [])]:
            for word in part.get("enum", []):
                values += [str(word), f"{word}x"]
        values.append('"$${SCHEMA_TEST}"')
        lines = ["version: 1"]
        if key.startswith("allgather."):  # the section belongs to another operation than the default algorithm
            lines.append("algorithm: allgather")
        if key.startswith("gemm."):
            lines.append("algorithm: ag_gemm_2d")
        if key != "version":
            *sections, name = key.split(".")
            # An option of a plugin needs the plugin's name beside it.
            lines.append("%s: VALUE" % name if not sections else
                         "%s: {%s: VALUE}" % (sections[0], name) if len(sections) == 1 else
                         "%s: {name: %s, %s: VALUE}" % (sections[0], sections[1], name))
        else:
            lines = ["version: VALUE"]
        for start in range(0, len(values), 10):  # up to 2 errors a file, and at most 20 are printed
            texts = {folder / f"{i}.yaml": "\n".join(lines).replace("VALUE", value) + "\n"
                     for i, value in enumerate(values[start:start + 10])}
            for path, text in texts.items():
                path.write_text(text)
            for path, messages in check(self.epa2a, *texts).items():
                text = texts[pathlib.Path(path)]
                self.compare(repr(text), read(text), messages)

    def all_values(self, folder):
        definitions = self.schema["definitions"]
        keys = [k for k in definitions if re.fullmatch(r"\w+(\.\w+)*", k) and "$ref" not in str(definitions[k])]
        # A missing plugin could not check its options.
        assert len(keys) > 80, keys
        for key in keys:
            definition = definitions[key]
            if "default" in definition and key != "launcher.name":
                if not jsonschema.Draft7Validator(definition).is_valid(definition["default"]):
                    self.complain(f"{key}: its default is refused")
            self.values(key, definition, folder)


def main(epa2a, configs, bad_inputs, plugins):
    os.environ["SCHEMA_TEST_SEED"] = "7"
    comparison = Comparison([epa2a, "--plugin-path", plugins])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        comparison.configs(pathlib.Path(configs))
        comparison.bad_inputs(pathlib.Path(bad_inputs), folder)
        comparison.forms(folder)
        comparison.all_values(folder)
    print(f"both take {comparison.taken}, both refuse {comparison.refused}, the program alone "
          f"refuses {comparison.passed}, which no schema can; {comparison.failed} failures")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
