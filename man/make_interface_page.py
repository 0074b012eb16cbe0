#!/usr/bin/env python3
"""make_interface_page.py HEADER VERSION: prints the man page epa2a.h(3). The comments of the header are the text: the
paragraphs at its top become sections, and each declaration follows its comment."""
import pathlib
import re
import sys

TOP = """.TH EPA2A.H 3 "2026-11-29" "epa2a @version@" "Library Calls"
.SH NAME
epa2a.h \\- C interface of libepa2a, the all\\-to\\-all of mixture\\-of\\-experts models
.SH SYNOPSIS
.nf
.B #include <epa2a.h>
.PP
.B cc FILE.c $(pkg\\-config \\-\\-cflags \\-\\-libs epa2a)
.fi
"""
END = """.SH ENVIRONMENT
.TP
.B EPA2A_OPTIONS
Options that follow the options of a comm.
.TP
.B EPA2A_PLUGIN_PATH
Absolute folders with plugins, separated by colons, in place of the folder of the library.
.SH FILES
.TP
.IR LIBDIR /libepa2a.so.0
The library.
.TP
.IR DATADIR /epa2a/examples/moe_layer.c
A program with two ranks.
.SH SEE ALSO
.BR epa2a (1),
.BR epa2a\\-plugin (7)
"""


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def comment_text(comment):
    """Paragraphs of a comment, each in one line; indented lines keep their form."""
    lines = [re.sub(r"^ ?\* ?", "", line.strip()) for line in comment[2:-2].strip().splitlines()]
    return "\n".join(lines).strip()


def section(title):
    return f'.SH "{escape(title.upper())}"\n'


def print_top(comment):
    """Prints the comment of the file: titles without indentation, and their indented text."""
    print('.SH DESCRIPTION')
    for part in re.split(r"\n\n", comment_text(comment)):
        title, _, body = part.partition("\n")
        if not body.startswith("  "):
            print(escape(part))
            continue
        print(section(title), end="")
        for line in body.splitlines():
            item = re.match(r"  (\w+)  +(\w.*)", line)
            print(f".TP\n.B {item[1]}\n{escape(item[2])}" if item else escape(line.strip()))


def print_block(block):
    """Prints a comment and its declaration, as in the header."""
    comment = re.match(r"/\*.*?\*/\n", block, re.S)
    code = block[comment.end():].strip() if comment else block.strip()
    functions = re.findall(r"\b(epa2a_\w+)\(", re.sub(r"/\*.*?\*/", "", code, flags=re.S))
    name = re.search(r"(?:struct|enum) \w+|enum|#define (\w+)", code)
    title = ", ".join(f"{f}()" for f in functions) if re.match("EPA2A_(API|EXPORT) ", code) else name[1] or name[0]
    print(f'.SS "{escape(title)}"\n.nf')
    print(escape(re.sub(r"^EPA2A_(?:API|EXPORT) ", "", code, flags=re.M)))
    print(".fi")
    for part in comment_text(comment[0].strip()).split("\n\n") if comment else []:
        print(".PP\n" + escape("\n".join(line.strip() for line in part.splitlines())))


def main(header, version):
    text = pathlib.Path(header).read_text("utf-8")
    top, _, rest = text.partition("#ifndef EPA2A_H\n")
    print(TOP.replace("@version@", version), end="")
    print_top(top.strip())
    print(section("types and macros"), end="")
    for block in re.split(r"\n\n(?! )", rest):
        block = block.strip()
        heading = re.fullmatch(r"/\* ---- (.*?) ---- \*/", block.splitlines()[0])
        if heading:
            print(section(re.sub(r":.*", "", heading[1])), end="")
            block = "\n".join(block.splitlines()[1:]).strip()
        if not block or re.match(r"#(?:include|ifdef|endif|define EPA2A_H)", block):
            continue
        print_block(block)
    print(END, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
