#!/usr/bin/env python3
"""links.py SOURCE: each link in a Markdown document leads to a file, and to a heading if it names one. Lines of plugin
documents have at most 160 columns."""
import pathlib
import re
import sys

FOLDERS = ("configs", "docs", "examples", "plugins", "share", "tests")
WIDEST = 160


def lines_of(path):
    """(number, line) outside of fenced blocks"""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path):
    """Names of headings, as GitHub makes them"""
    seen = {}
    for _, line in lines_of(path):
        if re.match(r"#+ ", line):
            name = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            seen[name] = seen.get(name, -1) + 1
            yield name if seen[name] == 0 else f"{name}-{seen[name]}"


def main(source):
    source, bad, links = pathlib.Path(source), [], 0
    documents = sorted(source.glob("*.md"))
    for folder in FOLDERS:
        documents += sorted((source / folder).rglob("*.md"))
    for path in documents:
        name = path.relative_to(source)
        for number, line in lines_of(path):
            if name.parts[0] == "plugins" and len(line) > WIDEST:
                bad.append(f"{name}:{number}: {len(line)} columns, at most {WIDEST}")
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"\w+:", target):
                    continue
                file, _, heading = target.partition("#")
                there = path.parent / file if file else path
                links += 1
                if not there.exists():
                    bad.append(f"{name}:{number}: {target}: there is no {file}")
                elif heading and heading not in anchors(there):
                    bad.append(f"{name}:{number}: {target}: no heading of this name")
    assert not bad, "\n".join(bad)
    assert links > 100, f"only {links} links in {len(documents)} documents"
    print(f"{len(documents)} documents, {links} links")


if __name__ == "__main__":
    main(*sys.argv[1:])
