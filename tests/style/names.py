#!/usr/bin/env python3
"""names.py ROOT [PROGRAM]: names in comments and documents exist.

A `name` or name() exists if it occurs in the code of some file, is the name of a file or folder, or
is in external.txt, which lists names of other projects. A `file.c` exists if a file of the tree has
this name, and `folder/file.c` if a path ends so. In documents, an option exists if the
program or a script of the tree has it, a command of `epa2a` if the program has it, and a key such as
`moe.hidden` if a table of options has it. Without PROGRAM, options and commands are not checked."""
import pathlib
import re
import subprocess
import sys

import sources

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CALL = re.compile(r"(?<![\w.\-/%])([A-Za-z_][A-Za-z0-9_]*)\(\)")
QUOTED = re.compile(r"`([A-Za-z_][A-Za-z0-9_]*)`")
# A source file in backquotes, or a path from a folder of the tree. Files with other ends may be inputs or outputs.
FILE = re.compile(r"(?:`|(?<![\w/.-])(?=(?:include|plugins|share|src|tests)/))"
                  r"((?:[\w.-]+/)*[\w-]+\.(?:build|case|c|cuh?|h|py|sh))(?![\w*-]|\.\w)")
OPTION = re.compile(r"(?<![-\w])(--[a-z][a-z0-9-]*)")
COMMAND = re.compile(r"`epa2a ([a-z]+)\b")
KEY = re.compile(r"`([a-z]+)\.([a-z_0-9]+)\b")
# Names in tables of options, and sections in the table of experiments.
TABLE_NAME = re.compile(r'\.name = "(\w+)"')
SECTIONS = re.compile(r"\bexperiment_sections\[\] = \{(.*?)^\};", re.M | re.S)


class Known:
    """Names of a tree."""

    def __init__(self, root, files, program):
        listed = (pathlib.Path(__file__).parent / "external.txt").read_text().splitlines()
        external = {word for line in listed if not line.startswith("#") for word in line.split()}
        self.words, self.options = set(external), set(external)
        self.keys, self.sections = set(), set()
        self.paths = {f"/{file.path}" for file in files}
        for file in files:
            self.words |= set(WORD.findall(file.path.name)) | set(file.path.parts)
            if not file.is_document():
                code = file.code()
                self.words |= set(WORD.findall(code))
                self.options |= set(OPTION.findall(code))
                self.keys |= set(TABLE_NAME.findall(code))
                for table in SECTIONS.findall(code):
                    self.keys |= set(WORD.findall(code)) # macros make names of tables
                    self.sections |= set(re.findall(r"^    [A-Z]+\((\w+),", table, re.M))
        self.commands = None
        if program:
            text = print_help(program)
            self.commands = set(re.findall(r"^  ([a-z]+)\b", text, re.M))
            for command in sorted(self.commands):
                text += print_help(program, command)
            self.options |= set(OPTION.findall(text))

    def has_file(self, name):
        """A document may give the path from its own folder: `../common/rows.h`."""
        end = "/" + name.replace("../", "")
        return name in self.words or any(path.endswith(end) for path in self.paths)


def print_help(program, *command):
    return subprocess.run([program, *command, "--help"], capture_output=True, text=True).stdout


def find_missing(root, program):
    """Returns the number of names, and messages about names that do not exist."""
    files = sources.read_tree(root)
    known = Known(root, files, program)
    count, missing = 0, []

    def check(file, number, name, exists, kind):
        nonlocal count
        count += 1
        if not exists:
            missing.append(f"{file.path}:{number}: {kind} {name} does not exist")

    for file in files:
        for number, line in file.english():
            for name in CALL.findall(line) + QUOTED.findall(line):
                check(file, number, name, name in known.words, "name")
            for name in FILE.findall(line):
                check(file, number, name, known.has_file(name), "file")
            if file.is_document() and program:
                for name in OPTION.findall(line):
                    check(file, number, name, name in known.options, "option")
                for name in COMMAND.findall(line):
                    check(file, number, name, name in known.commands, "command of epa2a")
            if file.is_document():
                for section, key in KEY.findall(line):
                    if section in known.sections:
                        check(file, number, f"{section}.{key}", key in known.keys, "key")
    return count, missing


def main(root, program=None):
    count, missing = find_missing(root, program)
    for message in missing:
        print(message)
    print(f"{count} names in comments and documents, {len(missing)} that do not exist")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
