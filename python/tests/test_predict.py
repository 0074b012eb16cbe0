"""epa2a.predict: predictions equal those of the C program on recorded documents."""

import copy
import json
import pathlib

import numpy
import pytest

import made
from epa2a import predict, results

PARTS = ("ns", "low_ns", "high_ns", "local_ns", "bytes_ns", "messages_ns", "latency_ns", "link_bytes")


def costs_document(cost, link="1GB/s,2us", worlds=((2, 1), (8, 4), (64, 32)), noise=()):
    """Returns a document of worlds whose times follow exactly from the costs of one stage."""
    rows = {2: 100.0, 3: 130.0, 4: 140.0, 8: 160.0, 16: 170.0, 64: 180.0}
    measured = []
    for place, (ranks, size, share) in enumerate([(r, s, max(1, r / 3)) for r in (2, 3, 4, 8, 16) for s in (16, 1)]):
        few = size == 1
        point = predict.make_point(ranks, rows[ranks] / (16 if few else 1), rows[ranks], share, few)
        ns = point.local_ns(cost) * (1 + (noise[place] if noise else 0))
        stage = {"name": "dispatch", "measured_ns": ns, "predicted_ns": 0, "rows": rows[ranks] / (16 if few else 1),
                 "choices": rows[ranks]}  # fmt: skip
        measured.append({"ranks": ranks, "size": size, "topk": 4, "share": share, "fitted": True, "total_ns": ns,
                         "second_ns": ns, "stages": [stage]})  # fmt: skip
    found = [
        {"ranks": ranks, "nodes": nodes, "total": {}, "stages": [
            {"name": "dispatch", "rows": rows[ranks], "choices": rows[ranks], "rank_bytes": 1000.0 * ranks,
             "node_bytes": 2000.0 * ranks, "messages": 10.0 * ranks, "link_bytes": 0, "latency_ns": 0, "bytes_ns": 0}]}
        for ranks, nodes in worlds
    ]  # fmt: skip
    return {
        "file": "made up", "link": predict.Link.parse(link).document(), "cores": 2, "threads": 1, "signal_ns": 100.0,
        "sweep": True, "worlds": found, "measured": measured, "measured_text": "", "scales": None,
        "error": {"part": 0.0, "text": "0 %: largest error"},
    }  # fmt: skip


COST = numpy.array([500, 100, 10, 0, 5, 2000, 3], float)


def test_costs_are_recovered_and_overlaps_follow_the_model():
    prediction = predict.predict(costs_document(COST))
    (found,) = prediction["costs"]
    assert [found[key] for key in predict.COSTS] == pytest.approx(list(COST), abs=1e-6)
    assert prediction["error"]["part"] == pytest.approx(0, abs=1e-9)
    one, eight, large = prediction["worlds"]
    assert one["stages"][0]["ns"] == 500 + 100 + 1000 and one["stages"][0]["bound"] == "local copy"
    assert eight["stages"][0]["local_ns"] == 500 + 700 + 1600
    assert (eight["stages"][0]["bytes_ns"], eight["stages"][0]["latency_ns"]) == (8000, 3800)
    assert eight["total"]["ns"] == 11800 and eight["total"]["bound"] == "link bandwidth"
    assert eight["total"]["high_ns"] == 11800 + 3800
    assert large["times"] == pytest.approx((64000 + 3800) / 1600)


def test_other_links_and_cores_need_no_measurement():
    document = costs_document(COST)
    before = copy.deepcopy(document)
    fast = predict.predict(document, link="100GB/s,200ns,50ns,node", cores=1)
    assert document == before and fast["link"]["of"] == "node" and fast["cores"] == 1
    stage = fast["worlds"][1]["stages"][0]
    assert (stage["link_bytes"], stage["bytes_ns"], stage["messages_ns"]) == (16000, 160, 4000)
    assert stage["local_ns"] == 2 * (500 + 700 + 1600 + 2000 + 480)  # two ranks of a node share its core


def test_noise_widens_the_bounds():
    prediction = predict.predict(costs_document(COST, noise=[0, 0.1, -0.1, 0.05, 0.2, -0.1] * 2))
    assert prediction["error"]["part"] > 0.05
    for world in prediction["worlds"]:
        assert world["total"]["low_ns"] <= world["total"]["ns"] <= world["total"]["high_ns"]


# epa2a predict x.yaml --set ranks_per_node=2 --link LINK --sweep ranks=2:8 --json -, one document a line: for ll_v2
# with and without dedup, hidden 256, 32 experts, topk 4 and 16 tokens, over two links.
RECORDED = pathlib.Path(__file__).with_name("predictions.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: json.loads(line)["file"])
def test_predictions_equal_those_of_the_program(line):
    document = json.loads(line)
    prediction = predict.predict(document)
    for theirs, ours in zip(document["worlds"], prediction["worlds"], strict=True):
        for one, other in zip([*theirs["stages"], theirs["total"]], [*ours["stages"], ours["total"]], strict=True):
            assert one["bound"] == other["bound"]
            for part in PARTS:
                assert other[part] == pytest.approx(one[part], abs=3, rel=1e-6), (theirs["ranks"], one["name"], part)
        assert ours["times"] == pytest.approx(theirs["times"], rel=1e-3)
    assert prediction["error"]["part"] == pytest.approx(document["error"]["part"], rel=1e-6)
    for theirs, ours in zip(document["measured"], prediction["measured"]):
        assert [s["predicted_ns"] for s in ours["stages"]] == pytest.approx([s["predicted_ns"] for s in theirs["stages"]], abs=1)
    assert "8 ranks, 4 nodes of 2" in predict.text(prediction)


@pytest.mark.parametrize(
    "link", ["", "50", "50GB", "GB/s,2us", "-1GB/s", "0GB/s", "infGB/s", "50GB/s,2", "50GB/s,2m", "50GB/s,", "50GB/s,2us,ns",
             "50GB/s,1us,1us,1us", "5,0GB/s,2us"],
)  # fmt: skip
def test_bad_links_are_refused(link):
    with pytest.raises(results.ResultsError, match="--link"):
        predict.Link.parse(link)


def test_links_are_parsed():
    assert predict.Link.parse("400Gbit/s,2us,10ns,node") == predict.Link(50, 2000, 10, True)
    assert predict.Link.parse("1.5TB/s") == predict.Link(1500)


@pytest.mark.parametrize("text, reason", [("{}", "file is missing"), ("", "should be an object"), ("[]", "no document"), ("{", "not JSON")])
def test_other_documents_are_refused(tmp_path, text, reason):
    path = pathlib.Path(tmp_path, "x.json")
    path.write_text(text)
    with pytest.raises(results.ResultsError, match=reason):
        predict.predict(predict.measure(path))


@pytest.mark.parametrize("value", ["x", [7], {}, 10**400, 0, None])
@pytest.mark.parametrize("section, key", [("measured", "ranks"), ("measured", "stages"), ("worlds", "ranks"), ("worlds", "nodes")])
def test_values_of_other_types_are_refused(section, key, value):
    document = costs_document(COST)
    document[section][1][key] = value
    with pytest.raises(results.ResultsError, match=f"{key}|contradict"):
        predict.predict(document)


def test_worlds_that_the_program_refused_stay_without_times():
    document = costs_document(COST)
    document["worlds"][1] = {"ranks": 8, "nodes": 4, "why": "rejected: too many"}
    assert "total" not in predict.predict(document)["worlds"][1]


def test_errors_of_the_program_are_passed_on(tmp_path):
    with pytest.raises(results.ResultsError, match="nowhere.yaml"):
        predict.measure(tmp_path / "nowhere.yaml", program=made.program())
    with pytest.raises(results.ResultsError, match="no such program"):
        predict.measure("x.yaml", program=str(tmp_path / "epa2a"))
