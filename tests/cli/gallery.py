#!/usr/bin/env python3
"""gallery.py SOURCE: configs/README.md has a row for each experiment of configs, and each row has its file. Where a file states
that each step adds to the previous steps, it does."""
import pathlib
import re
import sys


def steps_add_up(path):
    """Checks that the runs of a file form one chain of `from`, which runs with other options follow."""
    text = path.read_text("utf-8")
    runs = re.findall(r"^  ([^\s#][^:]*):(?: \{(?:from: ('[^']*'|[^,}]*))?|$)", text.partition("\nruns:\n")[2], re.M)
    base = {name.strip("'"): before.strip("'") for name, before in runs}
    assert len(base) > 4, f"{path.name}: the runs are {runs}"
    chains = []
    for name in base:
        chain = [name]
        while base.get(chain[0]):
            chain.insert(0, base[chain[0]])
        chains.append(chain)
    chain = max(chains, key=len)
    assert list(base)[:len(chain)] == chain, f"{path.name}: a later step lacks a step before it: {list(base)}, but {chain}"


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
    adding = [path for path in configs.glob("*.yaml") if re.search(r"each\s+(#\s+)?added to\s+(#\s+)?the\s+(#\s+)?previous", path.read_text("utf-8"))]
    assert len(adding) >= 3, adding
    for path in adding:
        steps_add_up(path)
    print(f"{len(rows)} experiments")


if __name__ == "__main__":
    main(*sys.argv[1:])
