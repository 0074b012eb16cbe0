#!/usr/bin/env python3
"""words.py [--list] ROOT: comments and documents name their subjects.

Counts sentences whose subject or object is a pronoun or a clause ("what is sent", "who waits"), and
phrases that stand for a term of the field. Limits: LINES_OF_FOLDER hits per 1,000 comment lines of a
folder with more than FOLDER_LINES, LINES_OF_ALL of all folders, WORDS per 1,000 words of a document."""
import argparse
import re
import sys

import sources

FOLDER_LINES, LINES_OF_FOLDER, LINES_OF_ALL, WORDS = 100, 10, 5, .5
PEOPLE = "[Ww]ho|[Ww]hoever|[Nn]obody|[Ss]ome(?:body|one)|[Aa]ny(?:body|one)|[Ee]very(?:body|one)"
# Name, pattern, a sentence that the pattern finds, and a better one.
PATTERNS = [(name, re.compile(pattern), bad, good) for name, pattern, bad, good in [
    ("clause as a noun", r"\b[Ww]hat (?!if\b|to do\b)[a-z]+\b",
     "Adds what is sent to the sum.", "Adds the sent bytes to the sum."),
    ("person", rf"\b(?:{PEOPLE})\b", "Whoever waits is signalled.", "Each waiting rank is signalled."),
    ("pronoun with of", r"\b(?:[Tt]hat|[Tt]hose) of\b",
     "The heap is larger than that of a peer.", "The heap is larger than a peer's heap."),
    ("general passive", r"\b(?:is|are|was|were|be|been) (?:told|said|heard|looked at|held against|given up)\b",
     "A rank is told of the row.", "A rank is signalled after the row."),
    ("general phrase", r"\b(?:as it is|as they are|all of (?:it|them|this)|at hand|alike)\b",
     "Copies the row as it is, all of it.", "Copies the whole row without changes."),
    ("came", r"\b(?:(?:has|have|had) come|came)\b", "Waits until the row has come.", "Waits until the row has arrived."),
    ("none there", r"\b[Tt]here (?:is|are) none\b|\bis there twice\b|\bcan(?:not)? be had\b",
     "NULL: there is none.", "NULL: no peer."),
    ("sentence without a verb", r"^\s*(?:Of|By|To|From|But|Where|As) [a-z]+ (?:that|which|are|is|has)\b",
     "Of rows that arrived.", "Counts the rows that arrived."),
]]


def find_hits(line):
    """Returns the names of the patterns that a line matches; text in code quotes does not count."""
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"", "x", line)
    return [name for name, pattern, _, _ in PATTERNS if pattern.search(plain)]


def count(files):
    """Returns {folder or document: [lines or words, hits]} of comments and of documents, and all hits."""
    folders, documents, hits = {}, {}, []
    for file in files:
        where = str(file.path) if file.is_document() else "/".join(file.path.parts[:-1][:2]) or "."
        entry = (documents if file.is_document() else folders).setdefault(where, [0, 0])
        for number, line in file.english():
            entry[0] += len(re.findall(r"[A-Za-z']+", line)) if file.is_document() else line.strip() != ""
            found = find_hits(line)
            entry[1] += len(found)
            hits += [f"{file.path}:{number}: {', '.join(found)}: {line.strip()}"] if found else []
    return folders, documents, hits


def rate(entry):
    return 1000 * entry[1] / entry[0] if entry[0] else 0


def main(root, lists=False):
    folders, documents, hits = count(sources.read_tree(root))
    everything = [sum(column) for column in zip(*folders.values(), [0, 0])]
    wrong = [f"{folder}: {rate(entry):.1f} hits per 1,000 lines of comments (limit {LINES_OF_FOLDER})"
             for folder, entry in sorted(folders.items())
             if entry[0] > FOLDER_LINES and rate(entry) > LINES_OF_FOLDER]
    wrong += [f"{document}: {rate(entry):.1f} hits per 1,000 words (limit {WORDS})"
              for document, entry in sorted(documents.items()) if rate(entry) > WORDS]
    if rate(everything) > LINES_OF_ALL:
        wrong.append(f"all folders: more than {LINES_OF_ALL} hits per 1,000 lines of comments")
    for line in (hits if wrong or lists else []) + wrong:
        print(line)
    print(f"{everything[0]} lines of comments, {everything[1]} hits, {rate(everything):.1f} per 1,000; "
          f"{len(documents)} documents, {sum(entry[1] for entry in documents.values())} hits")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print all hits")
    parser.add_argument("root")
    args = parser.parse_args()
    sys.exit(main(args.root, args.list))
