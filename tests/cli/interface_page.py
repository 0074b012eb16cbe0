#!/usr/bin/env python3
"""interface_page.py PAGE HEADER: man and groff report no error in the page epa2a.h(3), and the page has each function,
struct, field and constant of the header, and no comment twice."""
import pathlib
import re
import shutil
import sys

from man import complaints, rendered


def main(page, header):
    if shutil.which("groff") is None:
        print("SKIP: there is no groff here (package groff-base)")
        return 77
    text, source = rendered(page), pathlib.Path(header).read_text("utf-8")
    wrong = list(complaints(page))
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    names = set(re.findall(r"\b(?:epa2a|EPA2A)_\w+\b", code)) - {"EPA2A_H"}
    names |= set(re.findall(r"\b(\w+)(?:\[\d\])?[,;]", code)) - {"extern"}
    wrong += [f"{page} lacks {name}" for name in sorted(names) if not re.search(rf"\b{name}\b", text)]
    for function in re.findall(r"^EPA2A_(?:API|EXPORT).*?\b(epa2a_\w+)\(", code, re.M):
        if not re.search(rf"^   .*\b{function}\(\)", text, re.M):
            wrong.append(f"{page} has no heading for {function}()")
    assert len(names) > 100, names
    print(*wrong or [f"{len(names)} names"], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
