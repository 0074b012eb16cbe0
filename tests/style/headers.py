#!/usr/bin/env python3
"""headers.py ROOT: each header declares functions of one source file, which has its name.

Public headers are exempt. A header without declarations of functions may hold types, constants and
inline functions. Launchers of kernels count as functions of their .cu file."""
import re
import sys

import sources

PUBLIC = ("include/",)
FOLDERS = ("src", "plugins", "include")
# Attributes stand before or behind a declaration and look like calls.
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\bEPA_PRINTF\s*\([^()]*\)|\bEPA_[A-Z_]+\b(?!\s*\()")
HEAD = r"^(?!static\b|typedef\b|return\b|else\b)[A-Za-z_][\w\s*]*?\b([A-Za-z_]\w*)\s*\("
# A parameter list may contain parentheses of function pointers.
PARAMETERS = r"(?:[^(){};]|\((?:[^(){};]|\([^(){};]*\))*\))*\)\s*"
DECLARATION = re.compile(HEAD + PARAMETERS + ";", re.M)
DEFINITION = re.compile(HEAD + PARAMETERS + r"\{", re.M)


def remove_bodies(code):
    """Removes the contents of braces in a header: members of structs, and bodies of inline functions."""
    out, depth = [], 0
    for part in re.split(r"([{}])", code):
        if part == "{":
            depth += 1
        elif part == "}":
            depth = max(depth - 1, 0)  # the end of a linkage block
            out.append(" ")
        elif depth == 0:
            out.append(part)
    return "".join(out)


def plain(file):
    """The code of a file without attributes, preprocessor lines, linkage and leading blanks of declarations."""
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", file.code(), flags=re.M)
    code = ATTRIBUTE.sub("", re.sub(r'extern "C"\s*(\{)?', "", code))
    return re.sub(r"^\s+(?=\w)", "", remove_bodies(code), flags=re.M) if file.path.suffix == ".h" else code


def find_offenders(files):
    """Returns (number of headers that are not public, messages)."""
    defined, declared = {}, {}
    for file in files:
        if file.path.parts[0] not in FOLDERS:
            continue
        if file.path.suffix in (".c", ".cu"):
            for name in DEFINITION.findall(plain(file)):
                defined.setdefault(name, []).append(file.path)
        elif file.path.suffix == ".h" and not str(file.path).startswith(PUBLIC):
            declared[file.path] = set(DECLARATION.findall(plain(file)))
    wrong = []
    for header, names in sorted(declared.items()):
        owners = {}
        for name in sorted(names):
            paths = defined.get(name, [])
            for path in [path for path in paths if path.parent == header.parent] or paths:
                owners.setdefault(path, []).append(name)
        if len(owners) > 1 or any(path.with_suffix(".h") != header for path in owners):
            wrong.append(f"{header}: declares " + "; ".join(
                f"{', '.join(names[:3])} of {path}" for path, names in sorted(owners.items())))
    return len(declared), wrong


def main(root):
    headers, wrong = find_offenders(sources.read_tree(root))
    for message in wrong:
        print(message)
    print(f"{headers} headers that are not public, {len(wrong)} without a source file of their own")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
