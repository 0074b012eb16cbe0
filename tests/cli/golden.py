#!/usr/bin/env python3
"""SRC=TREE BUILD=TREE golden.py CASES FOLDER-OF-EPA2A: runs command lines and compares their output with cases. Most
cases are one line,

    CODE COMMAND [OPERATOR TEXT]

about the relevant stream: standard output if CODE is 0, otherwise standard error:

    => WORDS .. WORDS    it contains these words in this order, and the other stream is empty
    == LINE\\nLINE        it is exactly this, and the other stream is empty
    ~> and ~=            the same, and the other stream may have any contents

Without an operator both streams are empty. After => or == the contents of the other stream may follow, as !> WORDS or
!= LINES. A case of many output lines is the line after "$ ", then standard output ("> "), standard error ("! ") and the
exit code ("? ", if not 0). A longer case has named steps:

    case NAME            a sentence that states the promise
    step NAME            a part of the script; optional for a script of one command
      COMMANDS           lines of sh, indented by two blanks; all steps run in one shell
    ? CODE               the exit code of the last command, if not 0
    ~                    the other stream may have any contents
    => WORDS .. WORDS    words of the relevant stream; lines with ".. WORDS" continue them
                         (" .." at the end of a line keeps blanks before it)
    !> WORDS .. WORDS    words of the other stream
    > LINE, ! LINE       lines of standard output, of standard error; "+ " continues the line before

"#" begins a comment. The line

    needs PROGRAM PACKAGE

skips the file (exit code 77) on a machine without PROGRAM, which the Debian package PACKAGE installs. PROGRAM is
python:MODULE for a module of the Python that runs commands of the package, and PACKAGE is then its name for pip or Debian.

A line runs under sh in a new empty folder, with the program under test first in PATH as epa2a, and with $SRC and
$BUILD, the source and build trees. In the output, the paths of these and of the new folder are replaced by $SRC,
$BUILD and $TMP. In an expected text {n} matches a number, {w} matches anything but blanks, {*} matches anything; the
line {...} matches any number of lines."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT = 200  # characters of a line
# LeakSanitizer stops all threads of a process that ends and prints this line for a thread that ended meanwhile.
NOT_OF_THE_PROGRAM = re.compile(r"^(\[rank \d+\] )?==\d+==Unable to get registers from thread \d+\.\n", re.M)
WILD = {"{n}": r"[-0-9.,+e]+", "{w}": r"[^ \t]+", "{*}": r".*?"}


def decode(path):
    return path.read_bytes().decode("utf-8", "surrogateescape")


def encode(text):
    return text.encode("utf-8", "surrogateescape")


def pattern(text):
    parts = re.split(r"(\{[nw*]\})", text)
    return re.compile("".join(WILD.get(part, re.escape(part)) for part in parts), re.S)


def has_words(words, text):
    at = 0
    for word in words:
        found = pattern(word).search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def are_lines(want, have):
    if not want:
        return not have
    if want[0] == "{...}":
        return any(are_lines(want[1:], have[skip:]) for skip in range(len(have) + 1))
    return bool(have) and pattern(want[0]).fullmatch(have[0]) is not None and are_lines(want[1:], have[1:])


class Case:
    def __init__(self, number, command, name=None):
        self.number, self.command, self.code = number, command, 0
        self.name = name  # of a case with steps
        self.latest = None  # stream of the latest expectation
        self.lines = {"out": [], "err": []}
        self.words = {"out": None, "err": None}  # words instead of lines
        self.other = False  # the other stream may have any contents

    @classmethod
    def of_row(cls, number, row):
        code, rest = re.match(r"(\d+)(.*)", row).groups()
        found = re.search(r" ([=~])([>=])(?: |$)", rest)
        case = cls(number, rest if found is None else rest[:found.start()])
        case.code = int(code)
        if found is not None:
            text, *other = re.split(r" !([=>])(?: |$)", rest[found.end():], maxsplit=1)
            case.other = found[1] == "~"
            case.expect(case.counts(), found[2], text)
            if other:
                case.expect({"out": "err", "err": "out"}[case.counts()], *other)
        return case

    def continue_expectation(self, mark, text):
        if mark == "+":
            self.lines[self.latest][-1] += text
        else:
            self.words[self.latest].append(text)

    def expect(self, stream, operator, text):
        if operator == ">":
            self.words[stream] = text.split(" .. ")
        elif text:
            self.lines[stream] = text.removesuffix("\\n").split("\\n")

    def counts(self):
        return "out" if self.code == 0 else "err"

    def checked(self):
        """Returns the case. Words of a stream would replace its lines."""
        for stream in ("out", "err"):
            assert self.words[stream] is None or not self.lines[stream], \
                f"line {self.number} expects words and also lines of one stream; use the line {{...}} or two cases"
        return self

    def fits(self, stream, text):
        if self.words[stream] is not None:
            return has_words(self.words[stream], text)
        if stream != self.counts() and self.other:
            return True
        return are_lines(self.lines[stream], text.removesuffix("\n").split("\n") if text else [])

    def run(self):
        with tempfile.TemporaryDirectory(prefix="epa2a-cli-", dir="/tmp") as top:
            folder = f"{top}/tmp"
            os.mkdir(folder)
            with open(f"{top}/out", "wb") as out, open(f"{top}/err", "wb") as err:
                code = subprocess.run(["/bin/sh", "-c", encode("{ " + self.command + "\n}")], cwd=folder, stdout=out,
                                      stderr=err, check=False).returncode
            good = code == self.code
            if not good:
                print(f"  the exit code is {code}, not {self.code}")
            for stream, mark, name in (("out", ">", "output"), ("err", "!", "error")):
                text = NOT_OF_THE_PROGRAM.sub("", decode(pathlib.Path(top, stream)))
                for name_of, path in (("$TMP", folder), ("$BUILD", os.environ["BUILD"]), ("$SRC", os.environ["SRC"])):
                    text = text.replace(path, name_of)
                if not self.fits(stream, text):
                    good = False
                    print(f"  standard {name} is not as expected; it is")
                    print("".join(f"{mark} {line}\n" for line in text.splitlines()), end="")
        if not good:
            print(f"  that was line {self.number}{f', {self.name}' if self.name else ''}:{self.command}\n")
        return good


def is_there(program):
    module = program.removeprefix("python:")
    if module == program:
        return shutil.which(program) is not None
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    python = os.environ.get("EPA2A_PYTHON") or "python3"
    return shutil.which(python) is not None and subprocess.run([python, "-c", find], check=False).returncode == 0


def missing_programs(path):
    """Each program that the file needs and this machine lacks, with its package."""
    needs = re.findall(r"^needs (\S+) (\S+)$", decode(path), re.M)
    return [f"{program} (package {package})" for program, package in needs if not is_there(program)]


def read_cases(path):
    case = None
    for number, line in enumerate(decode(path).split("\n"), 1):
        assert len(line) <= LIMIT, f"line {number} has more than {LIMIT} characters; split the case into steps"
        text = line[2:] if line[1:2] == " " else line[1:]
        if line[:1] == "$" or line[:1].isdigit() or line.startswith("case "):
            if case is not None:
                yield case.checked()
            if line.startswith("case "):
                case = Case(number, "", line[5:])
            else:
                case = Case(number, line[1:]) if line[0] == "$" else Case.of_row(number, line)
        elif line.startswith("step "):
            case.command += "\n# " + line[5:]
        elif line.startswith("  ") and case.name:
            case.command += "\n" + line[2:]
        elif line.startswith(("=> ", "!> ")) and case.name:
            case.latest = case.counts() if line[0] == "=" else {"out": "err", "err": "out"}[case.counts()]
            case.expect(case.latest, ">", line[3:].removesuffix(" .."))
        elif line.startswith((".. ", "+ ")):
            mark, _, rest = line.partition(" ")
            for words in rest.removesuffix(" ..").split(" .. ") if mark == ".." else [rest]:
                case.continue_expectation(mark, words)
        elif line == "~":
            case.other = True
        elif line[:1] in (">", "!"):
            case.latest = "out" if line[0] == ">" else "err"
            case.lines[case.latest].append(text)
        elif line[:1] == "?":
            case.code = int(text)
        else:
            assert line[:1] in ("", "#") or line.startswith("needs "), \
                f"line {number} begins with none of # $ > ! ? ~ + => !> .. case, step, needs, digits and two blanks"
    if case is not None:
        yield case.checked()


def main(cases, folder):
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    missing = missing_programs(pathlib.Path(cases))
    if missing:
        print(f"SKIP: this machine has no {', no '.join(missing)}")
        return 77
    os.umask(0o022)  # plugins accept folders that cases create
    sys.stdout.reconfigure(errors="backslashreplace")
    good = [case.run() for case in read_cases(pathlib.Path(cases))]
    print(f"{len(good)} cases, {good.count(False)} failed")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
