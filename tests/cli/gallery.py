#!/usr/bin/env python3
"""gallery.py SOURCE: configs/README.md has a row for each experiment of configs, and each row has its file."""
import pathlib
import re
import sys


def main(source):
    configs = pathlib.Path(source, "configs")
    rows = []
    for line in (configs / "README.md").read_text("utf-8").splitlines():
        if not line.startswith("| ["):
            continue
        row = re.fullmatch(r"\| \[([\w.-]+)\]\(([\w.-]+)\) \| ([^|]+) \| ([^|]{15,}) \|", line)
        assert row, f"not a row of file, needs, shows: {line}"
        assert row[1] == row[2], f"a name and its link differ: {line}"
        rows.append(row[1])
    files = {path.name for path in configs.iterdir() if path.suffix in (".yaml", ".yml")}
    assert len(rows) == len(set(rows)), f"twice: {sorted(name for name in rows if rows.count(name) > 1)}"
    assert files - set(rows) == set(), f"no row in configs/README.md: {sorted(files - set(rows))}"
    assert set(rows) - files == set(), f"no file in configs: {sorted(set(rows) - files)}"
    features = re.findall(r"^\| \[[^|]*\|[^|]*\| ([^|]+) \|$", (configs / "README.md").read_text("utf-8"), re.M)
    assert len(set(features)) == len(rows), f"one text for two files: {sorted(features)}"
    print(f"{len(rows)} experiments")


if __name__ == "__main__":
    main(*sys.argv[1:])
