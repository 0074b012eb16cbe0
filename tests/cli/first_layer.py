#!/usr/bin/env python3
"""first_layer.py EPA2A SOURCE: every command of docs/first-layer.md prints the lines that the page shows below it, and the
page's table has the choices of its routing file."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def check_commands(epa2a, source, page):
    commands = 0
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "epa2a").symlink_to(os.path.abspath(epa2a))
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        for block in re.findall(r"^```console\n(.*?)^```", page, re.M | re.S):
            command, _, shown = block.removeprefix("$ ").partition("\n")
            done = subprocess.run(["/bin/sh", "-c", command], cwd=source, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (command, done)
            assert not shown or done.stdout == shown, f"{command}\nshown:\n{shown}printed:\n{done.stdout}"
            commands += 1
    return commands


def check_table(source, page):
    rows = re.findall(r"^\| t(\d) \| rank (\d) \| (\d), (\d) \| ([\d.]+), ([\d.]+) \| rank (\d), rank (\d) \|$", page, re.M)
    tokens = [json.loads(line) for line in pathlib.Path(source, "configs/first-layer.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == len(tokens) == 8, rows
    for i, (row, token) in enumerate(zip(rows, tokens)):
        number, rank, *ids, w0, w1, to0, to1 = row
        assert (int(number), int(rank)) == (i, i // 2), row
        assert [int(e) for e in ids] == token["topk_ids"] and [float(w0), float(w1)] == token["topk_weights"], (row, token)
        assert [int(to0), int(to1)] == [e // 2 for e in token["topk_ids"]], row
    stay = sum(e // 2 == i // 2 for i, token in enumerate(tokens) for e in token["topk_ids"])
    assert stay == 3 and "The other 13 rows travel" in page


def main(epa2a, source):
    page = pathlib.Path(source, "docs/first-layer.md").read_text("utf-8")
    check_table(source, page)
    print(f"{check_commands(epa2a, source, page)} commands")


if __name__ == "__main__":
    main(*sys.argv[1:])
