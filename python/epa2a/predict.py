"""Predicts the times of more ranks from short runs with few ranks.

    from epa2a import predict

    document = predict.measure("ll_v2-shm", ["ranks=64", "ranks_per_node=8"], link="9GB/s,2us")
    predict.predict(document)                        # the prediction, as a document
    predict.predict(document, link="50GB/s,1us")     # another link, without another measurement
    predict.frame(predict.predict(document))         # a row for each stage of each world, in pandas

The program epa2a measures worlds of 2, 4, 8 ranks, and counts the traffic of the predicted ones from
the routing of all their ranks (predict_measure.py). A world is a job of a given number of ranks. Each
stage has a model of additive costs: of a call, of a peer, of a row and of a choice, of a row if there
are few rows, and of a call and a row if ranks share a core. The costs are the non-negative least
squares of relative errors. A stage takes the longest of the local work of its busiest rank, of the
bytes over the busiest link, and of the messages of the busiest rank, plus two latencies of the link.
"""

import copy
import math
from dataclasses import dataclass

import numpy
import pandas
from scipy import optimize

from . import results
from .predict_link import Link, check_link
from .predict_measure import measure  # noqa: F401  users of predictions need no second module

COSTS = ("call_ns", "peer_ns", "row_ns", "choice_ns", "few_row_ns", "shared_call_ns", "shared_row_ns")
SIDE_WEIGHT = 0.25  # of runs with fewer tokens or choices than the file has
LATENCIES = 2  # of the link in a stage: the barrier before it and its rows
# Largest measured time of a stage in latencies: a dispatch of ll_v2, which exchanges counts first, took 4.0 to 4.2
# with UCX over TCP and delays of 5 and 50 ms. The model has no dependencies between messages.
LATENCIES_MOST = 4
RANKS_MOST = 65536  # of a predicted world
SWEEPS, SETTLED = 500000, 1e-13  # of a fit by coordinate descent
BOUNDS = ("local copy", "link bandwidth", "link messages", "link latency")

# ---- the document ----

_N, _T = results.NUMBER, results.TEXT
_load = {"name!": _T, "rows!": _N, "choices!": _N, "rank_bytes!": _N, "node_bytes!": _N, "messages!": _N}
_document = {
    "file!": _T, "low!": _N, "ranks!": _N, "per_node!": _N, "cores!": _N, "threads!": _N, "signal_ns!": _N, "algorithm!": _T,
    "link": {"rate!": _N, "latency_ns!": _N, "message_ns!": _N, "of!": _T}, "dropped": [_T],
    "measured!": [{
        "ranks!": _N, "size!": _N, "topk!": _N, "share!": _N, "total_ns!": _N, "second_ns!": _N,
        "stages!": [{"name!": _T, "measured_ns!": _N, "rows!": _N, "choices!": _N}],
    }],
    "counted!": [{
        "ranks!": _N, "nodes!": _N, "why": _T, "planned_ranks": _N, "heap_bytes": _N, "memory_bytes": _N, "stages": [_load],
    }],
    "check": [{"name!": _T, "measured_ns": _N}],
}  # fmt: skip


def _check(document):
    """Refuses a document that is no prediction, with the first reason."""
    results.check_shape("this is no document of epa2a predict --json", document, _document)
    file, names = document["file"], {tuple(s["name"] for s in row["stages"]) for row in document["measured"]}
    possible = [world for world in document["counted"] if world.get("stages")]
    names.update(tuple(s["name"] for s in world["stages"]) for world in possible)
    positive = [row[key] for row in document["measured"] for key in ("ranks", "size", "share", "total_ns", "second_ns")]
    positive += [stage["measured_ns"] for row in document["measured"] for stage in row["stages"]]
    positive += [world[key] for world in document["counted"] for key in ("ranks", "nodes")]
    positive += [world.get(key) or 0 for world in possible for key in ("planned_ranks", "memory_bytes")]
    positive += [document[key] for key in ("low", "ranks", "per_node", "cores")]
    positive += [document["link"]["rate"]] if document.get("link") else []
    fitted = [row for row in document["measured"] if row.get("fitted") is True]
    low = [world for world in possible if world["ranks"] == document["low"]]
    if len(names) != 1 or not next(iter(names)) or not fitted or not low or min(positive) <= 0:
        raise results.ResultsError(f"{file}: the measurements of the prediction contradict each other")


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
        out.append(Measured(row["ranks"], whole, row.get("fitted") is True, points, row["total_ns"], row["second_ns"]))
    return out


class Model:
    """Costs of all stages, fitted to all worlds [0], and to all but one world [1] ... The only world
    whose ranks share no core separates the cost of sharing, so all fits have it."""

    def __init__(self, measured):
        fitted = [one for one in measured if one.fitted]
        self.worlds = list(dict.fromkeys(one.ranks for one in fitted))
        self.costs = []
        for left_out in (None, *self.worlds):
            alone = all((one.points[0].share > 1) == (one.ranks != left_out) for one in fitted)
            keep_all = left_out is None or len(self.worlds) == 1 or alone
            kept = [one for one in fitted if keep_all or one.ranks != left_out]
            phases = range(len(fitted[0].points))
            self.costs.append([fit([one.points[phase] for one in kept]) for phase in phases])
        self.error = self._find_error(fitted)

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


def _whole(number):
    """Returns a number as the program rounds it: halves go up."""
    return math.floor(number + 0.5)


_TIMES = ("ns", "low_ns", "high_ns", "local_ns", "bytes_ns", "messages_ns", "latency_ns", "link_bytes")
_LOADS = ("rows", "choices", "rank_bytes", "node_bytes", "messages")


def _whole_stage(name, time):
    return {"name": name, **{key: _whole(time[key]) for key in _TIMES}, "bound": time["bound"]}


class _Predictor:
    """Predicts worlds of a document from the costs of its measured runs."""

    def __init__(self, document, link, cores):
        self.document, self.link, self.cores = document, link, cores
        self.measured = _measured(document)
        self.model = Model(self.measured)
        self.counted = {world["ranks"]: world for world in document["counted"]}
        self.size = max(row["size"] for row in document["measured"])
        self.times = {}

    def stages(self, world):
        """Returns the times of a world's stages, and of all together."""
        signal_ns, wide = self.document["signal_ns"], math.exp(self.model.error)
        link = self.link if world["nodes"] > 1 else None
        share = max(1.0, world["ranks"] / world["nodes"] * self.document["threads"] / self.cores)
        times = []
        for phase, load in enumerate(world["stages"]):
            point = make_point(world["ranks"], load["rows"], load["choices"], share, False)
            time = stage_time(point.local_ns(self.model.costs[0][phase]), load, link, signal_ns)
            low, high = math.inf, 0.0
            for costs in self.model.costs:
                ns = point.local_ns(costs[phase])
                low = min(low, stage_time(ns / wide, load, link, signal_ns)["ns"])
                one = stage_time(ns * wide, load, link, signal_ns)
                high = max(high, one["ns"] + (LATENCIES_MOST / LATENCIES - 1) * one["latency_ns"])
            times.append({**time, "low_ns": low, "high_ns": high})
        total = {key: sum(time[key] for time in times) for key in _TIMES}
        total["bound"] = max(times, key=lambda time: time["ns"])["bound"]
        return times, total

    def world(self, ranks):
        """Returns the prediction of a world, or a world with the reason why it is not possible."""
        world = self.counted[ranks]
        if not world.get("stages"):
            return {"ranks": ranks, "nodes": world["nodes"], "why": world.get("why") or "rejected"}
        if ranks not in self.times:
            self.times[ranks] = self.stages(world)
        times, total = self.times[ranks]
        total = _whole_stage("total", total)
        return {
            **{key: world.get(key) for key in ("ranks", "nodes", "planned_ranks", "heap_bytes", "memory_bytes")},
            "tokens_per_s": ranks * self.size / total["ns"] * 1e9 if total["ns"] > 0 else None,
            "stages": [
                {**_whole_stage(load["name"], time), **{key: load[key] for key in _LOADS}}
                for load, time in zip(world["stages"], times)
            ],
            "total": total,
        }


def _doublings(first, last):
    while first <= last:
        yield first
        first *= 2


def _scale(predictor):
    """Returns the largest number of ranks whose iteration takes less than twice as long as in the first world, and
    the time of this world."""
    document, link = predictor.document, predictor.link
    first = min(document["per_node"], document["low"])
    base, before = None, 0
    text = "it scales to all predicted numbers of ranks" if link is not None else "--link adds other nodes"
    for ranks in _doublings(first, RANKS_MOST if link is not None else document["per_node"]):
        if ranks not in predictor.counted:
            text = f"it scales to {before} ranks at least"
            break
        world = predictor.world(ranks)
        if "why" in world:
            text = (
                f"it scales to {before} ranks: {ranks} are {world['why']}" if before
                else f"{ranks} ranks, or {ranks}, are {world['why']}"
            )  # fmt: skip
            break
        ns = world["total"]["ns"]
        base = base or ns
        if ns > 2 * base:
            text = (
                f"it scales to {before} rank{'s' if before > 1 else ''}: {ranks} take {ns / base:.1f} times as long as "
                f"{first}, by {world['total']['bound']}"
            )
            break
        before = ranks
    return {"ranks": before, "first": first, "text": text}, base


def _measured_text(document):
    parts = []
    for ranks in dict.fromkeys(row["ranks"] for row in document["measured"] if row.get("fitted") is True):
        row = next(row for row in document["measured"] if row["ranks"] == ranks)
        share = f" ({row['share']:g} to a core)" if row["share"] > 1 else ""
        parts.append(f"{ranks} ranks {row['total_ns'] / 1e3:.1f} us{share}")
    return ", ".join(parts) + "; the fastest of 3 rounds"


def _notes(document, world, worlds_measured, cores):
    """Returns what a reader must know of a prediction."""
    notes = list(document.get("dropped") or [])
    node = min(document["ranks"], document["per_node"])
    share = max(1, node * document["threads"] / cores)
    if share > 1:
        notes.append(
            f"{node} ranks of a node share {cores} cores: local work takes {share:g} times as long; --cores sets the "
            "cores of a node"
        )
    if world["planned_ranks"] < world["ranks"]:
        notes.append(
            f"{document['algorithm']} supports up to {world['planned_ranks']} ranks: memory and messages of larger "
            "worlds are extrapolated from its plan for these"
        )
    if worlds_measured < 2:
        notes.append("only one world could be measured: the cost of a peer is not known and is taken as 0")
    return notes


def _error(document, model):
    part = math.expm1(model.error)
    nodes = "; the values of --link are not checked" if document["ranks"] > document["per_node"] else ""
    return {
        "part": part,
        "text": f"{100 * part:.0f} %: largest error of the predictions for the measured worlds, by all costs and with "
        f"one world left out, and largest difference of rounds{nodes}",
    }


def _checks(document, world):
    """Returns predicted and measured times of the requested world."""
    times = {stage["name"]: stage["ns"] for stage in [*world["stages"], world["total"]]}
    rows = [row for row in document.get("check") or [] if row["name"] in times]
    return [
        {"name": row["name"], "predicted_ns": times[row["name"]], "measured_ns": row.get("measured_ns"),
         "ratio": times[row["name"]] / row["measured_ns"] if row.get("measured_ns") else None}
        for row in rows
    ] or None  # fmt: skip


def requested_world(document):
    """Returns the requested world of a prediction; of a sweep the largest possible one."""
    return [world for world in document["worlds"] if "total" in world][-1]


def predict(document, link=None, cores=None):
    """Returns a prediction from the measurements and the traffic of a document of predict, with
    its link and cores, or with others."""
    _check(document)
    link = Link.parse(link) if isinstance(link, str) else link or Link.of(document)
    check_link(document, link)
    out = copy.deepcopy(document)
    out["link"], out["cores"] = link and link.document(), cores or document["cores"]
    predictor = _Predictor(document, link, out["cores"])
    model = predictor.model
    asked = [ranks for ranks in _doublings(document["low"], document["ranks"]) if ranks in predictor.counted]
    out["worlds"] = [predictor.world(ranks) for ranks in asked]
    out["scales"], base = _scale(predictor)
    for world in out["worlds"]:
        world["times"] = world["total"]["ns"] / base if base and "total" in world else None
    for row, one in zip(out["measured"], predictor.measured):
        for stage, point, cost in zip(row["stages"], one.points, model.costs[0]):
            stage["predicted_ns"] = _whole(point.local_ns(cost))
    out["measured_text"] = _measured_text(document)
    names = [stage["name"] for stage in document["measured"][0]["stages"]]
    out["costs"] = [{"name": name, **dict(zip(COSTS, map(float, cost)))} for name, cost in zip(names, model.costs[0])]
    world = requested_world(out)
    out["notes"] = _notes(document, world, len(model.worlds), out["cores"])
    out["error"] = _error(document, model)
    out["check"] = _checks(document, world)
    return out


def frame(document):
    """Returns a prediction in pandas: a row for each stage of each world and for their total; `refused` is the reason
    why a world is not possible."""
    keys = {"ns": "ns", "low_ns": "low_ns", "high_ns": "high_ns", "local_ns": "local_ns", "bytes_ns": "link_ns",
            "messages_ns": "messages_ns", "latency_ns": "latency_ns", "link_bytes": "link_bytes"}  # fmt: skip
    rows = []
    for world in document["worlds"]:
        head = {"ranks": world["ranks"], "nodes": world["nodes"]}
        for stage in [*world["stages"], world["total"]] if "total" in world else []:
            times = {name: stage[key] for key, name in keys.items()}
            more = {"bound": stage["bound"], "memory_bytes": world["memory_bytes"]}
            rows.append({**head, "stage": stage["name"], **times, **more})
        if "total" not in world:
            rows.append({**head, "refused": world["why"]})
    columns = ["ranks", "nodes", "stage", *keys.values(), "bound", "memory_bytes", "refused"]
    whole = dict.fromkeys(["ranks", "nodes", *keys.values(), "memory_bytes"], "Int64")
    return pandas.DataFrame(rows, columns=columns).astype(whole)
