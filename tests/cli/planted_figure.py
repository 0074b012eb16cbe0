#!/usr/bin/env python3
"""planted_figure.py PROGRAM CONFIG: PROGRAM is epa2a with one more row in the table of figures, "ns.planted". That row
alone adds the figure to JSON, its schema, CSV, OpenMetrics, the table of bench, the page of --html, best, compare and
completion. `best` and `compare` respect the direction of a figure."""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

PROGRAM, CONFIG = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:])
failures = []


def expect(what, have, want):
    if have != want:
        failures.append(f"{what}: {have!r}, expected {want!r}")


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    expect(f"exit code of {words} ({done.stderr.strip()})", done.returncode, code)
    return done.stdout


def scale(document, path, factor):
    """Returns the results with a figure of each total multiplied."""
    document = copy.deepcopy(document)
    *folders, key = path.split(".")
    for result in document["results"]:
        at = result["stages"][-1]
        for folder in folders:
            at = at[folder]
        at[key] = (round if isinstance(at[key], int) else float)(at[key] * factor)
    return document


def check_outputs(work):
    html = ["--html", work / "a.html"]
    if subprocess.run([PROGRAM, "bench", CONFIG, "--dry-run", *html], capture_output=True, check=False).returncode == 3:
        html = []  # Python lacks the packages of a page
    table = run("bench", CONFIG, "-n", 30, "--set", "repeat=6", "--json", work / "a", "--csv", work / "a.csv", "--openmetrics", work / "a.om",
                *html)
    document = json.loads((work / "a").read_text("utf-8"))
    for result in document["results"]:
        for stage in result["stages"]:
            expect("JSON", stage["ns"]["planted"], stage["ns"]["mad"])
    expect("table", [line.count(" planted") for line in table.splitlines() if " median " in line and " goodput " in line], [1] * 6)
    head = (work / "a.csv").read_text("utf-8").splitlines()[0].split(",")
    expect("CSV", [name for name in head if "planted" in name], [f"{stage}.planted_us" for stage in ("dispatch", "combine", "total")])
    expect("OpenMetrics", (work / "a.om").read_text("utf-8").count('quantile="0.42"'), 18)
    if html:
        expect("page", (work / "a.html").read_text("utf-8").count('data-name="figure">planted [us]<'), 6)
    stage = json.loads(run("config", "schema", "--results"))["definitions"]["stage"]["properties"]["ns"]
    expect("schema", [stage["properties"].get("planted"), "planted" in stage["required"]], [{"$ref": "#/definitions/count_or_null"}, True])
    for command in "best", "compare":
        offered = [line.split("\t")[0] for line in run("__complete", command, "--figure", "").splitlines()]
        expect(f"completion of {command}", ["planted" in offered, "wire" in offered], [True, False])
    return document


def check_comparisons(work, document, path, worse):
    """B is worse than A by a factor of two in this figure, and has another name."""
    name = path.rsplit(".", maxsplit=1)[-1]
    other = scale(document, path, worse)
    (work / "b").write_text(json.dumps(other), "utf-8")
    row = [row for row in json.loads(run("compare", work / "a", work / "b", "--figure", name, "--json", "-", code=10))["compared"]
           if row["stage"] == "total"][0]
    expect(f"compare, {name}", [row["verdict"], row["runs_a"], round(row["ratio"], 1)], ["WORSE", 6, float(worse)])
    row = [row for row in json.loads(run("compare", work / "b", work / "a", "--figure", name, "--json", "-"))["compared"] if row["stage"] == "total"][0]
    expect(f"compare, {name}", row["verdict"], "better")
    for result in other["results"]:
        result["id"], result["run"], result["label"] = "0" * 12, "other", "other"
    (work / "c").write_text(json.dumps(other), "utf-8")
    best = json.loads(run("best", work / "a", work / "c", "--figure", name, "--json", "-"))
    runs = best["best"][0]["contests"][0]["runs"]
    values = sorted(result["stages"][-1][path] if "." not in path else result["stages"][-1][path.split(".")[0]][name] for result in document["results"])
    expect(f"best, {name}", [[run["verdict"] for run in runs], runs[1]["name"], best["figure"]], [["best", "slower"], "other", name])
    expect(f"best, {name}", round(runs[0]["value"], 3), round(values[2], 3))
    for words in (["best", work / "a"], ["compare", work / "a", work / "b"]):
        table = run(*words, "--figure", name, code=10 if words[0] == "compare" else 0)
        expect(f"{words[0]}, {name}, text", (f" {name} of " if words[0] == "best" else f" of {name},") in table, True)


def main():
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        document = check_outputs(work)
        for path, worse in (("ns.planted", 2), ("rate.goodput", 0.5)):
            # Figures of real runs vary; here the runs of a side differ by a few percent.
            for i, result in enumerate(document["results"]):
                stage = result["stages"][-1]
                stage["ns"]["planted"], stage["rate"]["goodput"] = 1000 + i, 10 + i / 100
            (work / "a").write_text(json.dumps(document), "utf-8")
            check_comparisons(work, document, path, worse)
        run("best", work / "a", "--figure", "wire", code=2)
        run("compare", work / "a", work / "a", "--figure", "mediam", code=2)
    print(*failures or ["each output has the figure"], sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
