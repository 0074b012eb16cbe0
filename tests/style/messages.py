#!/usr/bin/env python3
"""messages.py ROOT: the program does not search its own messages.

The text of an error is for users. Code that has to know the reason of a failure reads the status or the key of
struct epa_error; a search in the text breaks with the next change of a word."""
import re
import sys

import sources

TEXT = r"\b(?:\w*err|error|why|failed|found|cause|reason)(?:\.|->)(?:last\.)?text"
SEARCH = re.compile(rf'\b(?:strstr|strcasestr|strchr|memmem|fnmatch|sscanf)\({TEXT}\b|\bstrn?(?:case)?cmp\({TEXT}, *(?:"|strerror)')


def main(root):
    checked, wrong = 0, []
    for file in sources.read_tree(root):
        if file.path.parts[0] not in ("src", "plugins") or file.suffix not in sources.C:
            continue
        checked += 1
        code = file.code()
        wrong += [f"{file.path}:{code.count(chr(10), 0, call.start()) + 1}: searches the text of an error; use its status or key"
                  for call in SEARCH.finditer(code)]
    for message in wrong:
        print(message)
    print(f"{checked} files, {len(wrong)} searches in messages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
