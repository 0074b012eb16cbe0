#!/usr/bin/env python3
"""calls.py ROOT: only the library calls the functions that construct plugins.

In src/, the functions open() of backends and transports, and plan() and create() of algorithms, are
called in src/lib/ep only, so that every program of the tree constructs an algorithm in one way."""
import re
import sys

import sources

OWNER = ("src", "lib", "ep")
CALL = re.compile(r"(?:->|\.)\s*(open|plan|create)\s*\)?\s*\(")


def main(root):
    checked, wrong = 0, []
    for file in sources.read_tree(root):
        if file.path.parts[0] != "src" or file.suffix not in sources.C or file.path.parts[:3] == OWNER:
            continue
        checked += 1
        code = file.code()
        wrong += [f"{file.path}:{code.count(chr(10), 0, call.start()) + 1}: calls {call.group(1)}() of a plugin; "
                  "use the functions of src/lib/ep/ep.h" for call in CALL.finditer(code)]
    for message in wrong:
        print(message)
    print(f"{checked} files, {len(wrong)} calls outside of {'/'.join(OWNER)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
