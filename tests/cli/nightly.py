#!/usr/bin/env python3
"""nightly.py EPA2A SOURCE PLUGINS INNER: examples/nightly.sh over nights: the first keeps, the second compares, a slower one
ends with 10, and one that fails is not kept. The slow night has delays of tests/plugins/tap.c around the plugin INNER."""
import os
import pathlib
import subprocess
import sys
import tempfile

FILE = """version: 1
ranks: 2
algorithm: {name: tap, plugin: %s, delay_us: 0, also_us: 0}
moe: {hidden: 256, experts: 8, topk: 2, fp8_group_size: 128}
matrix: {moe.max_tokens: [4, 8]}
bench: {warmup: 2, iterations: 10}
timeout: 20s
"""


def main(epa2a, source, plugins, inner):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "x.yaml").write_text(FILE % inner)
        history, trend = work / "nights/history.jsonl", work / "nights/trend.tsv"

        def night(*options, code=0):
            done = subprocess.run([f"{source}/examples/nightly.sh", work / "nights", work / "x.yaml", "--plugin-path", plugins,
                                   *options], capture_output=True, text=True, check=False,
                                  env={**os.environ, "EPA2A": os.path.abspath(epa2a)})
            assert done.returncode == code, done
            return done.stdout

        # Only a slow-down that compare reports ends with 10; the first night compares nothing.
        first = night()
        assert "against the last nights" not in first and first.count(" us ") == 2, first
        assert history.read_text().count("\n") == 10 and trend.read_text().count("\n") == 2, first
        slow = night("--set", "algorithm.delay_us=20000", code=10)
        assert "== tonight against the last nights" in slow and "SLOWER" in slow, slow
        assert history.read_text().count("\n") == 20 and trend.read_text().count("\n") == 4, slow
        labels = [line.split("\t")[1] for line in trend.read_text().splitlines()]
        assert labels == ["moe.max_tokens=4", "moe.max_tokens=8"] * 2, labels
        ratios = [float(line.split()[-1]) for line in slow[slow.index("== trend"):].splitlines() if " us " in line]
        assert len(ratios) == 4 and ratios[0] == ratios[2] == 1 and min(ratios[1], ratios[3]) > 2, slow

        kept = history.read_bytes(), trend.read_bytes()
        assert "compare" not in night("--set", "ranks=0", code=2)
        assert (history.read_bytes(), trend.read_bytes()) == kept
        assert sorted(path.name for path in (work / "nights").iterdir()) == ["history.jsonl", "lock", "trend.tsv"]
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
