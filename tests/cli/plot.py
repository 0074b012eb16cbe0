#!/usr/bin/env python3
"""Charts of the program: plot.py EPA2A RESULTS. SVG is XML, PNG and PDF have their signatures, and all are the same each time; text has
the names and numbers; text of results is never a formula or a command; samples as no clock has them are no crash; settings of
the user change nothing."""
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import xml.etree.ElementTree

KINDS = ("tokens", "distribution", "skew", "stages")
SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-1."}
HOSTILE = ("`touch one`'\nsystem 'touch two'\n!touch three\n\"`touch four`\" $(touch five) "
           "@x ${y} EOD \\' <b>&amp; \u00fc 5% %s %% %d%")
failures = []


def expect(what, have, want):
    if have != want:
        failures.append(f"{what} is {have!r}, should be {want!r}")


def plot(epa2a, *args, path=None, **variables):
    env = dict(os.environ, **({"PATH": path} if path else {}), **variables)
    return subprocess.run([epa2a, "plot", *args], capture_output=True, text=True, env=env,
                          timeout=400)


def check_kinds(epa2a, results):
    for kind in KINDS:
        for end in ("svg", "png", "pdf"):
            written = []
            for name in (f"{kind}.{end}", *([f"{kind}-2.{end}"] if kind == "tokens" else [])):
                run = plot(epa2a, results, "--kind", kind, "-o", name)
                expect(f"{name}, exit code", (run.returncode, run.stderr), (0, ""))
                written.append(pathlib.Path(name).read_bytes())
            expect(f"{kind}.{end} is the same again", written[0] == written[-1], True)
            if end == "svg":
                check_svg(f"{kind}.svg", written[0])
            else:
                expect(f"{kind}.{end} begins with its signature", written[0].startswith(SIGNATURES[end]), True)


def texts(svg):
    root = xml.etree.ElementTree.fromstring(svg)
    expect("root", root.tag.rpartition("}")[2], "svg")
    return ["".join(at.itertext()).strip() for at in root.iter() if at.tag.endswith("}text")]


def check_svg(name, svg):
    expect(f"{name} has its caption",
           "Made Up 9000, 4 cores, on here; epa2a 0.1.0" in texts(svg), True)


def words(what, text, *wanted):
    """These words stand there in this order."""
    at = 0
    for word in wanted:
        at = text.find(word, at)
        if at < 0:
            failures.append(f"{what} lacks {word!r} in\n{text}")
            return


def check_text(epa2a, results):
    """Checks the default chart, the names of lines and rows, and the numbers below."""
    said = {}
    for name, args in {"auto": (), "combine": ("--stage", "combine"), "stages": ("--kind", "stages"),
                       "skew": ("--kind", "skew"), "one": ("--only", "*v2*=8"),
                       "ranks": ("--kind", "skew", "--only", "*v2*=8"),
                       "ecdf": ("--kind", "distribution", "--only", "*=64")}.items():
        run = plot(epa2a, results, *args)
        expect(f"text, {name}", (run.returncode, run.stderr), (0, ""))
        said[name] = run.stdout
    words("tokens", said["auto"], "Latency over tokens: total", "moe.max_tokens", "a: ll_v1/shm", "  8                    42   40    44",
          "b: ll_v2/shm", "  64                  147  140   154", "Made Up 9000, 4 cores, on here; epa2a 0.1.0")
    words("combine", said["combine"], "Latency over tokens: combine")
    words("stages", said["stages"], "Stages", "a: dispatch  b: combine", "21 us", "26.25 us, limit 38 %", "algorithm=ll_v1 moe.max_tokens=1 ",
          "algorithm=ll_v2 moe.max_tokens=8 ")
    words("skew", said["skew"], "Ranks: total", "algorithm=ll_v1 moe.max_tokens=1, slowest: rank 3 (+4.3 %)")
    words("ranks", said["ranks"], "Ranks: algorithm=ll_v2 moe.max_tokens=8", "dispatch, slowest: rank 3", "combine,", "total,")
    words("one run", said["one"], "Distribution of samples: total, algorithm=ll_v2 moe.max_tokens=8", "25 samples, median 26.", "largest 75")
    words("several", said["ecdf"], "Distribution of samples: total", "algorithm=ll_v1 moe.max_tokens=64",
          "algorithm=ll_v2 moe.max_tokens=64")


def on_terminal(columns, *command):
    """The lines that a command prints on a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdout=its, stdin=its)
    os.close(its)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not piece:
            break
        seen += piece
    expect(f"{command[1:]} on a terminal, exit code", process.wait(400), 0)
    os.close(ours)
    return seen.decode().splitlines()


def check_widths(epa2a, results):
    """Text fits the terminal, and has 80 columns without one, with long names, too."""
    document = json.loads(pathlib.Path(results).read_text("utf-8"))
    for run in document["results"]:
        run["label"] += " and" + " more" * 20
        run["machine"]["cpu"] = "A processor with a name of many words" * 3
    pathlib.Path("long.json").write_text(json.dumps(document), "utf-8")
    for kind in "tokens", "stages":
        for columns in (60, 132):
            lines = on_terminal(columns, epa2a, "plot", "long.json", "--kind", kind)
            expect(f"{kind}, columns of a terminal of {columns}", columns - 10 < max(map(len, lines)) <= columns, True)
        for args in ((), ("-o", f"{kind}.txt")):
            out = plot(epa2a, "long.json", "--kind", kind, *args).stdout or pathlib.Path(f"{kind}.txt").read_text("utf-8")
            expect(f"{kind} {args}, columns", 70 < max(map(len, out.splitlines())) <= 80, True)


def check_names(epa2a, results):
    """What tells lines apart is in their names, and nothing else is; one run in two files is two lines."""
    was = pathlib.Path(results).read_text("utf-8")
    for name, old, new in (("a", "", ""), ("b", "fp8", "bf16"), ("c", "7168", "2048")):
        pathlib.Path(name).write_text(was.replace(old, new) if old else was, "utf-8")
    for files, names in (("aa", ["ll_v1/shm", "ll_v2/shm"]),
                         ("ab", ["ll_v1/shm (a)", "ll_v1/shm (b)", "ll_v2/shm algorithm.dispatch_dtype=bf16 (b)",
                                 "ll_v2/shm algorithm.dispatch_dtype=fp8 (a)"]),
                         ("ac", ["ll_v1/shm moe.hidden=2048", "ll_v1/shm moe.hidden=7168", "ll_v2/shm moe.hidden=2048",
                                 "ll_v2/shm moe.hidden=7168"])):
        run = plot(epa2a, *files, "--kind", "tokens")
        expect(f"lines of {files}", re.findall(r"^[a-d]: (ll_.*)$", run.stdout, re.M), names)


def check_sizes(epa2a, results):
    """Samples that are far too short or too long, and of one length, are a chart or a sentence."""
    document = json.loads(pathlib.Path(results).read_text("utf-8"))
    for far in (5e-324, 1e299, 1e300):
        for run in document["results"]:
            for stage in run["stages"]:
                stage["samples_ns"] = [far, *stage["samples_ns"][:20]] if far < 1 else [far] * 3
        pathlib.Path("far.json").write_text(json.dumps(document), "utf-8")
        for kind in KINDS if far < 1 else ("tokens",):
            run = plot(epa2a, "far.json", "--kind", kind)
            expect(f"{far}, {kind}", (run.returncode, run.stderr.count("\n")), (2, 1) if far >= 1e300 else (0, 0))


def check_folder(epa2a):
    """A folder of --out-dir is results, too."""
    pathlib.Path("x.yaml").write_text("version: 1\nranks: 2\ntransport: shm\nalgorithm: ll_v2\nmoe: {hidden: 64, experts: 4, topk: 2, "
                                      "fp8_group_size: 64}\nmatrix: {moe.max_tokens: [1, 8]}\n", "utf-8")
    subprocess.run([epa2a, "bench", "x.yaml", "--out-dir", "d", "--quiet", "-n", "30"], check=True, timeout=400)
    words("a folder", plot(epa2a, "d").stdout, "Latency over tokens: total", "tokens of a rank")


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
        expect(f"hostile {kind}: formats", any("5% %s %% %d%" in text for text in check), True)
    for name in ("one", "two", "three", "four", "five"):
        expect(f"{name} is there", pathlib.Path(name).exists(), False)


def check_environment(epa2a, results):
    """Variables and files of settings change nothing."""
    home = pathlib.Path("home")
    (home / "matplotlib").mkdir(parents=True)
    (home / "matplotlib/matplotlibrc").write_text("lines.linewidth: 9\nbackend: TkAgg\n")
    plot(epa2a, results, "-o", "plain.svg")
    for number, variables in enumerate(({"MPLBACKEND": "TkAgg"}, {"MPLBACKEND": "no such backend"}, {"LC_ALL": "C"},
                                        {"LANG": "no_SUCH.locale"}, {"PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}"},
                                        {"MATPLOTLIBRC": str(home / "matplotlib/matplotlibrc")})):
        run = plot(epa2a, results, "-o", f"other-{number}.svg", **variables)
        expect(f"{variables}", (run.returncode, run.stderr), (0, ""))
        expect(f"{variables}: the chart", pathlib.Path(f"other-{number}.svg").read_bytes() == pathlib.Path("plain.svg").read_bytes(), True)


def main(epa2a, results):
    for out in "chart.svg", "chart.txt":
        lacks = plot(epa2a, results, "-o", out)
        if lacks.returncode == 3:
            print("skipped:", lacks.stderr)
            return 77
    check_kinds(epa2a, results)
    check_text(epa2a, results)
    check_widths(epa2a, results)
    check_names(epa2a, results)
    check_sizes(epa2a, results)
    check_folder(epa2a)
    check_hostile(epa2a, results)
    check_environment(epa2a, results)
    print("\n".join(failures) or "all charts are as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    paths = [os.path.abspath(path) for path in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        code = main(*paths)
        os.chdir("/")
    sys.exit(code)
