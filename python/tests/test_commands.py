"""python -m epa2a: options, errors and files."""

import json
import re
import subprocess
import sys

import pytest

import made
import test_predict


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--kind", "pie"], "invalid choice"),
        (["--only", "nothing"], "--only 'nothing'"),
        (["--stage", "nothing"], "stage nothing"),
        (["-o", "chart.bmp"], ".svg"),
        (["--baseline", "a"], "--kind ratio"),
        (["--kind", "distribution", "-o", "r.json"], "r.json: a chart is"),
    ],
)
def test_bad_commands_end_with_2_and_a_reason(tmp_path, options, reason):
    made.write(tmp_path / "r.json", *made.batch(2, 1))
    done = subprocess.run([sys.executable, "-m", "epa2a", "plot", "r.json", *options], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr


def test_a_check_needs_no_results_and_auto_is_the_default(tmp_path):
    made.write(tmp_path / "r.json", *made.batch(2, 1))
    assert command(tmp_path, "plot", "--check", "-o", "c.pdf") == ("", "") and not (tmp_path / "c.pdf").exists()
    _, stderr = command(tmp_path, "plot", code=2)
    assert "RESULTS" in stderr
    assert command(tmp_path, "plot", "r.json", "--kind", "auto") == command(tmp_path, "plot", "r.json")


def test_a_prediction_is_drawn(tmp_path):
    time = {"name": "total", "ns": 5000, "low_ns": None, "high_ns": 6000}
    worlds = [{"ranks": ranks, "stages": [time], "total": time} for ranks in (2, 4)] + [{"ranks": 8, "why": "too many"}]
    document = {"schema": 1, "program": "epa2a", "file": "x.yaml", "worlds": worlds}
    (tmp_path / "p.json").write_text(json.dumps(document))
    stdout, _ = command(tmp_path, "plot", "p.json")
    assert stdout.startswith("Predicted: x.yaml") and re.search(r"^ *4 +5 +nan +6$", stdout, re.M), stdout
    command(tmp_path, "plot", "p.json", "-o", "p.svg")
    assert "only plot draws predictions" in command(tmp_path, "report", "p.json", code=2)[1]
    worlds[0]["total"] = {"name": "total", "ns": "5"}
    (tmp_path / "p.json").write_text(json.dumps(document))
    assert "worlds[0].total.ns should be a number" in command(tmp_path, "plot", "p.json", code=2)[1]


def test_files_are_overwritten_only_with_force(tmp_path):
    made.write(tmp_path / "r.json", *made.batch(2, 1))
    command = [sys.executable, "-m", "epa2a", "plot", "r.json", "-o", "c.txt"]
    codes = [subprocess.run(command + more, cwd=tmp_path, capture_output=True, check=False).returncode
             for more in ([], [], ["--force"])]  # fmt: skip
    assert codes == [0, 2, 0] and "Latency over tokens" in (tmp_path / "c.txt").read_text()


def command(tmp_path, *arguments, code=0):
    """Runs python -m epa2a; returns standard output and standard error."""
    done = subprocess.run([sys.executable, "-m", "epa2a", *map(str, arguments)], cwd=tmp_path, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == code and "Traceback" not in done.stderr, done
    return done.stdout, done.stderr


def test_a_page_and_its_failed_runs_are_reported(tmp_path):
    dead = made.run("dead", 1, status="died")
    made.write(tmp_path / "r.json", *made.batch(2, 2), dead)
    _, stderr = command(tmp_path, "report", "r.json", "-o", "r.html", "--title", "Nightly")
    assert "warning: r.json: 'dead' ended with status died and is left out" in stderr
    assert "<title>Nightly</title>" in (tmp_path / "r.html").read_text()
    command(tmp_path, "report", "r.json", "-o", "r.html", code=2)
    assert command(tmp_path, "report", "r.json")[0].startswith("<!doctype html>")


def test_imported_logs_are_plotted(tmp_path):
    (tmp_path / "log").write_text("[rank 0] Native dispatch + combine: 2.0 GB/s, avg_t=140.00 us, min_t=1.00 us, max_t=150.00 us\n"
                                  "[rank 1] Native dispatch + combine: 2.0 GB/s, avg_t=x us, min_t=1.00 us, max_t=150.00 us\n")  # fmt: skip
    stdout, stderr = command(tmp_path, "import", "log", "--set", "moe.max_tokens=128", "--json", "r.json")
    assert "mooncake_native" in stdout and "140.00" in stdout and "log:2:" in stderr and "1 line was left out" in stderr
    assert "imported from another program" in command(tmp_path, "plot", "r.json", "--kind", "tokens")[0]
    assert json.loads(command(tmp_path, "import", "log", "--json", "-")[0])["program"] == "epa2a"
    (tmp_path / "response.json").write_text(json.dumps({"choices": [{"routed_experts": [[[1, 2]], [[3, 4]]]}]}))
    assert command(tmp_path, "import", "response.json", "--routing", "r.jsonl")[0] == "r.jsonl: 2 tokens\n"
    command(tmp_path, "import", "response.json", "--routing", "r.txt", code=2)
    command(tmp_path, "import", "nowhere", code=3)


def test_a_prediction_is_measured_once_and_repeated_with_another_link(tmp_path):
    (tmp_path / "x.yaml").write_text("version: 1\nmoe: {hidden: 256, experts: 8, topk: 2, max_tokens: 8, fp8_group_size: 128}\n")
    stdout, _ = command(tmp_path, "predict", "x.yaml", "--program", made.program(), "--set", "ranks_per_node=2",
                        "--link", "5GB/s,2us", "--sweep", "ranks=2:8", "--json", "p.json", "-o", "p.svg")  # fmt: skip
    assert "8 ranks, 4 nodes of 2" in stdout and (tmp_path / "p.svg").exists()
    test_predict.validate(json.loads((tmp_path / "p.json").read_text()))
    stdout, _ = command(tmp_path, "predict", "p.json", "--link", "1GB/s,1s", "--json", "-")
    slow = json.loads(stdout)
    assert slow["link"]["latency_ns"] == 10**9 and slow["worlds"][2]["total"]["bound"] == "link latency"
    _, stderr = command(tmp_path, "predict", "p.json", "--link", "1", code=2)
    assert "--link 1" in stderr


def test_predictions_are_refused_before_a_measurement(tmp_path):
    (tmp_path / "old.csv").write_text("old")
    refused = {("--csv", "old.csv"): "--force overwrites it", ("--json", "no/p.json"): "--json no/p.json: No such file",
               ("--markdown", "."): "that is a folder", ("--out", "c.svg"): "--sweep", ("--out", "c.bmp", "--sweep", "ranks=2:4"): ".svg",
               ("--check", "--sweep", "ranks=2:4"): "--sweep has several", ("--cores", "0"): "1 or more"}  # fmt: skip
    for options, reason in refused.items():
        _, stderr = command(tmp_path, "predict", "nowhere.yaml", "--program", made.program(), *options, code=2)
        assert reason in stderr and "nowhere" not in stderr, (options, stderr)
    assert (tmp_path / "old.csv").read_text() == "old"


def test_a_missing_package_is_named(tmp_path):
    """Without matplotlib the command names the package and its installation."""
    made.write(tmp_path / "r.json", *made.batch(1, 1))
    code = ("import sys; sys.modules['plotille'] = None; sys.argv = ['epa2a', 'plot', 'r.json']; "
            "import runpy; runpy.run_module('epa2a', run_name='__main__')")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "plotille" in done.stderr and "pip install" in done.stderr, done


def test_a_closed_pipe_ends_without_a_traceback(tmp_path):
    made.write(tmp_path / "r.json", *made.batch(8, 1))
    done = subprocess.run(f"{sys.executable} -m epa2a report r.json | head -c 10", shell=True, cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout == "<!doctype " and "Traceback" not in done.stderr
