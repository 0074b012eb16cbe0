"""python -m epa2a plot | report | predict | import

The commands of the package that read results. The console script `epa2a` is the program itself."""

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import warnings

from . import console
from .result_files import EXIT_SYSTEM, PredictionFound, ResultsError

EXIT_INTERRUPTED = 130


# Packages of the commands. Debian has python3-NAME of each, except plotille.
_RESULTS = ("numpy", "pandas", "scipy")
_PAGE = (*_RESULTS, "jinja2", "matplotlib")


def _remedy(packages):
    """Returns the command that installs packages for this Python."""
    managed = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
    managed = managed and sys.prefix == sys.base_prefix
    if managed and "plotille" not in packages and shutil.which("apt-get") is not None:
        return "apt-get install " + " ".join(f"python3-{name}" for name in packages)
    options = "--user --break-system-packages " if managed else ""
    return f"{sys.executable} -m pip install {options}{' '.join(packages)}"


def _need(command, packages):
    """Names the packages that a command needs and this Python lacks, and the command that installs them."""
    lacks = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacks:
        names = f"the package {lacks[0]}" if len(lacks) == 1 else f"the packages {', '.join(lacks)}"
        raise ResultsError(
            f"{command} needs {names}, which {sys.executable} does not have: {_remedy(lacks)}", EXIT_SYSTEM
        )


def _is_text(path):
    return path is None or console.is_stdout(path) or path.lower().endswith(".txt")


def _drawing(path):
    """Returns the name of a chart in a file, and the package that draws it."""
    if _is_text(path):
        return "a chart as text (.svg, .png and .pdf do not)", ("plotille",)
    return "a chart", ("matplotlib",)


def _packages_of_chart(path):
    """Returns the packages that all charts of a file need. Some kinds of text need no plotille."""
    return _RESULTS if _is_text(path) else (*_RESULTS, *_drawing(path)[1])


def _import(command, packages, *modules):
    """Imports modules of a command, which need these packages."""
    _need(command, packages)
    return [importlib.import_module("." + module, "epa2a") for module in modules]


def _write(option, path, text, overwrite):
    """Writes text to a file, or to standard output for "-"."""
    console.write_file(path, text.encode(), overwrite, option)


def _load(results, paths):
    frame = results.load(*paths)
    for sentence in results.failures(frame):
        console.warn(sentence)
    return frame


def _show_chart(chart, charts_text, path, columns, overwrite):
    """Writes a chart to a file, or as text to standard output."""
    as_text = _is_text(path)
    if not (as_text and chart.style == "bars"):  # which need no package
        _need(*_drawing(path))
    if path is None or console.is_stdout(path):
        console.show(chart.text(columns or charts_text.terminal_columns()))
    else:
        chart.save(path, columns or charts_text.FILE_COLUMNS, overwrite, "--out")


def _run_plot(given):
    if given.check:
        _need("plot", _packages_of_chart(given.out))
        _need(*_drawing(given.out))
        return 0
    if not given.results:
        raise ResultsError("plot needs RESULTS: files of --json or --json-lines, or folders of --out-dir")
    results, charts, charts_text = _import("plot", _packages_of_chart(given.out), "results", "charts", "charts_text")
    if given.out is not None and not console.is_stdout(given.out):
        charts.suffix_of(given.out)
    options = {"stage": given.stage, "only": given.only}
    if given.baseline is not None and given.kind != "ratio":
        raise results.ResultsError("--baseline belongs to --kind ratio")
    if given.kind == "ratio":
        options["baseline"] = given.baseline
    kind = None if given.kind == "auto" else given.kind
    try:
        chart = charts.draw(_load(results, given.results), kind, **options)
    except PredictionFound as found:
        chart = charts.prediction(found.document)
    _show_chart(chart, charts_text, given.out, given.columns, given.force)
    return 0


def _run_report(given):
    if given.check:
        _need("a page of HTML", _PAGE)
        return 0
    if not given.results:
        raise ResultsError("report needs RESULTS: files of --json or --json-lines, or folders of --out-dir")
    results, report = _import("report", _PAGE, "results", "report")
    page = report.render(_load(results, given.results), title=given.title, only=given.only)
    _write("--out", given.out, page, given.force)
    return 0


def _check_predict(given, charts):
    """Refuses options that contradict each other, and files that cannot be written."""
    if given.out is not None and given.sweep is None and not given.file.endswith(".json"):
        raise ResultsError("--out draws a sweep and needs --sweep, such as --sweep ranks=8:1024")
    if given.check and given.sweep is not None:
        raise ResultsError("--check measures one number of ranks, but --sweep has several")
    if given.out is not None:
        _need(*_drawing(given.out))
        if not console.is_stdout(given.out):
            charts.suffix_of(given.out)
    for option in ("json", "csv", "markdown", "out"):
        console.check_file(getattr(given, option), given.force, "--" + option)


def _run_predict(given):
    packages, modules = _packages_of_chart(given.out), ("predict", "predict_text", "charts", "charts_text")
    predict, predict_text, charts, charts_text = _import("predict", packages, *modules)
    _check_predict(given, charts)
    options = [f"--model={model}" for model in given.model] + [f"--only={glob}" for glob in given.only]
    options += [f"--timeout={given.timeout}"] if given.timeout is not None else []
    options += [f"--max-runs={given.max_runs}"] if given.max_runs is not None else []
    document = predict.measure(
        given.file, given.set, given.link, given.sweep, given.program, options=options, plugin_path=given.plugin_path,
        check=given.check, measured=given.measured, progress=console.has_progress(given.progress), shows=True,
    )  # fmt: skip
    prediction = predict.predict(document, link=given.link, cores=given.cores)
    files = (given.json, given.csv, given.markdown, given.out)
    if not any(console.is_stdout(path) for path in files):
        console.show(predict_text.text(prediction))
    if given.csv is not None:
        _write("--csv", given.csv, predict_text.csv(prediction), given.force)
    if given.out is not None:
        _show_chart(charts.prediction(prediction), charts_text, given.out, None, given.force)
    if given.json is not None:
        _write("--json", given.json, json.dumps(prediction, indent=2) + "\n", given.force)
    if given.markdown is not None:
        _write("--markdown", given.markdown, predict_text.markdown(prediction), given.force)
    return 0


def _run_import(given):
    from . import importers

    if given.routing is not None:
        if given.json is not None or given.set:
            raise ResultsError("--routing writes the routing of an engine, not results: leave --json and --set out")
        _need("import --routing", ("numpy",))
        tokens = importers.write_routing(given.files, given.routing, given.layers, given.topk, given.force)
        console.show(f"{given.routing}: {tokens} tokens")
        return 0
    if given.layers is not None or given.topk is not None:
        raise ResultsError("--layers and --topk describe the routing of an engine: they need --routing FILE")
    document = importers.read(given.files, given.set, warn=console.warn)
    if not console.is_stdout(given.json):
        console.show(importers.text(document))
    if given.json is not None:
        _write("--json", given.json, json.dumps(document, indent=2) + "\n", given.force)
    return 0


def _positive(text):
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


class _Parser(argparse.ArgumentParser):
    """Prints an error of the command line as one line, as the program does."""

    def __init__(self, **more):
        super().__init__(allow_abbrev=False, **more)

    def error(self, message):
        sys.exit(console.fail(f"{message}; see '{self.prog} --help'"))


def _parser(program):
    parser = _Parser(prog=program, description=__doc__.split("\n\n")[1])
    commands = parser.add_subparsers(dest="command", required=True, metavar="plot|report|predict|import")
    force = _Parser(add_help=False)
    force.add_argument("--force", action="store_true", help="overwrite an existing file")
    force.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                       help="colour; auto: on a terminal, unless NO_COLOR is set")  # fmt: skip
    chosen = _Parser(add_help=False)
    chosen.add_argument("--only", action="append", default=[], metavar="GLOB", help="only runs with that label or id")

    inputs = {"metavar": "RESULTS", "help": "results of --json, --json-lines or --out-dir; -: standard input"}
    plot = commands.add_parser("plot", parents=[chosen, force], help="draw results")
    plot.add_argument("-o", "--out", metavar="FILE", help=".png, .svg, .pdf or .txt; default: text to the terminal")
    plot.add_argument(
        "--kind", choices=("auto", "tokens", "distribution", "skew", "stages", "ratio", "trend", "nights"), default="auto",
        help="auto: tokens if runs differ in size, distribution of one run, else stages",
    )  # fmt: skip
    plot.add_argument("--stage", metavar="NAME", help="times of this stage; default: whole iterations")
    plot.add_argument("--baseline", metavar="RUN", help="ratio: name or label of the baseline; default: the first run")
    plot.add_argument("--columns", type=_positive, metavar="N", help="width of text; default: of the terminal")
    plot.add_argument("--check", action="store_true", help="only check that the packages of a chart in --out are installed")
    plot.add_argument("results", nargs="*", **inputs)
    plot.set_defaults(run=_run_plot)

    report = commands.add_parser("report", parents=[chosen, force], help="write a page of HTML")
    report.add_argument("-o", "--out", default="-", metavar="FILE", help="default: standard output")
    report.add_argument("--title", help="title of the page")
    report.add_argument("--check", action="store_true", help="only check that the packages of a page are installed")
    report.add_argument("results", nargs="*", **inputs)
    report.set_defaults(run=_run_report)

    predict = commands.add_parser("predict", parents=[chosen, force], help="predict the times of more ranks")
    predict.add_argument("file", metavar="FILE", help="an experiment, or a document of predict, which is not measured again")
    predict.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the experiment")
    predict.add_argument("--model", action="append", default=[], metavar="MODEL", help="shape of a model of `epa2a list models`")
    predict.add_argument("--timeout", metavar="DURATION", help="longest wait, such as 5s")
    predict.add_argument("--plugin-path", action="append", default=[], metavar="DIR", help="folder to search for plugins first")
    predict.add_argument("--max-runs", type=_positive, metavar="N", help="maximum number of runs of the file")
    predict.add_argument("--link", metavar="RATE,LATENCY", help="link between nodes, such as 50GB/s,2us,10ns,node")
    predict.add_argument("--cores", type=_positive, metavar="N", help="cores of a predicted node; default: of this machine")
    predict.add_argument("--sweep", metavar="ranks=LOW:HIGH", help="a row for each number of ranks, doubled")
    predict.add_argument("--check", action="store_true", help="also measure the predicted world")
    predict.add_argument("--measured", metavar="RESULTS", help="measured results to compare with the prediction")
    predict.add_argument("--json", metavar="FILE", help="write the prediction; - is standard output")
    predict.add_argument("--csv", metavar="FILE", help="write a line for each stage of each world")
    predict.add_argument("--markdown", metavar="FILE", help="write the table")
    predict.add_argument("-o", "--out", metavar="FILE", help="draw the sweep: .png, .svg, .pdf or .txt")
    predict.add_argument("--progress", choices=("auto", "always", "never"), default="auto", help="the current run; auto: on a terminal")
    predict.add_argument("--program", metavar="FILE", help="the program epa2a, which measures")
    predict.set_defaults(run=_run_predict)

    read = commands.add_parser("import", parents=[force], help="read the output of other programs")
    read.add_argument("files", nargs="+", metavar="FILE", help="logs, JSON documents, or responses of vLLM and SGLang; -: standard input")
    read.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a fact that is not printed")
    read.add_argument("--json", metavar="FILE", help="write results; - is standard output")
    read.add_argument("--routing", metavar="FILE", help="write routed experts of an engine: .jsonl or .npy")
    read.add_argument("--layers", type=_positive, metavar="N", help="MoE layers of a flat routing of SGLang")
    read.add_argument("--topk", type=_positive, metavar="N", help="choices of a token in a flat routing of SGLang")
    read.set_defaults(run=_run_import)
    return parser


def main(arguments=None, program="python -m epa2a"):
    """Runs a command; returns its exit code. `program` is the name of the program in messages."""
    warnings.simplefilter("ignore")  # of packages, about their own code
    os.environ.pop("MPLBACKEND", None)  # charts have no window, and matplotlib refuses an unknown name
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors="replace")
    given = _parser(program).parse_args(arguments)
    console.choose_colour(given.color)
    try:
        return given.run(given)
    except ResultsError as error:
        return console.fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except MemoryError:
        return console.fail(f"{given.command}: there is not enough memory", EXIT_SYSTEM)
    except BrokenPipeError:
        return console.end_broken_pipe()


if __name__ == "__main__":
    sys.exit(main())
