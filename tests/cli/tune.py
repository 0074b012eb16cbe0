#!/usr/bin/env python3
"""tune.py EPA2A PLUGINS INNER: `epa2a tune` over an algorithm (tests/plugins/tap.c, around the plugin INNER) with options
that make it slow. The delays are long enough for any machine; nothing here depends on how long a turn takes."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

TAP = "{name: tap, plugin: %s, delay_us: 15000, also_us: 10000}"
FILE = """version: 1
ranks: 2
%s
moe: {max_tokens: 8, hidden: 256, experts: 8, topk: 2, fp8_group_size: 128}
bench: {warmup: 1, iterations: 5}
verify: {iterations: 2}
timeout: 20s
expect: {median: 1us}
"""
FASTEST = ["algorithm.also_us=0", "algorithm.delay_us=0"]


def main(epa2a, plugins, inner):
    epa2a, tap = os.path.abspath(epa2a), TAP % inner
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("x.yaml").write_text(FILE % f"algorithm: {tap}")

        def run(*args, code=0, command="tune"):
            done = subprocess.run([epa2a, command, *args, "--plugin-path", plugins], capture_output=True, text=True,
                                  check=False)
            assert done.returncode == code, (args, done)
            return done

        def tune(*args, code=0, file="x.yaml"):
            usual = {"--keys": "algorithm.*", "--budget": "600s"}
            more = [word for pair in usual.items() if pair[0] not in args for word in pair]
            done = run(file, "--json", "x.json", "--force", *more, *args, code=code)
            return json.loads(pathlib.Path("x.json").read_text()), done

        def interrupt(last, times, *args):
            """Sends SIGINT when the progress line has shown `last` for the time number `times`."""
            job = subprocess.Popen([epa2a, "tune", "x.yaml", "--plugin-path", plugins, "--json", "x.json", "--force",
                                    "--budget", "600s", "--progress", "always", *args], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
            seen = b""
            while seen.count(last.encode()) < times:
                byte = job.stderr.read1()
                assert byte, seen
                seen += byte
            job.send_signal(signal.SIGINT)
            printed = job.communicate()[0].decode()
            assert job.returncode == 130, (job.returncode, printed)
            return printed

        # tune finds the fastest settings, alone and together; settings with wrong results or other
        # delivered rows are not taken.
        found, done = tune("--out", "best.yaml")
        assert found["best"]["set"] == FASTEST and found["better"] and found["in_turns"]["high"] < 0.9, found
        settings = {" ".join(s["set"]): s for s in found["settings"]}
        assert found["settings"][0]["estimate"] == 1, found["settings"][0]  # ratio to itself
        assert settings["algorithm.wrong=true"]["outcome"].startswith("bench: rank "), settings
        assert settings["algorithm.wrong=true"]["rounds"] == 0, settings
        assert settings["algorithm.delay_us=30000"]["outcome"].startswith("dropped, "), settings
        assert 0 < settings["algorithm.delay_us=0"]["ratio"] < settings["algorithm.delay_us=5000"]["ratio"] < 1, settings
        (other,) = found["not_tried"]
        assert other["setting"] == "algorithm.fp8_rows=true" and "rows" in other["why"], other
        assert "# best: algorithm.also_us=0 algorithm.delay_us=0: 0." in done.stdout and done.stderr == "", done

        # The written experiment runs unchanged, and contains the expectations of the file and the
        # reason of the choice.
        text = pathlib.Path("best.yaml").read_text()
        assert text.startswith("# Tuned by epa2a ") and "rounds of A B or B A" in text and "1us" in text, text
        shown = run("show", "best.yaml", command="config").stdout
        assert "\n  delay_us: 0\n" in shown and "\n  also_us: 0\n" in shown, shown
        assert "iterations: 5\n" in shown, shown
        run("best.yaml", command="verify")
        assert "--force" in run("x.yaml", "--out", "best.yaml", code=2).stderr

        # An interrupted tune prints and keeps its results, and does not change the file of --out.
        pathlib.Path("kept.yaml").write_text("old")
        printed = interrupt("turn 7:", 1, "--keys", "algorithm.also_us", "--out", "kept.yaml")
        assert "interrupted; best so far" in printed, printed
        found = json.loads(pathlib.Path("x.json").read_text())
        assert found["interrupted"] and found["turns"] >= 7 and not found["better"], found
        assert found["best"]["set"] == [] or found["best"]["set"][0].startswith("algorithm.also_us="), found["best"]
        assert pathlib.Path("kept.yaml").read_text() == "old"
        for gone in ("--out-dir", "--resume"):
            assert gone in run("x.yaml", gone, *["d"][:gone == "--out-dir"], code=2).stderr

        # A budget of a few turns gives no verdict.
        found, done = tune("--budget", "1s")
        assert not found["better"] and "not reached: the budget is spent" in done.stdout, (found, done)

        # Over algorithms: by name, and as runs of the file, which must have one task.
        found, _ = tune("--algorithms", "token_flag,alltoallv", "--keys", "none", "--out", "best.yaml")
        assert found["best"]["setting"] == "token_flag" and found["better"], found
        assert [s["outcome"][:8] for s in found["settings"] if s["setting"] == "alltoallv"] in ([], ["bench: r"]), found
        assert "name: token_flag" in pathlib.Path("best.yaml").read_text()
        pathlib.Path("x.yaml").write_text(FILE % f"runs: {{slow: {{algorithm: {tap}}}, fast: {{algorithm: token_flag}}}}")
        assert [s["setting"] for s in tune("--keys", "none", "--budget", "1s")[0]["settings"]][1:] == ["fast"]
        # Runs with several tasks are searched by task; one table, one document and one file
        # contain a run for each.
        found, done = tune("--set", "matrix.moe.topk=[1, 2]", "--keys", "none", "--budget", "600s", "--out", "tasks.yaml")
        assert [task["task"] for task in found["tasks"]] == ["slow moe.topk=1", "slow moe.topk=2"], found
        assert all(task["better"] and task["best"]["setting"].startswith("fast") for task in found["tasks"]), found
        assert done.stdout.count(" fast moe.topk=") == 2 and done.stdout.count("# run") == 1, done.stdout
        labels = run("tasks.yaml", "--dry-run", command="bench").stdout
        assert labels.split("\n")[0].endswith("  slow moe.topk=1") and labels.count("\n") == 2, labels
        assert run("tasks.yaml", "--only", "*=2", command="verify").stdout.count("algorithm: token_flag") == 1
        # An interrupt during the second task keeps the first.
        printed = interrupt("turn 5:", 2, "--set", "matrix.moe.topk=[1, 2]", "--keys", "none", "--out", "tasks.yaml")
        found = json.loads(pathlib.Path("x.json").read_text())
        assert found["interrupted"] and [task["better"] for task in found["tasks"]] == [True, False], found
        text = pathlib.Path("tasks.yaml").read_text()
        assert "# 1 of 2 tasks: " in text and '"slow moe.topk=1":' in text and "topk=2" not in text, text
        assert run("tasks.yaml", command="verify").stdout.count("algorithm: token_flag") == 1
        # Repetitions, seeds, names and lengths of runs are not settings; settings that differ only
        # in these are tried once.
        more = ("repeat=3", "matrix.seed=[1, 2]", "matrix.bench.iterations=[4, 5]", "matrix.timeout=[20s, 21s]",
                "matrix.verify.order=[lockstep, pipelined]", "matrix.expect.median=[1us, 2us]", "matrix.name=[x, y]")
        sets = [word for one in more for word in ("--set", one)]
        found, _ = tune("--only", "*slow*", "--keys", "none", "--budget", "1s", *sets)
        assert [s["set"] for s in found["settings"]] == [[]], found["settings"]
        assert len(found["not_tried"]) == 2 ** 6 - 1 and all("same settings as" in x["why"] for x in found["not_tried"])
        found, _ = tune("--keys", "none", "--budget", "1s", "--set", "repeat=2", "--set", "matrix.seed=[1, 2]")
        assert [s["setting"] for s in found["settings"]][1:] == ["fast seed=1"], found["settings"]
        # The settings of the file stay if none is faster, and must give correct results.
        found, done = tune("--only", "slow", "--set", "algorithm.delay_us=0", "--set", "algorithm.also_us=0",
                           "--out", "best.yaml")
        assert "not reached" not in done.stdout, done.stdout  # drawn after all values were known
        assert not found["better"] and pathlib.Path("best.yaml").read_text().startswith("# Unchanged"), found
        assert "settings fail: verify: rank" in tune("--only", "slow", "--set", "algorithm.wrong=true", code=1)[1].stderr
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
