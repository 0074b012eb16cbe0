#!/usr/bin/env python3
"""includes.py SRC: no folder of SRC/lib or SRC/tool includes a folder that includes it, directly or
through others. The two folders base count as one. Only run/run.c launches ranks for the commands."""
import pathlib
import re
import sys


def main(src):
    src, includes = pathlib.Path(src), {}
    for path in (p for p in src.rglob("*") if p.suffix in (".c", ".h")):
        folder = path.relative_to(src).parts[1]
        includes.setdefault(folder, set()).update(
            name.split("/")[0] for name in re.findall(r'#include ["<](\w+/[\w/.]+)[">]', path.read_text("utf-8"))
            if any((src / part / name).exists() for part in ("lib", "tool")) and name.split("/")[0] != folder)
    assert len(includes) > 8, includes
    launches = {str(path.relative_to(src)) for path in src.rglob("*.c")
                if '"session/session_run.h"' in path.read_text("utf-8")}
    assert launches == {"tool/run/run.c", "tool/session/session_run.c"}, launches
    while leaves := [folder for folder, of in includes.items() if not of & includes.keys()]:
        for folder in leaves:
            del includes[folder]
    print("circles in:", includes or "none")
    return 1 if includes else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
