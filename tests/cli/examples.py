#!/usr/bin/env python3
"""examples.py EPA2A SOURCE: every key of an experiment and every option of a plugin has help with a type, a default
and an example with another value, and `config check` accepts the example and each value that `epa2a tune` tries.
`help environment` lists every variable EPA2A_... that the sources read."""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

OF_ITS_FORM = (r"is not a|is not true|is out of range|unknown key|has the unit|has no unit|no value|list is expected"
               r"|single value|must be a|--set needs|has no keys|key is missing")


def run(*args):
    return subprocess.run(args, capture_output=True, text=True, check=False)


def asked(epa2a, *args):
    done = run(epa2a, *args)
    assert done.returncode == 0, done
    return done.stdout


def keys_of(epa2a):
    """Keys, and of plugins PLUGIN.OPTION."""
    overview = asked(epa2a, "help")
    for key in re.findall(r"^  ([a-z]\w*(?:\.\w+)?) ", overview, re.M):
        yield key
    for kind, names in re.findall(r"^(\w+)s\n((?:  .*\n)+)", asked(epa2a, "list"), re.M):
        for name in re.findall(r"^  ([a-z0-9_]+) ", names, re.M):
            for key in re.findall(rf"^  {kind}\.(\w+) ", asked(epa2a, "help", f"{kind}.{name}"), re.M):
                yield f"{kind}.{name}.{key}"


def main(epa2a, source):
    failed = n = 0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "x.yaml"
        file.write_text("version: 1\n")
        for key in keys_of(epa2a):
            text = asked(epa2a, "help", key)
            example = re.search(r"^  example   epa2a run FILE (--set .*)$", text, re.M)
            if "\n  type " not in text:  # name of a section, or a key that makes runs of a file
                continue
            n += 1
            if not example or ("\n  default " not in text and key != "version"):
                print(f"{key}: no default or no example: {text}")
                failed += 1
                continue
            default = re.search(r"^  default   (.*)$", text, re.M)
            if default and shlex.split(example[1])[-1].split("=", 1)[1] == default[1]:
                print(f"{key}: the example is the default: {example[1]}")
                failed += 1
            done = run(epa2a, "config", "check", file, *shlex.split(example[1]))
            if re.search(OF_ITS_FORM, done.stderr):  # otherwise it needs other keys beside it, or another machine
                print(f"{key}: {example[1]}: {done.stderr}")
                failed += 1
            for value in (re.findall(r"^  tune      ([^(\n]*)", text, re.M) or [""])[0].split():
                tries = re.sub(r"=[^= ]*$", f"={value}", example[1])
                done = run(epa2a, "config", "check", file, *shlex.split(tries))
                if re.search(OF_ITS_FORM, done.stderr):
                    print(f"{key}: {tries}: {done.stderr}")
                    failed += 1
    told = set(re.findall(r"^  (EPA2A_\w+)", asked(epa2a, "help", "environment"), re.M))
    read, header = set(), pathlib.Path(source, "include/epa2a.h").read_text("utf-8")
    for path in [*pathlib.Path(source, "src").rglob("*.c"), *pathlib.Path(source, "plugins").rglob("*.c")]:
        names = set(re.findall(r'(?:getenv|value_of)\("(EPA2A_\w+)"', path.read_text("utf-8")))
        if path.parent.name != "api":
            read |= names
        for name in names - set(re.findall(r"\bEPA2A_\w+", header)) if path.parent.name == "api" else ():
            print(f"{name} is read by the library, but not told by epa2a.h")
            failed += 1
    for name in read ^ told:
        print(f"{name} is {'read, but not told by help environment' if name in read else 'told, but never read'}")
        failed += 1
    numbers = {int(n) for n in re.findall(r"^    EXIT_\w+ = (\d+),", pathlib.Path(source, "src/tool/base/exit_code.h")
                                          .read_text("utf-8"), re.M)}
    for code in numbers ^ {int(n) for n in re.findall(r"^ +(\d+)  ", asked(epa2a, "help", "exit-codes"), re.M)}:
        print(f"exit code {code} is in the program or in help exit-codes, and not in both")
        failed += 1
    assert n > 80 and read, (n, read)
    print(f"{n} keys with examples, {len(read)} variables, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
