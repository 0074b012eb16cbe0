#!/usr/bin/env python3
"""next_header.py HEADER PROGRAM: prints epa2a.h as a later version could be: each struct that begins with its size has
one more field at its end, and EPA2A_VERSION is larger by one. PROGRAM must pass each of these structs to the library."""
import pathlib
import re
import sys


def main(path, program):
    text = pathlib.Path(path).read_text("utf-8")
    used = pathlib.Path(program).read_text("utf-8")
    for name in re.findall(r"\nstruct (\w+) \{\n", text):
        if f"MARKED({name}, " not in used:
            sys.exit(f"{program}: no MARKED({name}, ...)")
    text, structs = re.subn(r"(\nstruct \w+ \{\n    size_t size;\n.*?)(\n\};\n)", r"\1\n    uint64_t next_field;\2", text, flags=re.S)
    text, versions = re.subn(r"(#define EPA2A_VERSION 0x[0-9a-f]+)u", r"\1u + 1u", text)
    if structs != len(re.findall(r"^    size_t size;", text, re.M)) or versions != 1:
        sys.exit(f"{path}: {structs} structs with a size, {versions} versions")
    text = text.replace("#define EPA2A_VERSION", "#define EPA2A_HAS_NEXT_FIELD\n#define EPA2A_VERSION")
    print(re.sub(r"(#define EPA2A_VERSION )(.*)", r"\1(\2)", text), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
