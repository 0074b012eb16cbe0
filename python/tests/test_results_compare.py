"""epa2a.results_compare: intervals and verdicts are those of `epa2a best`."""

import json
import random
import subprocess

import pytest

import made
from epa2a import results, results_compare

V1 = {"experiment__algorithm__name": "ll_v1"}
DEDUP = {"experiment__algorithm__dedup": True}
SEED = random.Random(5)
CASES = {
    "noise": [
        made.run("a", 100, 5, 0.2, SEED), made.run("b", 130, 5, 0.2, SEED, **V1), made.run("c", 400, spread=SEED, **DEDUP)
    ],
    "repetitions": [
        made.run("a #1", 100, spread=SEED), made.run("a #2", 120, spread=SEED), made.run("b #1", 110, spread=SEED, **V1),
        made.run("b #2", 130, spread=SEED, **V1), made.run("c", 300, spread=SEED, **DEDUP),
    ],
    "sizes": [made.run(f"{n} {a}", t * n, 301, 0.01, SEED, experiment__moe__max_tokens=n,
                       experiment__algorithm__name=a) for n in (1, 8, 64) for a, t in (("x", 50), ("y", 51), ("z", 70))],
    "groups": [
        made.run("a", 100, spread=SEED), made.run("b", 50, spread=SEED, delivers__rows="bf16"),
        made.run("c", 40, spread=SEED, machine__cores=64), made.run("d", 1, spread=SEED, fault={}),
    ],
    "many": [made.run(f"{a} #{k}", t, 50, 0.1, SEED, experiment__algorithm__name=a)
             for k in range(7) for a, t in (("x", 100), ("y", 104))],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdicts_equal_those_of_the_program(tmp_path, case):
    path = made.write(tmp_path / "r.json", *CASES[case])
    done = subprocess.run([made.program(), "best", path, "--json", "-"], capture_output=True, text=True, check=True)
    theirs, ours = json.loads(done.stdout)["best"], results_compare.best(results.load(path))
    assert [group.title for group in ours] == [group["title"] for group in theirs]
    for group, other in zip(ours, theirs):
        assert [
            (one.name, one.verdict, round(one.spread.low), round(one.spread.median), round(one.spread.high))
            for contest in group.contests for one in contest.candidates
        ] == [
            (run["name"], run["verdict"], run["low_ns"], run["median_ns"], run["high_ns"])
            for contest in other["contests"] for run in contest["runs"]
        ]  # fmt: skip
        overall = other["overall"]
        assert (group.overall and group.overall[0]) == (overall and overall["name"])


def test_an_undecided_run_is_never_as_fast():
    """A close median with wide bounds is undecided; with narrow bounds it is as fast."""
    spread = random.Random(3)
    wide = [made.run("a", 100, 5, 0.3, spread), made.run("b", 101, 5, 0.3, spread, **V1)]
    candidates = [
        results_compare.Candidate(run["label"], [], 1, results_compare.spread_of([run["stages"][2]["samples_ns"]]))
        for run in wide
    ]
    candidates[1].spread.median = candidates[0].spread.median * 1.01
    sentence = results_compare.Contest(8, results_compare.compare_candidates(candidates)).sentence("tokens")
    assert "undecided: b" in sentence and "as fast" not in sentence and "fastest" not in sentence
    narrow = [
        results_compare.Candidate("a", [], 1, results_compare.Spread(100, 99.9, 100.1, 20)),
        results_compare.Candidate("b", [], 1, results_compare.Spread(101, 100.9, 101.1, 20)),
        results_compare.Candidate("c", [], 1, results_compare.Spread(150, 149, 151, 20)),
    ]
    sentence = results_compare.Contest(8, results_compare.compare_candidates(narrow)).sentence("tokens")
    assert "as fast: b (+1.0 %)" in sentence and "slower: c (+50.0 %)" in sentence and "undecided" not in sentence
    only = results_compare.Contest(8, results_compare.compare_candidates([narrow[0], narrow[2]]))
    assert "a, 0.10 us is fastest, before c" in only.sentence("tokens")


def test_imported_runs_join_a_group_on_request(tmp_path):
    other = made.run("log", 90, samples=1, experiment={"moe": {"max_tokens": 8, "hidden": 7168}}, machine={},
                     source={"program": "p", "clock": None}, timing=None)  # fmt: skip
    frame = results.load(made.write(tmp_path / "r.json", made.run("a", 100), other))
    assert len(results_compare.best(frame)) == 2
    groups = results_compare.best(frame, across=("unknown",))
    assert len(groups) == 1 and groups[0].contests[0].candidates[0].name == "?/? (imported)"
    with pytest.raises(results.ResultsError, match="layuot"):
        results_compare.best(frame, across=("layuot",))
