#!/usr/bin/env python3
"""subjects.py ROOT [BASE]: subjects of new commits have the form `area: verb object`.

A subject has at most 72 characters, an area in lower case, and none of the patterns of words.py. New
commits are those since BASE, or else since START. Exits with 77 where the history does not contain it."""
import re
import sys

import sources
import words

# Earlier subjects have other forms.
START = "9473ebe1e3d97d3a473a708c9b1692fa58c4a550"
LENGTH = 72
# Areas are words in lower case, such as "src/cli, man" or "unit tests".
FORM = re.compile(r"[a-z0-9_./-]+(?:,? [a-z0-9_./-]+)*: [a-z][\w-]* .*[^.]$")


def find_defects(subject):
    """Returns the defects of a subject, as a list of texts."""
    defects = [] if FORM.match(subject) else ["does not have the form `area: verb object`, without a full stop"]
    if len(subject) > LENGTH:
        defects.append(f"has {len(subject)} characters, more than {LENGTH}")
    return defects + words.find_hits(subject)


def main(root, base=START):
    if sources.run_git(root, "merge-base", "--is-ancestor", base, "HEAD") is None:
        print(f"skipped: no git, or the history of {root} does not contain {base}")
        return 77
    log = sources.run_git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD").splitlines()
    wrong = [f"{commit}: {', '.join(defects)}: {subject}" for commit, _, subject in
             (line.partition(" ") for line in log) for defects in [find_defects(subject)] if defects]
    for message in wrong:
        print(message)
    print(f"{len(log)} commits since {base}, {len(wrong)} with a defect in the subject")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
