#!/usr/bin/env python3
"""exports.py EPA2A CONFIGS: what programs of others read, JUnit XML, OpenMetrics, a page for a browser, CSV, Markdown and the
list of plugins as JSON, against the results of the same command; labels have what means something to a form."""
import csv
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

RUNS = """include: %s
runs:
  'good <&">, | \\ \u00e9': {}
  slow: {expect: {median: 1ns}}
  "absent |\\e": {algorithm: alltoallv}
  wrong: {fault: {kind: kill, rank: 1, stage: dispatch, iteration: 1}}
"""
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)')


def metrics(text):
    """{(name, labels): value}, as the text format has it: families in one piece, each sample once, # EOF last."""
    lines, found, family, seen = text.split("\n"), {}, None, set()
    assert lines[-2:] == ["# EOF", ""], lines[-2:]
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert family not in seen, line
            seen.add(family)
        elif line.startswith("# "):
            assert line.split()[1] in ("HELP", "UNIT") and line.split()[2] == family, line
            assert line.split()[1] == "HELP" or family.endswith(line.split()[3]), line
        else:
            name, inside, value = re.fullmatch(r"([a-z0-9_]+)\{(.*)\} (\S+)", line).groups()
            assert name in (family, f"{family}_count", f"{family}_sum"), line
            assert LABEL.sub("", inside) == "", line
            key = name, tuple((k, re.sub(r"\\(.)", r"\1", v)) for k, v, _ in LABEL.findall(inside))
            assert key not in found, line
            found[key] = float(value)
    return found


class Page(html.parser.HTMLParser):
    """Counts elements and gathers text; ids are unique, and references lead to them and to nothing outside."""

    def __init__(self, text):
        super().__init__()
        self.n, self.text, self.ids, self.names, self.references = {}, [], [], [], set()
        self.feed(text)
        assert len(set(self.ids)) == len(self.ids), sorted(self.ids)
        assert self.references <= set(self.ids), self.references - set(self.ids)

    def handle_starttag(self, tag, attrs):
        self.n[tag] = self.n.get(tag, 0) + 1
        for key, value in attrs:
            assert key not in ("src", "href", "xlink:href") or value.startswith(("#", "data:image/svg+xml;base64,")), (tag, key, value)
            if key == "id":
                self.ids.append(value)
            elif key in ("href", "xlink:href"):
                self.references.add(value[1:])
            elif key == "data-name":
                self.names.append(value)

    def handle_data(self, data):
        self.text.append(data)


def can_write_pages(epa2a, small):
    """Returns True if Python has the packages of a page. Otherwise the program names the remedy before a run."""
    done = subprocess.run([epa2a, "bench", small, "--dry-run", "--html", "x.html"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3) and not os.path.exists("x.html"), done
    if done.returncode == 3:
        assert done.stdout == "" and re.search("packages? .*: .*install ", done.stderr), done
        print("not tried: --html:", done.stderr.strip())
    return done.returncode == 0


def check_refusals(epa2a, small):
    """Without Python or its packages no run begins, and one line names the remedy."""
    bare = pathlib.Path("bare")
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    for python, words in ("./none", "apt-get install python3"), ("./bare", "needs the packages numpy, pandas, scipy, jinja2, matplotlib, which "):
        done = subprocess.run([epa2a, "bench", small, "--html", "none.html"], capture_output=True, text=True, check=False,
                              env={**os.environ, "EPA2A_PYTHON": python})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1) and words in done.stderr, done
        assert not os.path.exists("none.html")


def main(epa2a, configs):
    epa2a, small = os.path.abspath(epa2a), f"{os.path.abspath(configs)}/small.yaml"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        path = pathlib.Path("x.yaml")
        path.write_text(RUNS % small, encoding="utf-8")

        def run(*args, code=0):
            done = subprocess.run([epa2a, *args], capture_output=True, text=True, check=False)
            assert done.returncode == code, (args, done)
            return done.stdout

        check_refusals(epa2a, small)
        html = ["--html", "x.html"] if can_write_pages(epa2a, small) else []
        run("bench", "x.yaml", "-n", "1200", "--timeout", "30s", "--json", "x.json", "--junit", "x.xml", *html, "--openmetrics", "x.txt", "--csv", "x.csv", "--markdown", "x.md", "--quiet", code=1)
        results = {r["label"]: r for r in json.loads(path.with_suffix(".json").read_text())["results"]}
        good = results['good <&">, | \\ \u00e9']
        suite = xml.parse("x.xml").getroot()
        counts = {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
        assert suite.tag == "testsuites" and counts.items() <= suite.attrib.items(), suite.attrib
        assert counts.items() <= suite[0].attrib.items() and suite[0].attrib["name"] == "x.yaml", suite[0].attrib
        cases = {case.attrib["name"]: case for case in suite[0]}
        assert abs(float(cases[good["label"]].attrib["time"]) - good["elapsed_s"]) < 0.001, cases.keys()
        assert [[child.tag for child in case] for case in cases.values()] == [[], ["failure"], ["skipped"], ["error"]]
        (why_absent,) = [child.attrib["message"] for case in cases.values() for child in case if child.tag == "skipped"]
        assert cases["wrong"][0].attrib["type"] == "died" and "rank 1" in cases["wrong"][0].attrib["message"]
        found = metrics(path.with_suffix(".txt").read_text(encoding="utf-8"))
        mine = {(name, dict(labels).get("stage"), dict(labels).get("quantile") or dict(labels).get("rate")): value
                for (name, labels), value in found.items() if dict(labels)["run"] == good["label"]}
        for stage in good["stages"]:
            for quantile, key in (("0", "min"), ("0.5", "median"), ("0.95", "p95"), ("0.99", "p99"), ("0.999", "p999"), ("1", "max")):
                value = mine["epa2a_stage_seconds", stage["name"], quantile]
                assert abs(value * 1e9 - stage["ns"][key]) <= 1e-6 * stage["ns"][key], (stage["name"], quantile)
            for rate in ("goodput", "wire", "bottleneck"):
                value = mine["epa2a_stage_rate_bytes_per_second", stage["name"], rate]
                assert abs(value / 1e9 - stage["rate"][rate]) <= 1e-6 * value, (stage["name"], rate)
            assert mine["epa2a_stage_seconds_count", stage["name"], None] == stage["ns"]["n"]
        assert mine["epa2a_run_exit_code", None, None] == 0 and mine["epa2a_verify_wrong_elements", None, None] == 0
        begin = f'| good \\<&"\\>, \\| \\\\ \u00e9 | {good["id"]} | '
        lines = pathlib.Path("x.md").read_text(encoding="utf-8").splitlines()
        assert any(line.startswith(begin) and line.endswith(" | ok |") for line in lines), lines
        rows = {row["label"]: row for row in csv.DictReader(open("x.csv", encoding="utf-8"))}
        row, wrong = rows[good["label"]], rows["wrong"]
        assert (wrong["end"], wrong["status"]) == ("failed", "died") and wrong["error"] == results["wrong"]["error"]["text"], wrong
        for stage in good["stages"]:  # a column for each figure and each key
            assert abs(float(row[f"{stage['name']}.p99_us"]) * 1e3 - stage["ns"]["p99"]) <= 1e-5 * stage["ns"]["p99"], row
            assert abs(float(row[f"{stage['name']}.wire_gb_s"]) / stage["rate"]["wire"] - 1) <= 1e-5, row
        assert (row["moe.hidden"], row["algorithm.name"], row["bench.barrier"]) == ("256", "ll_v2", "true"), row
        if html:
            page = Page(path.with_suffix(".html").read_text(encoding="utf-8"))
            text = "".join(page.text)
            assert good["label"] in text and good["machine"]["cpu"] in text and why_absent in text, text
            assert f"{good['stages'][-1]['ns']['median'] / 1e3:.2f}" in text and "p999 [us]" in text, text
            assert page.n["table"] == 2 + sum(bool(r["stages"]) for r in results.values()), page.n  # best, runs, figures of each run
            assert page.n.get("script") is None and page.n["img"] == 3, page.n
            run("verify", "x.yaml", "--only", "good*", "--html", "v.html", "--junit", "v.xml")
            assert {"iterations", "elements", "wrong"} <= set(Page(pathlib.Path("v.html").read_text(encoding="utf-8")).names)
            run("bench", "x.yaml", "--only", "good*", *html, code=2)  # the file exists already
        shapes = run("bench", small, "--set", "matrix={moe.max_tokens: [4, 8], algorithm.name: [ll_v2, ll_v1]}", "-n", "9",
                     "--timeout", "30s", "--markdown", "shapes.md")
        page = pathlib.Path("shapes.md").read_text(encoding="utf-8").replace("\\", "")
        table, shown = (" ".join(text.split()) for text in (shapes.replace("#", " "), page))
        for times in "totals", "mean totals":
            means = re.search(f"geometric means of {times} over 2 shapes: ll_v2 [0-9.]+ us, ll_v1 [0-9.]+ us", table)
            assert means is not None and means[0][1:] in shown, (times, shapes, page)

        plugins = json.loads(run("list", "--json", "-"))["plugins"]
        assert {p["kind"] for p in plugins} == {"backend", "launcher", "transport", "algorithm"}, plugins
        (shm,) = [p for p in plugins if p["name"] == "shm"]
        assert "loads and stores" in shm["gives"] and shm["memory"] == ["host memory"] and shm["why_not"] is None, shm
        text = run("list", "transport", "--json", "l.json")
        only = json.loads(pathlib.Path("l.json").read_text())["plugins"]
        assert [p["name"] for p in only] == [p["name"] for p in plugins if p["kind"] == "transport"], only
        flat = " ".join(text.split())  # long lines are wrapped
        assert all(p["summary"] in flat for p in only), text
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
