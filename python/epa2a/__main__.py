"""python -m epa2a plot | report | predict | import

The commands of the package that read results. The console script `epa2a` is the program itself."""

import argparse
import importlib
import json
import os
import sys

EXIT_USAGE, EXIT_SYSTEM, EXIT_INTERRUPTED = 2, 3, 130


def _need(command, *modules):
    """Imports the modules of a command, or names the package that is missing."""
    try:
        return [importlib.import_module("." + module, "epa2a") for module in modules]
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("epa2a"):
            raise
        sys.exit(
            _fail(f"python -m epa2a {command} needs the package {error.name}: pip install 'epa2a[results]'")
        )


def _fail(text, code=EXIT_USAGE):
    print(f"epa2a: {text}", file=sys.stderr)
    return code


def _warn(text):
    print(f"warning: {text}", file=sys.stderr)


def _write(path, text, overwrite):
    """Writes text to a file, or to standard output for "-"."""
    if path == "-":
        sys.stdout.write(text)
        return
    _need("plot", "charts")[0].write_file(path, text.encode(), overwrite)


def _load(results, paths):
    frame = results.load(*paths)
    for sentence in results.failures(frame):
        _warn(sentence)
    return frame


def _run_plot(given):
    results, charts, charts_text = _need("plot", "results", "charts", "charts_text")
    options = {"stage": given.stage, "only": given.only}
    if given.baseline is not None and given.kind != "ratio":
        raise results.ResultsError("--baseline belongs to --kind ratio")
    if given.kind == "ratio":
        options["baseline"] = given.baseline
    chart = charts.draw(_load(results, given.results), given.kind, **options)
    columns = given.columns or charts_text.terminal_columns()
    if given.out is None or given.out == "-":
        print(chart.text(columns))
    else:
        chart.save(given.out, columns, overwrite=given.force)
    return 0


def _run_report(given):
    results, report = _need("report", "results", "report")
    page = report.render(_load(results, given.results), title=given.title, only=given.only)
    _write(given.out, page, given.force)
    return 0


def _run_predict(given):
    results, predict, charts = _need("predict", "results", "predict", "charts")
    document = predict.measure(given.file, given.set, given.link, given.sweep, given.cores, given.program)
    prediction = predict.predict(document, link=given.link, cores=given.cores)
    if given.json != "-":
        print(predict.text(prediction))
    if given.json is not None:
        _write(given.json, json.dumps(prediction, indent=2) + "\n", given.force)
    if given.out is not None:
        charts.prediction(prediction).save(given.out, overwrite=given.force)
    return 0


def _run_import(given):
    results, importers = _need("import", "results", "importers")
    if given.routing is not None:
        tokens = importers.write_routing(given.files, given.routing, given.layers, given.topk, given.force)
        print(f"{given.routing}: {tokens} tokens")
        return 0
    document = importers.read(given.files, given.set, warn=_warn)
    if given.json != "-":
        print(importers.text(document))
    if given.json is not None:
        _write(given.json, json.dumps(document) + "\n", given.force)
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="python -m epa2a", description=__doc__.split("\n\n")[1])
    commands = parser.add_subparsers(dest="command", required=True, metavar="plot|report|predict|import")
    force = argparse.ArgumentParser(add_help=False)
    force.add_argument("--force", action="store_true", help="overwrite an existing file")
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("results", nargs="+", help="results of --json, --json-lines or --out-dir")
    chosen.add_argument("--only", action="append", default=[], metavar="GLOB", help="only runs with that label or id")

    plot = commands.add_parser("plot", parents=[chosen, force], help="draw results")
    plot.add_argument("-o", "--out", metavar="FILE", help=".png, .svg, .pdf or .txt; default: text to the terminal")
    plot.add_argument(
        "--kind", choices=("tokens", "distribution", "skew", "stages", "ratio", "trend", "nights"),
        help="default: tokens if runs differ in size, distribution of one run, else stages",
    )  # fmt: skip
    plot.add_argument("--stage", metavar="NAME", help="times of this stage; default: whole iterations")
    plot.add_argument("--baseline", metavar="RUN", help="ratio: name or label of the baseline; default: the first run")
    plot.add_argument("--columns", type=int, metavar="N", help="width of text; default: of the terminal")
    plot.set_defaults(run=_run_plot)

    report = commands.add_parser("report", parents=[chosen, force], help="write a page of HTML")
    report.add_argument("-o", "--out", default="-", metavar="FILE", help="default: standard output")
    report.add_argument("--title", help="title of the page")
    report.set_defaults(run=_run_report)

    predict = commands.add_parser("predict", parents=[force], help="predict the times of more ranks")
    predict.add_argument("file", help="an experiment, or a document of predict, which is not measured again")
    predict.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the experiment")
    predict.add_argument("--link", metavar="RATE,LATENCY", help="link between nodes, such as 50GB/s,2us,10ns,node")
    predict.add_argument("--sweep", metavar="ranks=LOW:HIGH", help="a row for each doubling")
    predict.add_argument("--cores", type=int, metavar="N", help="cores of a predicted node; default: of this machine")
    predict.add_argument("--json", metavar="FILE", help="write the prediction; - is standard output")
    predict.add_argument("-o", "--out", metavar="FILE", help="draw the sweep: .png, .svg, .pdf or .txt")
    predict.add_argument("--program", metavar="FILE", help="the program epa2a, which measures")
    predict.set_defaults(run=_run_predict)

    read = commands.add_parser("import", parents=[force], help="read the output of other programs")
    read.add_argument("files", nargs="+", help="logs, JSON documents, or responses of vLLM and SGLang")
    read.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a fact that is not printed")
    read.add_argument("--json", metavar="FILE", help="write results; - is standard output")
    read.add_argument("--routing", metavar="FILE", help="write routed experts of an engine: .jsonl or .npy")
    read.add_argument("--layers", type=int, metavar="N", help="MoE layers of a flat routing of SGLang")
    read.add_argument("--topk", type=int, metavar="N", help="choices of a token in a flat routing of SGLang")
    read.set_defaults(run=_run_import)
    return parser


def main(arguments=None):
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SYSTEM
    except ValueError as error:
        if type(error).__module__.startswith("epa2a"):
            return _fail(str(error))
        raise


if __name__ == "__main__":
    sys.exit(main())
