"""Comparison of runs: the fastest setting of each problem, with the rules of `epa2a best`.

Runs of one problem, measured in the same way, form a group. A contest holds the runs of a group
with one size; a candidate holds the repetitions of one run. The bounds of a candidate's median are
over its runs, or over blocks of neighbouring samples if it ran once.

Verdicts against the candidate with the least median:
best     this candidate
slower   slower by more than `close`, and the bounds of both medians do not meet
close    slower by up to `close`, whatever the bounds
unclear  slower by more than `close`, and the bounds meet or are of too few runs

Few runs bound a median with less than 95 %, so a conclusion needs more:
`as_fast` is stronger than close: the upper bound of the loss is within `close`, too, and is a bound with 95 %.
`is_certain` is false if the bounds do not meet, but runs without a difference are as far apart in more than 5 %.
"""

import json
import math
from dataclasses import dataclass, field

import numpy
from scipy import stats

from . import results

CLOSE = 0.03
INTERVAL_LEAST = 6  # values; fewer have no 95 % interval of the median
BOUND_LEAST = 5  # values; the largest of fewer is below the median in more than 5 %
ACROSS = ("layout", "rows", "outputs", "fused", "unknown")


# ---- statistics ----


def interval_of_median(n):
    """Returns k: the k-th smallest and the k-th largest of n values bound the median with 95 %."""
    return int(stats.binom.ppf(0.025, n, 0.5)) if n >= INTERVAL_LEAST else 0


def are_separable(n, m):
    """Returns whether the bounds of n and m runs without a difference meet in 95 % or more: in any order all n runs
    precede or follow the m runs with this chance."""
    return 2 / math.comb(n + m, n) <= 0.05


def median(values):
    """Returns the median by nearest rank: the lower of the two middle values."""
    return float(numpy.sort(values)[(len(values) - 1) // 2])


def block_medians(values):
    """Returns the medians of blocks of neighbouring samples, sqrt(n) samples long. Neighbouring
    samples are correlated, so each block counts once."""
    n = len(values)
    blocks = n // max(int(math.sqrt(n)), 1)
    return [median(values[k * n // blocks : (k + 1) * n // blocks]) for k in range(blocks)]


@dataclass
class Spread:
    """A median with bounds of 95 %; `units` runs or blocks determine the bounds."""

    median: float
    low: float
    high: float
    units: int


def spread_of(runs):
    """Returns the spread of repetitions of one run, each an array of samples. With fewer than
    INTERVAL_LEAST units the bounds are the least and the largest unit."""
    by_run = len(runs) > 1
    units = numpy.sort([median(run) for run in runs] if by_run else block_medians(runs[0]))
    k = interval_of_median(len(units))
    middle = results.percentile(units, 500) if by_run else median(runs[0])
    low, high = (units[k - 1], units[len(units) - k]) if k > 0 else (units[0], units[-1])
    if k == 0 and not by_run:
        low, high = min(low, min(runs[0])), max(high, max(runs[0]))
    return Spread(middle, float(min(low, middle)), float(max(high, middle)), len(units))


def ratio_of(a, b):
    """Returns b / a, and 1 for two times below one step of the clock."""
    if a == 0:
        return 1.0 if b == 0 else math.inf
    return b / a


def verdict_of(ratio, low, high, close=CLOSE):
    """Returns the verdict on a ratio of times with its bounds."""
    if 1 / (1 + close) <= ratio <= 1 + close:
        return "close"
    if low > 1:
        return "slower"
    return "faster" if high < 1 else "unclear"


def ratio_with_bounds(base, one):
    """Returns the ratio of two spreads, one / base, with the bounds that both leave open."""
    return (
        ratio_of(base.median, one.median),
        ratio_of(base.high, one.low),
        ratio_of(base.low, one.high),
    )


# ---- groups ----


def question(run, across=()):
    """Returns the problem of a run as text: two runs are comparable if it is equal."""
    size = results.SIZES[results.size_key(run)][0]
    experiment = results.flatten(run.get("experiment"))
    shape = {k: v for k, v in experiment.items() if not results.is_below(k, results.MEANS + results.MEASURES)}
    if isinstance(shape.get(size), (int, float)) and shape[size] > 0:
        del shape[size]
    machine = results.flatten(run.get("machine"))
    asked = {
        "verb": run.get("verb"),
        "shape": shape,
        "machine": {k: v for k, v in machine.items() if not results.is_below(k, results.VARYING)},
        "timing": run.get("timing"),
        "delivers": {k: v for k, v in (run.get("delivers") or {}).items() if k not in across},
    }
    if run.get("source") is not None:
        asked["source"] = [results.at(run, "source.program"), results.at(run, "source.clock")]
    if run.get("delivers") is None:
        asked["delivers"] = None
    return json.dumps(asked, sort_keys=True)


def agree(one, other):
    """Returns True if two problems agree in all keys known for both, except machine, clock and
    size: imported runs have few keys."""
    one, other = json.loads(one), json.loads(other)
    for part in ("shape", "delivers"):
        theirs = other[part] or {}
        for key, value in (one[part] or {}).items():
            if key in theirs and value != theirs[key] and "unknown" not in (value, theirs[key]):
                return False
    return (one["delivers"] is None) == (other["delivers"] is None)


@dataclass
class Candidate:
    """A setting at one size. Losses are fractions of the best time: 0.1 is 10 % slower."""

    name: str
    labels: list
    runs: int
    spread: Spread
    loss: float = 0.0
    loss_low: float = math.nan
    loss_high: float = math.nan
    verdict: str = "best"
    as_fast: bool = True
    is_certain: bool = True

    def loss_text(self):
        if self.verdict == "best":
            return "best"
        loss = f"{100 * self.loss:+.1f} %"
        bounds = f" ({100 * self.loss_low:+.1f} % to {100 * self.loss_high:+.1f} %)"
        if self.verdict == "unclear":
            return f"{loss} unclear{bounds}" + ("" if self.is_certain else ", too few runs")
        if self.verdict == "close":
            return f"{loss} close" + ("" if self.as_fast else f", undecided{bounds}")
        return loss


@dataclass
class Contest:
    size: float
    candidates: list

    def sentence(self, unit):
        """Returns the conclusion that the statistics support. A run is called fastest only if all
        others are slower, and as fast only if the bounds of its loss are close, too."""
        first, others = self.candidates[0], self.candidates[1:]
        head = f"{self.size:.0f} {unit}: {first.name}, {first.spread.median / 1e3:.2f} us"
        if not others:
            return head
        equal = [one for one in others if one.verdict == "close" and one.as_fast]
        slower = [one for one in others if one.verdict == "slower"]
        open_ones = [one for one in others if one not in equal and one not in slower]
        if not equal and not open_ones:
            return f"{head} is fastest, before {slower[0].name} ({slower[0].loss_text()})"
        parts = [head + " has the least median"]
        if equal:
            parts.append("as fast: " + _some([f"{one.name} ({100 * one.loss:+.1f} %)" for one in equal]))
        if open_ones:
            parts.append(
                "undecided: "
                + _some(
                    [
                        f"{one.name} ({100 * one.loss:+.1f} %, {100 * one.loss_low:+.1f} % to "
                        f"{100 * one.loss_high:+.1f} %)"
                        for one in open_ones
                    ]
                )
            )
        if slower:
            parts.append("slower: " + _some([f"{one.name} ({100 * one.loss:+.1f} %)" for one in slower]))
        return "; ".join(parts)


@dataclass
class Group:
    title: str
    delivers: str
    note: str
    unit: str
    question: str
    document: dict
    contests: list = field(default_factory=list)
    overall: tuple = None  # name, mean ratio, worst ratio: one setting for all sizes


def _some(names, most=3):
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _delivery(run, across, inverted=False):
    parts = []
    for key, value in (run.get("delivers") or {}).items():
        if (key in across) == inverted or value is None:
            continue
        if key == "fused":
            parts.append("fused" if value is True else "not fused")
        elif key == "layout":
            parts.append(f"a row per {value}" if value in ("expert", "rank") else f"layout {value}")
        else:
            parts.append(f"{key} {value}")
    return ", ".join(parts)


def _title(run):
    experiment = run.get("experiment") or {}
    operation = results.size_key(run)
    size = results.SIZES[operation][0]
    ranks = experiment.get("ranks")
    parts = [f"{ranks} ranks" if ranks is not None else "ranks unknown"]
    if isinstance(results.at(experiment, "model.name"), str):
        parts.append(f"model {experiment['model']['name']}")
    for section in (*results.SIZES[operation][3], "expert"):
        value = experiment.get(section)
        if not isinstance(value, dict):
            continue
        keys = [f"{k} {results.show(v)}" for k, v in value.items() if f"{section}.{k}" != size and k != "kind"]
        kind = f" {value['kind']}" if value.get("kind") else ""
        parts.append(f"{section}{kind}" + (" " + ", ".join(keys) if keys else ""))
    return "; ".join(parts)


def _difference(one, other):
    """Returns the first difference between two problems in words."""
    for part in ("shape", "machine"):
        a, b = json.loads(one)[part], json.loads(other)[part]
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                return f"{key}: {json.dumps(a.get(key))}, and {json.dumps(b.get(key))}"
    return "timed in another way"


def _number_groups(runs, across):
    """Returns the number of the group of each run, in the order of the first runs. Imported runs
    follow; with `unknown` each joins the first group that agrees with it."""
    known, number = {}, {}
    for imported in (False, True):
        for index, run in runs.items():
            if (run.get("source") is not None) != imported:
                continue
            asked = question(run, across)
            if asked not in known and imported and "unknown" in across:
                known[asked] = next((n for other, n in known.items() if agree(asked, other)), None)
            if known.get(asked) is None:
                known[asked] = len(set(number.values()))
            number[index] = known[asked]
    return number


def compare_candidates(candidates, close=CLOSE):
    """Sorts candidates by median and sets their losses and verdicts."""
    candidates.sort(key=lambda one: one.spread.median)
    for one in candidates[1:]:
        ratio, low, high = ratio_with_bounds(candidates[0].spread, one.spread)
        one.loss, one.loss_low, one.loss_high = ratio - 1, low - 1, high - 1
        one.verdict = verdict_of(ratio, low, high, close)
        runs = candidates[0].spread.units, one.spread.units
        one.as_fast = high <= 1 + close and min(runs) >= BOUND_LEAST
        one.is_certain = one.verdict != "slower" or are_separable(*runs)
        if not one.is_certain:
            one.verdict = "unclear"
    return candidates


def _overall(contests):
    """Returns the setting with the least geometric mean of losses over all sizes."""
    found = None
    for one in contests[0].candidates if len(contests) > 1 else ():
        same = [next((c for c in contest.candidates if c.name == one.name), None) for contest in contests]
        if None in same:
            continue
        mean = math.exp(sum(math.log1p(c.loss) for c in same) / len(same))
        if found is None or mean < found[1]:
            found = (one.name, mean, 1 + max(c.loss for c in same))
    return found


def best(frame, stage=None, only=(), across=(), close=CLOSE):
    """Returns the groups of a frame of results.load(), each with its contests."""
    rows = results.choose(frame, stage, only)
    rows = rows[~rows["fault"].astype(bool)]
    if len(rows) == 0:
        raise results.ResultsError("all runs have planted faults, which are not compared")
    unknown = [key for key in across if key not in ACROSS]
    if unknown:
        raise results.ResultsError(f"across: '{unknown[0]}' is none of {', '.join(ACROSS)}")
    runs = dict(zip(rows.index, rows["document"]))
    number = _number_groups(runs, across)
    groups = []
    for wanted in range(len(set(number.values()))):
        members = rows.loc[[index for index in rows.index if number[index] == wanted]]
        documents = list(members["document"])
        names = results.name_runs(documents)
        for place, run in enumerate(documents):
            names[place] += " (imported)" if run.get("source") is not None else ""
            extra = _delivery(run, across, inverted=False) if across else ""
            names[place] += f" [{extra}]" if extra else ""
        first = next((run for run in documents if run.get("source") is None), documents[0])
        operation = results.size_key(first)
        group = Group(_title(first), _delivery(first, across, inverted=True), "",
                      results.SIZES[operation][1], question(first, across), first)  # fmt: skip
        earlier = next((g for g in groups if (g.title, g.delivers) == (group.title, group.delivers)), None)
        group.note = _difference(group.question, earlier.question) if earlier else ""
        members = members.assign(setting=names, size=members["size"].fillna(0))
        for size, contest in members.groupby("size"):
            candidates = [
                Candidate(name, list(one["label"]), len(one), spread_of(list(one["samples_ns"])))
                for name, one in contest.groupby("setting")
            ]
            group.contests.append(Contest(size, compare_candidates(candidates, close)))
        group.overall = _overall(group.contests)
        groups.append(group)
    return groups
