"""Measures the small worlds of a prediction by the program epa2a.

`epa2a predict --dry-run` lists the runs and counts the traffic of the predicted worlds. `epa2a bench` measures each
run in rounds: the fastest round counts, since other load never makes a run faster."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import threading

from . import console
from .predict_link import Link, check_link
from .result_files import RUN_SHAPE, ResultsError, at, check_shape, documents, parse, read_text

ROUNDS = 3


# ---- the program ----


def find_program(path=None):
    """Returns the program epa2a: of the argument, of EPA2A, of this environment, or of PATH."""
    for found in (path, os.environ.get("EPA2A"), os.path.join(sysconfig.get_path("scripts"), "epa2a"), shutil.which("epa2a")):
        if found and os.access(found, os.X_OK):
            return found
        if found and found == path:
            raise ResultsError(f"--program {path}: no such program")
    raise ResultsError("there is no program epa2a: install it, or name it by --program or EPA2A")


class _Signals:
    """Passes signals that end this process on to a child, which stops its ranks first."""

    def __init__(self, child):
        self.child, self.number, self.before = child, None, {}

    def _pass_on(self, number, _):
        self.number = number
        self.child.send_signal(number)

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self.before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def _bench(command, experiment):
    """Runs `epa2a bench`; returns its exit code, standard output and standard error. The child has a session of its
    own: the terminal sends ctrl-C to this process alone."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as child, _Signals(child) as signals:  # fmt: skip
        out, messages = child.communicate(experiment)
    code = child.returncode
    if signals.number == signal.SIGINT:
        raise KeyboardInterrupt
    if signals.number is not None:
        raise SystemExit(128 + signals.number)
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise SystemExit(code)
    return code, out, messages


def _plan(program, file, options, shows):
    """Returns the document of `epa2a predict --dry-run`. `shows`: the program writes its errors to standard error of
    this process."""
    command = [program, "predict", "--dry-run", "--json", "-", *options, "--", str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if shows else subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 and shows:
        raise SystemExit(done.returncode if done.returncode > 0 else 128 - done.returncode)
    if done.returncode != 0:
        lines = [line.removeprefix("epa2a: ") for line in done.stderr.splitlines()]
        raise ResultsError("; ".join(lines) or f"epa2a predict ended with {done.returncode}")
    return json.loads(done.stdout)


# ---- runs ----


def _phase_ns(stages, phase):
    """Returns the sum of the medians of a phase's stages, whose names begin with its name: "dispatch_send"."""
    return sum(at(stage, "ns.median", 0.0) for stage in stages if stage["name"].startswith(phase))


class _Run:
    """A run of the plan, and the times of its rounds."""

    def __init__(self, planned):
        self.planned, self.ranks = planned, planned["ranks"]
        self.names = [stage["name"] for stage in planned["stages"]]
        self.phases = [math.inf] * len(self.names)
        self.totals = []

    def add(self, result):
        """Adds the times of a result. Returns the name of a phase without a time, or None."""
        times = [_phase_ns(result.get("stages") or [], name) for name in self.names]
        for name, ns in zip(self.names, times):
            if not ns > 0:
                return name
        self.phases = [min(pair) for pair in zip(self.phases, times)]
        self.totals = sorted([*self.totals, sum(times)])
        return None

    def document(self):
        stages = [
            {"name": stage["name"], "measured_ns": ns, "rows": stage["rows"], "choices": stage["choices"]}
            for stage, ns in zip(self.planned["stages"], self.phases)
        ]
        keys = ("ranks", "size", "topk", "share", "fitted")
        return {
            **{key: self.planned[key] for key in keys},
            "total_ns": self.totals[0], "second_ns": self.totals[min(1, len(self.totals) - 1)], "stages": stages,
        }  # fmt: skip


def _first_message(messages):
    """Returns the first message of the program, without the names of program and file."""
    line = next((line for line in messages.splitlines() if line.strip()), "no message")
    return re.sub(r"^(?:epa2a|/dev/stdin(?::\d+:\d+)?): (?:error: )?", "", line)


class _Measurement:
    """Measures the runs of a plan in rounds."""

    def __init__(self, plan, command, check, progress):
        self.plan, self.command, self.check, self.progress = plan, command, check, progress
        self.runs = [_Run(planned) for planned in plan["runs"]]
        self.signal_ns, self.dropped = 0.0, []

    def _measure(self, run):
        """Measures a run. Returns the reason of a failure, or None."""
        settings = [word for setting in run.planned["set"] for word in ("--set", setting)]
        code, out, messages = _bench([*self.command, *settings], self.plan["experiment"])
        found = (json.loads(out).get("results") or [{}])[0] if out.strip() else {}
        if code != 0:
            return at(found, "error.text") or _first_message(messages)
        missing = run.add(found)
        signal_ns = at(found, "machine.links.latency_ns", 0.0)
        if signal_ns > 0 and (self.signal_ns <= 0 or signal_ns < self.signal_ns):
            self.signal_ns = signal_ns
        return None if missing is None else f"the result has no stage '{missing}'"

    def _drop(self, ranks, why):
        """Removes a failed world and all larger ones. Returns False if no smaller world is left, or if --check needs
        one of them."""
        if min(run.ranks for run in self.runs) >= ranks or (self.check and self.plan["ranks"] >= ranks):
            return False
        self.runs = [run for run in self.runs if run.ranks < ranks]
        self.dropped.append(why)
        return True

    def measure(self):
        for turn in range(ROUNDS):
            for run in list(self.runs):
                if run not in self.runs:
                    continue
                if self.progress:
                    console.show_progress(f"round {turn + 1} of {ROUNDS}: {run.ranks} ranks")
                failure = self._measure(run)
                why = f"{self.plan['file']}: {run.ranks} ranks could not be measured: {failure}"
                kept = failure is not None and turn == 0 and run.planned["fitted"] and self._drop(run.ranks, why)
                if failure is not None and not kept:
                    raise ResultsError(why)

    def checked(self, ranks):
        """Returns the times of the run that --check compares: of a world outside the fit, if there is one."""
        size, topk = max(run.planned["size"] for run in self.runs), max(run.planned["topk"] for run in self.runs)
        whole = [run for run in self.runs if (run.ranks, run.planned["size"], run.planned["topk"]) == (ranks, size, topk)]
        run = min(whole, key=lambda run: run.planned["fitted"], default=None)
        return [] if run is None else _check_rows(run.names, run.phases, sum(run.phases))


def _check_rows(names, phases, total):
    return [{"name": name, "measured_ns": ns} for name, ns in zip([*names, "total"], [*phases, total])]


def _requested(plan):
    """Returns the largest requested world that is possible."""
    ranks, found = plan["low"], None
    possible = {world["ranks"]: world for world in plan["counted"] if world.get("stages")}
    while ranks <= plan["ranks"]:
        found = possible.get(ranks, found)
        ranks *= 2
    return found


def _read_measured(path, plan, world):
    """--measured: returns the times of the first result with the same algorithm, ranks and size."""
    size = max(run["size"] for run in plan["runs"])
    for document in documents(path):
        for number, run in enumerate(document["results"]):
            check_shape(f"{path}: result {number}", run, RUN_SHAPE)
            stages = run.get("stages") or []
            same = (
                run.get("status") in ("ok", "missed")
                and at(run, "experiment.ranks") == world["ranks"]
                and at(run, "experiment." + plan["size_key"]) == size
                and at(run, "experiment.algorithm.name") == plan["algorithm"]
            )
            if same and stages:
                names = [stage["name"] for stage in world["stages"]]
                return _check_rows(names, [_phase_ns(stages, name) for name in names], at(stages[-1], "ns.median"))
    raise ResultsError(
        f"--measured {path}: no successful run has {world['ranks']} ranks, {plan['size_key']} {size} and {plan['algorithm']}"
    )


# ---- the document ----


def _read_document(file):
    """Returns the document of a file that predict --json wrote; None for an experiment, which has a version."""
    if not str(file).endswith(".json"):
        return None
    document = next(parse(read_text(file), file), None)
    return None if isinstance(document, dict) and "version" in document else (document,)


def measure(
    file, settings=(), link=None, sweep=None, program=None, *, options=(), plugin_path=(), check=False, measured=None,
    progress=False, shows=False,
):  # fmt: skip
    """Returns the document of a prediction: of a file that predict --json wrote, or of a measurement of an experiment
    by the program. `options` are other words of the program's command line, `progress` shows the current run, and with
    `shows` the program itself reports errors of the experiment."""
    read = _read_document(file)
    if read is not None:
        if settings or sweep or options or check or measured:
            raise ResultsError(f"{file}: a document is not measured again; give the experiment instead")
        return read[0]
    link = Link.parse(link) if isinstance(link, str) else link
    program = find_program(program)
    paths = [word for path in plugin_path for word in ("--plugin-path", path)]
    given = [*paths, *options, *[word for setting in settings for word in ("--set", setting)]]
    given += ["--sweep", sweep] if sweep is not None else []
    given += ["--check"] if check else []
    plan = _plan(program, file, given, shows)
    check_link(plan, link)
    world = _requested(plan)
    elsewhere = _read_measured(measured, plan, world) if measured is not None else []
    command = [program, "bench", "-", "--json", "-", "--quiet", "--progress", "never", *paths]
    measurement = _Measurement(plan, command, check, progress)
    try:
        measurement.measure()
    finally:
        if progress:
            console.clear_progress()
    keys = ("schema", "program", "file", "sweep", "low", "ranks", "per_node", "cores", "threads", "algorithm")
    return {
        **{key: plan[key] for key in keys},
        "link": link and link.document(),
        "signal_ns": measurement.signal_ns,
        "counted": plan["counted"],
        "measured": [run.document() for run in measurement.runs],
        "dropped": measurement.dropped,
        "check": (measurement.checked(world["ranks"]) if check else []) + elsewhere or None,
        "machine": plan["machine"],
    }
