#!/usr/bin/env python3
"""Checks include/epa2a.h, the interface of libepa2a.

interface.py compile HEADERS LAYOUT [NVCC]: the header compiles alone, without warnings, as each version of C from C99 and
of C++ from C++11 that gcc and clang here have, and as CUDA with NVCC, and has the sizes and offsets of LAYOUT.
interface.py check CC HEADERS LAYOUT: LAYOUT, tests/abi/interface.txt, has each struct, member and constant of the header.
interface.py update: rewrites LAYOUT after an addition. It refuses a change of a line: new fields are at the end."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import layout

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
VERSIONS = {"c": ("c99", "c11", "c17", "c2x", "c23"), "cc": ("c++11", "c++14", "c++17", "c++20", "c++2b", "c++23")}
COMPILERS = {"c": ("gcc", "clang"), "cc": ("g++", "clang++")}
USE = """
int use(void);
int use(void)
{
    EPA2A_STRUCT(epa2a_tokens, in);
    return in.size != sizeof(struct epa2a_tokens) || in.x != NULL || epa2a_version() != EPA2A_VERSION;
}
"""


def show(cc, headers):
    return sorted(layout.lines_of([cc], headers, "#include <epa2a.h>\n", "epa2a_"))


def check(cc, headers, path):
    have, now = pathlib.Path(path).read_text("utf-8").splitlines(), show(cc, headers)
    for line in sorted(set(have) ^ set(now)):
        print(f"only in {path if line in have else 'epa2a.h'}: {line}")
    return have != now


def update():
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    path, now = top / "tests/abi/interface.txt", show("cc", top / "include")
    before = path.read_text("utf-8").splitlines() if path.exists() else []
    gone = [line for line in set(before) - set(now) if not line.startswith("sizeof")]
    if gone:
        sys.exit("these lines would change: " + ", ".join(sorted(gone)))
    path.write_text("".join(line + "\n" for line in now), "utf-8")
    return 0


def compile_with(work, command, end, source, *flags):
    file = pathlib.Path(work, f"x.{end}")
    file.write_text(source, "utf-8")
    return subprocess.run([*command, "-c", file, "-o", f"{work}/x.o", *flags], capture_output=True, text=True, check=False)


def compile_all(headers, path, nvcc=None):
    lines = pathlib.Path(path).read_text("utf-8").splitlines()
    same = layout.SAME + "".join(f"SAME({line.replace(' == ', ', ')})\n" for line in lines)
    tried, bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        ways = [([compiler, f"-std={version}", *STRICT], end) for end, versions in VERSIONS.items()
                for compiler in COMPILERS[end] if shutil.which(compiler) for version in versions]
        ways += [([nvcc, "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings"], "cu")] if nvcc else []
        for command, end in ways:
            if compile_with(work, command, end, "int x;\n").returncode != 0:
                continue  # an older compiler without this version
            source = "#include <epa2a.h>\n" + USE + ("" if "c99" in command[1] else same)
            done = compile_with(work, command, end, source, f"-I{headers}")
            tried.append(" ".join(command[:2]))
            if done.returncode != 0 or done.stderr:
                print(f"{tried[-1]}: {done.stderr[:2000]}")
                bad += 1
    print(", ".join(tried))
    assert any("c99" in way for way in tried) and len(tried) >= 4, tried
    return bad > 0


if __name__ == "__main__":
    if sys.argv[1:] == ["update"]:
        sys.exit(update())
    sys.exit({"check": check, "compile": compile_all}[sys.argv[1]](*sys.argv[2:]))
