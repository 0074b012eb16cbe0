#!/usr/bin/env python3
"""symbols.py LIBRARY MAP HEADER ALLOWED: the symbols that LIBRARY exports, those that MAP names, and the functions that
HEADER declares are equal, and have the version of MAP. LIBRARY uses only the symbols of other libraries that ALLOWED
names. Without ALLOWED, only the exports are compared: sanitizers use more."""
import pathlib
import re
import subprocess
import sys


def table(library, what):
    lines = subprocess.run(["nm", "-D", what, library], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-2:] for line in lines]


def without_comments(path):
    return re.sub(r"/\*.*?\*/", "", pathlib.Path(path).read_text("utf-8"), flags=re.S)


def plain(name):
    """memcpy for __memcpy_chk@GLIBC_2.3.4"""
    name = re.sub(r"^__(?:isoc\d+|REDIRECT)_", "", name.split("@")[0])
    return re.sub(r"(?:_chk(?!_fail)|64)$", "", name.strip("_"))


def differences(name, have, want):
    for word, more in ("lacks", want - have), ("has in addition", have - want):
        if more:
            yield f"{name} {word} {' '.join(sorted(more))}"


def main(library, map_file, header, allowed=None):
    text = without_comments(map_file)
    nodes = re.findall(r"(EPA2A_[\d.]+) \{\s*global:(.*?)(?:local:|\})", text, re.S)
    named = {f"{name}@@{node}" for node, names in nodes for name in re.findall(r"\w+", names)}
    exported = {name for kind, name in table(library, "--defined-only") if kind != "A"}
    declared = set(re.findall(r"\b(epa2a_\w+)\(", without_comments(header)))
    wrong = [*differences(library, exported, named), *differences(header, declared, {n.split("@")[0] for n in named})]
    if re.findall(r"local:\s*(.*?);", text, re.S) != ["*"]:
        wrong.append(f"{map_file} does not hide all other symbols")
    soname = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    if "[libepa2a.so.0]" not in soname:
        wrong.append(f"{library} has another soname than libepa2a.so.0")
    if allowed is not None:
        words = re.sub(r"#.*", "", pathlib.Path(allowed).read_text("utf-8")).split()
        used = {plain(name) for _, name in table(library, "--undefined-only")}
        wrong += [f"{library} uses {name}, which {allowed} does not allow" for name in sorted(used - set(words))]
    print(*wrong or [f"{len(exported)} symbols"], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
