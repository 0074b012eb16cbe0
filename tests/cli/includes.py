#!/usr/bin/env python3
"""includes.py SRC: no file of SRC/lib includes a file of SRC/tool, and no folder of either includes a folder that
includes it, directly or through others. Only run/run.c launches ranks for the commands."""
import pathlib
import re
import sys


def main(src):
    src, includes, wrong = pathlib.Path(src), {}, []
    for path in (p for p in src.rglob("*") if p.suffix in (".c", ".h")):
        part, folder = path.relative_to(src).parts[:2]
        mine = includes.setdefault(f"{part}/{folder}", set())
        for name in re.findall(r'#include ["<](\w+/[\w/.]+)[">]', path.read_text("utf-8")):
            owners = [owner for owner in ("lib", "tool") if (src / owner / name).exists()]
            assert len(owners) < 2, f"{name} is in both parts"
            mine |= {f"{owner}/{name.split('/')[0]}" for owner in owners}
            if part == "lib" and owners == ["tool"]:
                wrong.append(f"{path} includes {name}, a part of the program")
        mine.discard(f"{part}/{folder}")
    assert len(includes) > 8, includes
    launches = {str(path.relative_to(src)) for path in src.rglob("*.c")
                if '"session/session_run.h"' in path.read_text("utf-8")}
    assert launches == {"tool/run/run.c", "tool/session/session_run.c"}, launches
    while leaves := [folder for folder, of in includes.items() if not of & includes.keys()]:
        for folder in leaves:
            del includes[folder]
    print(*wrong, f"circles in: {includes or 'none'}", sep="\n")
    return 1 if includes or wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
