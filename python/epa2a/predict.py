"""Predicts the times of more ranks from short runs with few ranks.

    from epa2a import predict

    document = predict.measure("ll_v2-shm", ["ranks=64", "ranks_per_node=8"], link="9GB/s,2us")
    predict.predict(document)                        # the prediction, as a document
    predict.predict(document, link="50GB/s,1us")     # another link, without another measurement

The program epa2a measures worlds of 2, 4, 8 ranks, and counts the traffic of the predicted ones from
the routing of all their ranks. A world is a job of a given number of ranks. Each stage has a model of
additive costs: of a call, of a peer, of a row and of a choice, of a row if there are few rows, and of
a call and a row if ranks share a core. The costs are the non-negative least squares of relative
errors. A stage takes the longest of the local work of its busiest rank, of the bytes over the busiest
link, and of the messages of the busiest rank, plus two latencies of the link.
"""

import copy
import json
import math
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass

import numpy
from scipy import optimize

from . import results

COSTS = ("call_ns", "peer_ns", "row_ns", "choice_ns", "few_row_ns", "shared_call_ns", "shared_row_ns")
SIDE_WEIGHT = 0.25  # of runs with fewer tokens or choices than the file has
LATENCIES = 2  # of the link in a stage: the barrier before it and its rows
LATENCIES_MOST = 4  # largest number that a measured stage took
SWEEPS, SETTLED = 100000, 1e-13  # of a fit by coordinate descent
BOUNDS = ("local copy", "link bandwidth", "link messages", "link latency")

_rates = {"TB/s": 1e3, "GB/s": 1, "MB/s": 1e-3, "Gbit/s": 0.125, "Mbit/s": 0.125e-3}
_durations = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}


@dataclass(frozen=True)
class Link:
    """A link between nodes: of each rank, or shared by the ranks of a node."""

    bytes_per_ns: float
    latency_ns: float = 0
    message_ns: float = 0  # least time between two messages
    node: bool = False

    @classmethod
    def parse(cls, text):
        """Parses "50GB/s,2us", then optionally ",10ns" and ",node"."""
        rate, *more = text.split(",")
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(\D+/s)", rate)
        if found is None or found[2] not in _rates or not 0 < float(found[1]) < math.inf:
            raise results.ResultsError(
                f"--link {text}: a rate is expected first, in TB/s, GB/s, MB/s, Gbit/s or Mbit/s: --link 50GB/s,2us"
            )
        times, node = [], False
        for word in more:
            if word == "node":
                node = True
                continue
            time = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", word)
            if time is None or time[2] not in _durations or len(times) == 2:
                why = "is one too many" if len(times) == 2 else "is no time such as 2us"
                raise results.ResultsError(
                    f"--link {text}: '{word}' {why}; behind the rate are the latency, the time between two messages, "
                    "and 'node': --link 400GB/s,2us,10ns,node"
                )
            times.append(float(time[1]) * _durations[time[2]])
        return cls(float(found[1]) * _rates[found[2]], *times, node=node)

    @classmethod
    def of(cls, document):
        """Returns the link of a document, or None."""
        link = document.get("link")
        return link and cls(link["rate"], link["latency_ns"], link["message_ns"], link["of"] == "node")

    def document(self):
        return {
            "rate": self.bytes_per_ns, "latency_ns": round(self.latency_ns),
            "message_ns": round(self.message_ns), "of": "node" if self.node else "rank",
        }  # fmt: skip


# ---- the document ----

_N = results.NUMBER
_load = {"rows": _N, "choices": _N, "rank_bytes": _N, "node_bytes": _N, "messages": _N}
_document = {
    "file!": results.TEXT, "cores!": _N, "signal_ns!": _N, "threads": _N, "error!": {"part!": _N, "text!": results.TEXT},
    "measured_text!": results.TEXT, "scales": {"text!": results.TEXT}, "notes": [results.TEXT], "machine": {"cores": _N},
    "link": {"rate!": _N, "latency_ns!": _N, "message_ns!": _N, "of!": results.TEXT},
    "measured!": [{
        "ranks!": _N, "size!": _N, "topk!": _N, "share!": _N, "total_ns": _N, "second_ns": _N,
        "stages!": [{"name!": results.TEXT, "measured_ns!": _N, "rows!": _N, "choices!": _N}],
    }],
    "worlds!": [{
        "ranks!": _N, "nodes!": _N, "why": results.TEXT,
        "stages": [{"name!": results.TEXT, "link_bytes": _N, "messages_ns": _N, **_load}],
    }],
}  # fmt: skip


def _check(document):
    """Refuses a document that is no prediction, with the first reason."""
    results.check_shape("this is no document of epa2a predict --json", document, _document)
    file, names = document["file"], {tuple(s["name"] for s in row["stages"]) for row in document["measured"]}
    for world in document["worlds"]:
        names.add(tuple(s["name"] for s in world["stages"]) if world.get("stages") else next(iter(names), ()))
    positive = [row[key] for row in document["measured"] for key in ("ranks", "size", "share")]
    positive += [stage["measured_ns"] for row in document["measured"] for stage in row["stages"]]
    positive += [row.get(key) or 1 for row in document["measured"] for key in ("total_ns", "second_ns")]
    positive += [world[key] for world in document["worlds"] for key in ("ranks", "nodes")] + [document["cores"]]
    positive += [document["link"]["rate"]] if document.get("link") else []
    fitted = [row for row in document["measured"] if row.get("fitted") is True]
    if len(names) != 1 or not next(iter(names)) or not fitted or min(positive) <= 0 or document["error"]["part"] <= -1:
        raise results.ResultsError(f"{file}: the measurements of the prediction contradict each other")
    if not any(world.get("stages") for world in document["worlds"]):
        raise results.ResultsError(f"{file}: {document['worlds'][0].get('why') if document['worlds'] else 'there are no worlds'}")


# ---- the fit ----


@dataclass
class Point:
    """Number of units of each cost, and threads that share a core: a factor of all costs."""

    terms: tuple
    share: float
    ns: float = math.nan
    weight: float = 1.0

    def local_ns(self, cost):
        return float(numpy.dot(self.terms, cost)) * self.share


def make_point(ranks, rows, choices, share, few, ns=math.nan, weight=1.0):
    shared = share > 1
    terms = (
        1, ranks - 1, 0 if few else rows, 0 if few else choices, rows if few else 0,
        shared, rows if shared and not few else 0,
    )  # fmt: skip
    return Point(terms, share, ns, weight)


def _descend(matrix, target):
    """Non-negative least squares by coordinate descent from 0: each term in turn has its best value
    for the current others. Terms that explain the runs equally share the time."""
    normal, right = (matrix.T @ matrix).tolist(), (matrix.T @ target).tolist()
    found = [0.0] * len(right)
    for _ in range(SWEEPS):
        change = 0.0
        for term, row in enumerate(normal):
            rest = right[term] - sum(a * x for a, x in zip(row, found))
            value = max(0.0, found[term] + rest / row[term])
            change = max(change, abs(value - found[term]))
            found[term] = value
        if change <= SETTLED:
            break
    return found


def fit(points):
    """Returns the costs with the least sum of squared relative errors, at least 0. Of terms that are
    proportional in all points the first has the whole cost."""
    parts = numpy.array([[p.weight * p.share * term / p.ns for term in p.terms] for p in points], float)
    weights = numpy.array([p.weight for p in points], float)
    unit = parts.max(axis=0)
    used = []
    for term in range(len(COSTS)):
        column = parts[:, term] / unit[term] if unit[term] > 0 else None
        if column is not None and not any(numpy.allclose(column, parts[:, k] / unit[k], rtol=1e-12) for k in used):
            used.append(term)
    matrix = parts[:, used] / unit[used]
    # With fewer distinct runs than terms, nnls() returns one of many equal fits.
    unique = numpy.linalg.matrix_rank(matrix) == len(used)
    cost = numpy.zeros(len(COSTS))
    cost[used] = (optimize.nnls(matrix, weights)[0] if unique else _descend(matrix, weights)) / unit[used]
    return cost


@dataclass
class Measured:
    """Runs of a world with one number of tokens and choices: a point for each stage."""

    ranks: int
    whole: bool  # all tokens and choices of the file
    fitted: bool
    points: list
    total_ns: float
    second_ns: float  # of the second fastest round


def _measured(document):
    rows = document["measured"]
    size, topk = max(row["size"] for row in rows), max(row["topk"] for row in rows)
    out = []
    for row in rows:
        whole = row["size"] == size and row["topk"] == topk
        points = [
            make_point(row["ranks"], stage["rows"], stage["choices"], row["share"], row["size"] != size,
                       stage["measured_ns"], 1.0 if whole else SIDE_WEIGHT)
            for stage in row["stages"]
        ]  # fmt: skip
        total = row.get("total_ns") or sum(point.ns for point in points)
        out.append(Measured(row["ranks"], whole, row.get("fitted") is True, points, total, row.get("second_ns") or total))
    return out


class Model:
    """Costs of all stages, fitted to all worlds [0], and to all but one world [1] ... The only world
    whose ranks share no core separates the cost of sharing, so all fits have it."""

    def __init__(self, measured, error=None):
        fitted = [one for one in measured if one.fitted]
        self.worlds = list(dict.fromkeys(one.ranks for one in fitted))
        self.costs = []
        for left_out in (None, *self.worlds):
            alone = all((one.points[0].share > 1) == (one.ranks != left_out) for one in fitted)
            keep_all = left_out is None or len(self.worlds) == 1 or alone
            kept = [one for one in fitted if keep_all or one.ranks != left_out]
            phases = range(len(fitted[0].points))
            self.costs.append([fit([one.points[phase] for one in kept]) for phase in phases])
        self.error = self._find_error(fitted) if error is None else math.log1p(error)

    def _find_error(self, fitted):
        """Returns the largest error of whole runs, and the largest difference of rounds, as a
        logarithm."""
        worst = 0.0
        for one in fitted:
            if not one.whole:
                continue
            for costs in (self.costs[0], self.costs[1 + self.worlds.index(one.ranks)]):
                ns = sum(point.local_ns(cost) for point, cost in zip(one.points, costs))
                worst = max(worst, abs(math.log(ns / one.total_ns)), math.log(one.second_ns / one.total_ns))
        return worst


# ---- times ----


def stage_time(local_ns, load, link, signal_ns):
    """Returns the time of a stage and its parts. Without a link the stage stays within a node."""
    time = {"ns": local_ns, "local_ns": local_ns, "bytes_ns": 0.0, "messages_ns": 0.0, "latency_ns": 0.0, "link_bytes": 0.0}
    bound = 0
    if link is not None:
        time["link_bytes"] = load["node_bytes"] if link.node else load["rank_bytes"]
        time["bytes_ns"] = time["link_bytes"] / link.bytes_per_ns
        time["messages_ns"] = load["messages"] * link.message_ns
        time["latency_ns"] = LATENCIES * max(link.latency_ns - signal_ns, 0)
        parts = (local_ns, time["bytes_ns"], time["messages_ns"])
        bound = parts.index(max(parts))
        time["ns"] = max(parts)
        if time["latency_ns"] > time["ns"]:
            bound = 3
        time["ns"] += time["latency_ns"]
    time["bound"] = BOUNDS[bound]
    return time


def _load_of(stage, document, ranks):
    """Returns the traffic of a stage of a predicted world. Documents of older programs have it for
    measured worlds only."""
    keys = ("rows", "choices", "rank_bytes", "node_bytes", "messages")
    if all(key in stage for key in keys):
        return {key: stage[key] for key in keys}
    size = max(row["size"] for row in document["measured"])
    topk = max(row["topk"] for row in document["measured"])
    for row in document["measured"]:
        if (row["ranks"], row["size"], row["topk"]) == (ranks, size, topk):
            same = next(one for one in row["stages"] if one["name"] == stage["name"])
            message_ns = results.at(document, "link.message_ns", 0)
            return {
                "rows": same["rows"], "choices": same["choices"],
                "rank_bytes": stage["link_bytes"], "node_bytes": stage["link_bytes"],
                "messages": stage["messages_ns"] / message_ns if message_ns else 0,
            }  # fmt: skip
    raise results.ResultsError(
        f"{document['file']}: the document has no traffic of {ranks} ranks; a newer epa2a predict writes it"
    )


def _whole_ns(time):
    return {key: round(value) if isinstance(value, float) else value for key, value in time.items()}


def _predict_stages(model, document, world, share, link, signal_ns):
    wide = math.exp(model.error)
    stages = []
    for phase, stage in enumerate(world["stages"]):
        load = _load_of(stage, document, world["ranks"])
        point = make_point(world["ranks"], load["rows"], load["choices"], share, False)
        time = stage_time(point.local_ns(model.costs[0][phase]), load, link, signal_ns)
        low, high = math.inf, 0.0
        for costs in model.costs:
            ns = point.local_ns(costs[phase])
            low = min(low, stage_time(ns / wide, load, link, signal_ns)["ns"])
            one = stage_time(ns * wide, load, link, signal_ns)
            high = max(high, one["ns"] + (LATENCIES_MOST / LATENCIES - 1) * one["latency_ns"])
        stages.append({"name": stage["name"], **time, "low_ns": low, "high_ns": high, **load})
    keys = ("ns", "low_ns", "high_ns", "local_ns", "bytes_ns", "messages_ns", "latency_ns", "link_bytes")
    total = {"name": "total", **{key: sum(stage[key] for stage in stages) for key in keys}}
    total["bound"] = max(stages, key=lambda stage: stage["ns"])["bound"]
    loads = ("rows", "choices", "rank_bytes", "node_bytes", "messages")
    rounded = [{**_whole_ns({k: v for k, v in s.items() if k not in loads}), **{k: s[k] for k in loads}} for s in stages]
    return rounded, total


def _threads(document):
    """Returns the threads of a rank that share the cores of a node; 0 on GPUs."""
    if document.get("threads") is not None:
        return document["threads"]
    here = results.at(document, "machine.cores", 1)
    shared = [row for row in document["measured"] if row["share"] > 1]
    return shared[0]["share"] * here / shared[0]["ranks"] if shared else 1


def _scale(document, worlds, same):
    """Returns the largest number of ranks whose iteration takes less than twice as long as the
    first world."""
    if same and document.get("scales"):
        return document["scales"]
    possible = [world for world in worlds if "total" in world]
    first, before = possible[0], None
    for world in possible:
        ratio = world["total"]["ns"] / first["total"]["ns"]
        if ratio > 2:
            text = (
                f"it scales to {before} rank{'s' if before > 1 else ''}: {world['ranks']} take {ratio:.1f} times as long "
                f"as {first['ranks']}, by {world['total']['bound']}"
            )
            break
        before = world["ranks"]
    else:
        text = f"it scales to all predicted numbers of ranks, up to {before}"
    return {"ranks": before, "first": first["ranks"], "text": text}


def predict(document, link=None, cores=None):
    """Returns a prediction from the measurements and the traffic of a document of predict, with
    its link and cores, or with others."""
    _check(document)
    known = Link.of(document)
    asked = Link.parse(link) if isinstance(link, str) else link or known
    if asked is not None and known is None:
        raise results.ResultsError(f"{document['file']}: the document has no nodes, so --link has no use")
    stages = [stage for world in document["worlds"] for stage in world.get("stages") or []]
    if asked != known and not all("node_bytes" in stage for stage in stages):
        raise results.ResultsError(f"{document['file']}: the document has no bytes of other links; a newer epa2a writes them")
    same = asked == known and cores in (None, document["cores"])
    out = copy.deepcopy(document)
    out["cores"] = cores or document["cores"]
    out["link"] = asked and asked.document()
    measured = _measured(document)
    counted = all("second_ns" in row for row in document["measured"])
    model = Model(measured, None if counted else document["error"]["part"])
    threads, signal_ns = _threads(document), document["signal_ns"]
    base = None
    for world in out["worlds"]:
        if not world.get("stages"):
            continue
        node = world["ranks"] / world["nodes"]
        share = max(1.0, node * threads / out["cores"])
        nodes = asked if world["nodes"] > 1 else None
        stages, total = _predict_stages(model, document, world, share, nodes, signal_ns)
        base = base or total["ns"]
        size = max(row["size"] for row in document["measured"])
        world.update(stages=stages, total=_whole_ns(total), times=total["ns"] / base)
        world["tokens_per_s"] = world["ranks"] * size / total["ns"] * 1e9
    for row, one in zip(out["measured"], measured):
        for stage, point, cost in zip(row["stages"], one.points, model.costs[0]):
            stage["predicted_ns"] = round(point.local_ns(cost))
    names = [stage["name"] for stage in document["measured"][0]["stages"]]
    out["costs"] = [{"name": name, **dict(zip(COSTS, map(float, cost)))} for name, cost in zip(names, model.costs[0])]
    out["scales"] = _scale(document, out["worlds"], same)
    part = math.expm1(model.error)
    out["error"] = {"part": part, "text": re.sub(r"^\d+ %", f"{100 * part:.0f} %", document["error"]["text"])}
    return out


# ---- the program and the report ----


def find_program(path=None):
    """Returns the program epa2a: of the argument, of EPA2A, of this environment, or of PATH."""
    for found in (path, os.environ.get("EPA2A"), os.path.join(sysconfig.get_path("scripts"), "epa2a"), shutil.which("epa2a")):
        if found and os.access(found, os.X_OK):
            return found
        if found and found == path:
            raise results.ResultsError(f"--program {path}: no such program")
    raise results.ResultsError("there is no program epa2a: install it, or name it by --program or EPA2A")


def measure(file, settings=(), link=None, sweep=None, cores=None, program=None):
    """Returns the document of a prediction: of a file that predict --json wrote, or of a
    measurement of an experiment by the program."""
    if str(file).endswith(".json"):
        if settings or sweep:
            raise results.ResultsError(f"{file}: a document has no settings and no sweep; give the experiment instead")
        return next(results.parse(results.read_text(file), file), None)
    command = [find_program(program), "predict", str(file), "--json", "-"]
    for setting in settings:
        command += ["--set", setting]
    for option, value in (("--link", link), ("--sweep", sweep), ("--cores", cores)):
        command += [option, str(value)] if value is not None else []
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = [line.removeprefix("epa2a: ") for line in done.stderr.splitlines()]
        raise results.ResultsError("; ".join(lines) or f"epa2a predict ended with {done.returncode}")
    return json.loads(done.stdout)


def _world_text(world):
    nodes = "one node" if world["nodes"] == 1 else f"{world['nodes']} nodes of {world['ranks'] // world['nodes']}"
    return f"{world['ranks']} rank{'s' if world['ranks'] > 1 else ''}, {nodes}"


def text(document):
    """Returns a prediction as text: the largest world, then a row for each stage or each world."""
    from . import charts_text

    worlds = [world for world in document["worlds"] if "total" in world]
    last, us = worlds[-1], lambda ns: f"{ns / 1e3:.1f}"
    total = last["total"]
    stages = ", ".join(f"{stage['name']} {us(stage['ns'])} us by {stage['bound']}" for stage in last["stages"])
    lines = [
        f"{_world_text(last)}: {us(total['ns'])} us, {us(total['low_ns'])} to {us(total['high_ns'])}: {stages}; "
        f"{document['scales']['text']}",
        "",
    ]
    if document.get("sweep"):
        head = ["ranks", "nodes", "time [us]", "from", "to", "times", "bound"]
        rows = [
            [str(w["ranks"]), str(w["nodes"]), us(w["total"]["ns"]), us(w["total"]["low_ns"]), us(w["total"]["high_ns"]),
             f"{w['times']:.2f}", w["total"]["bound"]]
            for w in worlds
        ]  # fmt: skip
    else:
        head = ["stage", "time [us]", "from", "to", "local", "link", "messages", "bound"]
        keys = ("ns", "low_ns", "high_ns", "local_ns", "bytes_ns", "messages_ns")
        rows = [[s["name"], *[us(s[key]) for key in keys], s["bound"]] for s in [*last["stages"], total]]
    lines += charts_text.table(head, rows, 120) + [""]
    lines += [f"{world['ranks']} ranks: {world['why']}" for world in document["worlds"] if world.get("why")]
    lines += [f"measured here: {document['measured_text']}", *document.get("notes", []), f"error: {document['error']['text']}"]
    return "\n".join(lines)
