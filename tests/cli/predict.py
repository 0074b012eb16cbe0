#!/usr/bin/env python3
"""predict.py EPA2A CONFIGS: compares `epa2a predict` with measurements of worlds that run here, and checks
predictions of worlds that cannot run. No check depends on absolute times."""
import csv
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

LINK = "1GB/s,3us"
HIDDEN = 4096


def main(epa2a, configs):
    epa2a, configs = os.path.abspath(epa2a), os.path.abspath(configs)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)

        def run(*args, code=0, command="predict", file="small"):
            done = subprocess.run([epa2a, command, f"{configs}/{file}.yaml", *args], capture_output=True, text=True, check=False)
            assert done.returncode == code, (args, done)
            return done

        lacks = subprocess.run([epa2a, "predict", f"{configs}/small.yaml", "--sweep", "ranks=2:4", "--out", "x.txt"], capture_output=True,
                               text=True, check=False)
        if lacks.returncode == 3:
            print("skipped:", lacks.stderr)
            return 77

        def predict(*args, file="small"):
            done = run("--json", "x.json", "--force", *args, file=file)
            found = json.loads(pathlib.Path("x.json").read_text())
            for world in found["worlds"]:
                if "why" in world:
                    continue
                total, stages = world["total"], world["stages"]
                assert abs(total["ns"] - sum(stage["ns"] for stage in stages)) <= len(stages), world
                for stage in stages:
                    longest = max(stage["local_ns"], stage["bytes_ns"], stage["messages_ns"])
                    assert abs(stage["ns"] - longest - stage["latency_ns"]) <= 2, stage
                    assert stage["low_ns"] <= stage["ns"] <= stage["high_ns"], stage
                    assert stage["high_ns"] >= 2 * stage["latency_ns"], stage  # two messages in a row
                    assert (stage["bytes_ns"] > 0) == (world["nodes"] > 1), stage
                    # The traffic of each stage, from which other programs predict.
                    assert stage["choices"] >= stage["rows"] > 0 and stage["node_bytes"] >= stage["rank_bytes"], stage
                    assert stage["link_bytes"] in (0, round(stage["rank_bytes"]), round(stage["node_bytes"])), stage
            return found, done.stdout

        # A measured world is within the printed error; the output names the measured runs and the
        # bound.
        found, text = predict("--set", "ranks=4", "--check")
        (total,) = [row for row in found["check"] if row["name"] == "total"]
        assert abs(math.log(total["ratio"])) <= math.log(1 + found["error"]["part"]) + 0.01, (total, found["error"])
        assert {row["ranks"] for row in found["measured"]} == {2, 4, 8}, found["measured"]
        assert text.startswith("# 4 ranks, one node: ") and "by local copy" in text and "# check: total: " in text, text
        # A world outside the fit is measured as well, and results of other machines appear beside
        # it.
        wide = ("--set", "ranks=16", "--set", "moe.experts=16")
        run("-n", "5", "--json", "r.json", "--timeout", "30s", *wide, command="bench")
        result = json.loads(pathlib.Path("r.json").read_text())
        found, _ = predict("--check", "--measured", "r.json", *wide)
        assert [row["fitted"] for row in found["measured"] if row["ranks"] == 16] == [False], found["measured"]
        assert [row["name"] for row in found["check"]] == ["dispatch", "combine", "total"] * 2, found["check"]
        there = [row["measured_ns"] for row in found["check"][3:]]
        assert there == [stage["ns"]["median"] for stage in result["results"][0]["stages"]], found["check"]

        # Worlds larger than this machine: their bytes, memory and bounds, as text, JSON, CSV and a
        # chart.
        sweep = ("--set", "moe.experts=256", "--set", f"moe.hidden={HIDDEN}", "--set", "ranks_per_node=4", "--link", LINK,
                 "--sweep", "ranks=2:512", "--csv", "x.csv", "--markdown", "x.md", "--out", "y.txt")
        found, text = predict(*sweep)
        worlds = {world["ranks"]: world for world in found["worlds"]}
        assert list(worlds) == [2, 4, 8, 16, 32, 64, 128, 256, 512] and worlds[256]["nodes"] == 64, worlds.keys()
        assert worlds[512]["why"].startswith("rejected: moe.experts (256)"), worlds[512]
        assert "256 ranks, 64 nodes of 4: " in text.splitlines()[0] and "# 512 ranks: rejected: " in text, text
        assert "512 are rejected" in found["scales"]["text"] or "times as long" in found["scales"]["text"], found["scales"]
        sent = [worlds[ranks]["total"]["link_bytes"] for ranks in (4, 8, 32, 256)]
        assert sent == sorted(sent) and sent[0] == 0 and worlds[256]["planned_ranks"] == 64, worlds[256]
        for world in (worlds[8], worlds[256]):  # 16 tokens to 4 experts, bytes there and twice as many back
            most = 16 * 4 * HIDDEN * 3 * (1 - 4 / world["ranks"])
            assert 0.9 * most < world["total"]["link_bytes"] < 2 * most, (most, world)
            assert all(abs(s["bytes_ns"] - s["link_bytes"]) <= 1 for s in world["stages"]), world  # 1 GB/s
        rows = list(csv.DictReader(open("x.csv", encoding="utf-8")))
        assert [(row["ranks"], row["stage"]) for row in rows[:3]] == [("2", "dispatch"), ("2", "combine"), ("2", "total")]
        assert len(rows) == 3 * 8 + 1 and rows[-1]["refused"].startswith("rejected: "), rows[-1]
        assert float(rows[2]["ns"]) == worlds[2]["total"]["ns"], rows[2]
        assert pathlib.Path("x.md").read_text().count("\n| ") >= 9
        # With dedup there are fewer rows than choices, and the fit separates the costs of both.
        found, _ = predict("--set", "algorithm.dedup=true", "--set", "moe.experts=64", "--set", "moe.topk=8",
                           "--set", "ranks=8")
        assert {row["topk"] for row in found["measured"]} == {2, 8}, found["measured"]
        assert all(row["stages"][0]["rows"] < row["stages"][0]["choices"] for row in found["measured"] if row["topk"] == 8)
        found, _ = predict("--set", "ranks=8", "--set", "ranks_per_node=2", "--link", "100GB/s,1ms,10us,node",
                           file="allgather-shm")
        (stage,) = found["worlds"][0]["stages"]
        assert stage["link_bytes"] >= 128 * 14336 * 6 * 2 and stage["messages_ns"] == 128 * 6 * 10000, stage
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
