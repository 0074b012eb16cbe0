#!/usr/bin/env python3
"""Charts by gnuplot: plot.py EPA2A RESULTS. SVG is XML, PNG begins as it must, both are the same
each time; what stands in results is never a command; and a gnuplot that fails leaves nothing."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

KINDS = ("tokens", "distribution", "skew", "stages")
HOSTILE = ("`touch one`'\nsystem 'touch two'\n!touch three\n\"`touch four`\" $(touch five) "
           "@x ${y} EOD \\' <b>&amp; \u00fc")
failures = []


def expect(what, have, want):
    if have != want:
        failures.append(f"{what} is {have!r}, should be {want!r}")


def plot(epa2a, *args, path=None):
    env = dict(os.environ, PATH=path) if path else None
    return subprocess.run([epa2a, "plot", *args], capture_output=True, text=True, env=env,
                          timeout=100)


def check_kinds(epa2a, results):
    for kind in KINDS:
        for end in ("svg", "png"):
            written = []
            for name in (f"{kind}.{end}", f"{kind}-2.{end}"):
                run = plot(epa2a, results, "--kind", kind, "-o", name)
                expect(f"{name}, exit code", (run.returncode, run.stderr), (0, ""))
                written.append(pathlib.Path(name).read_bytes())
            expect(f"{kind}.{end} is the same again", written[0] == written[1], True)
            if end == "png":
                expect(f"{kind}.png begins with", written[0][:8], b"\x89PNG\r\n\x1a\n")
            else:
                check_svg(f"{kind}.svg", written[0])


def texts(svg):
    root = xml.etree.ElementTree.fromstring(svg)
    expect("root", root.tag.rpartition("}")[2], "svg")
    return ["".join(at.itertext()).strip() for at in root.iter() if at.tag.endswith("}text")]


def check_svg(name, svg):
    expect(f"{name} has its caption",
           "Made Up 9000, 4 cores, on here; epa2a 0.1.0" in texts(svg), True)


def check_hostile(epa2a, results):
    document = json.loads(pathlib.Path(results).read_text("utf-8"))
    for run in document["results"]:
        run["label"] += HOSTILE
        run["machine"]["cpu"] = HOSTILE
        run["experiment"]["algorithm"]["name"] += HOSTILE
        for stage in run["stages"][:2]:
            stage["name"] += HOSTILE
    pathlib.Path("hostile.json").write_text(json.dumps(document), "utf-8")
    for kind in KINDS:
        run = plot(epa2a, "hostile.json", "--kind", kind, "-o", f"hostile-{kind}.svg")
        expect(f"hostile {kind}", (run.returncode, run.stderr), (0, ""))
        check = texts(pathlib.Path(f"hostile-{kind}.svg").read_bytes())
        expect(f"hostile {kind} is shown", any("touch one" in text for text in check), True)
    for name in ("one", "two", "three", "four", "five"):
        expect(f"{name} is there", pathlib.Path(name).exists(), False)


def check_failure(epa2a, results):
    fake = pathlib.Path("bin/gnuplot")
    fake.parent.mkdir()
    path = f"{fake.parent.absolute()}:{os.environ['PATH']}"
    for what, end in (("exit 3", "gnuplot failed with exit code 3: it is broken"),
                      ("kill -9 $$", "gnuplot was ended by signal 9"),
                      ("exit 0", None)):
        fake.write_text(f"#!/bin/sh\ncat >/dev/null\n"
                        + ("" if end is None else f"echo '<svg'\necho ' it is broken' >&2\n")
                        + f"{what}\n")
        fake.chmod(0o755)
        before = set(os.listdir())
        run = plot(epa2a, results, "-o", "broken.svg", path=path)
        expect(f"{what}: exit code", run.returncode, 3)
        expect(f"{what}: words", (end or "gnuplot has drawn nothing") in run.stderr, True)
        expect(f"{what}: nothing is left", set(os.listdir()) - before, set())
        pathlib.Path("old.svg").write_text("old")
        plot(epa2a, results, "-o", "old.svg", "--force", path=path)
        expect(f"{what}: what was there", pathlib.Path("old.svg").read_text(), "old")
        pathlib.Path("old.svg").unlink()


def main(epa2a, results):
    if shutil.which("gnuplot") is None:
        print("skipped: no gnuplot (package gnuplot-nox)")
        return 77
    check_kinds(epa2a, results)
    check_hostile(epa2a, results)
    check_failure(epa2a, results)
    print("\n".join(failures) or "all charts are as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    paths = [os.path.abspath(path) for path in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        code = main(*paths)
        os.chdir("/")
    sys.exit(code)
