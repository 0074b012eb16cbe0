"""epa2a.predict: predictions equal those of the C program on recorded documents."""

import copy
import json
import pathlib

import numpy
import pandas
import pytest

import made
from epa2a import predict, predict_link, predict_text, results

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
    counted = [
        {"ranks": ranks, "nodes": nodes, "planned_ranks": ranks, "heap_bytes": 1, "memory_bytes": 2, "stages": [
            {"name": "dispatch", "rows": rows[ranks], "choices": rows[ranks], "rank_bytes": 1000.0 * ranks,
             "node_bytes": 2000.0 * ranks, "messages": 10.0 * ranks}]}
        for ranks, nodes in worlds
    ]  # fmt: skip
    return {
        "schema": 1, "program": "epa2a", "file": "made up", "sweep": True, "low": 2, "ranks": 64, "per_node": 2, "cores": 2,
        "threads": 1, "algorithm": "made up", "link": predict_link.Link.parse(link).document(), "signal_ns": 100.0,
        "counted": counted, "measured": measured, "dropped": [],
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


def fit_points(cost):
    """Returns points of worlds of 2, 4 and 8 ranks on 4 cores, with all tokens, one token, and fewer choices."""
    points = []
    for ranks in (2, 4, 8):
        for choices in (2048, 16, 512):
            point = predict.make_point(ranks, choices * (1 - 0.5**ranks), choices, 2 if ranks > 4 else 1, choices == 16)
            point.ns = point.local_ns(cost)
            points.append(point)
    return points


@pytest.mark.parametrize(
    "cost",
    [(1500, 120, 200, 40, 80, 0, 0), (0, 300, 0, 25, 5, 0, 0), (900, 0, 310, 0, 30, 2700, 0), (700, 20, 100, 0, 100, 600, 180),
     (700, 0, 0, 0, 0, 0, 0)],
)  # fmt: skip
def test_the_fit_recovers_known_costs(cost):
    assert list(predict.fit(fit_points(cost))) == pytest.approx(cost, rel=1e-3, abs=1e-3)


def test_one_world_assigns_the_cost_of_peers_to_calls():
    found = predict.fit(fit_points((700, 50, 10, 0, 0, 0, 0))[:2])
    assert found[1] < 1e-6 and found[0] > 700


def test_costs_are_never_negative():
    noise = numpy.random.default_rng(1)
    for _ in range(200):
        points = fit_points((1000, 10, 100, 0, 50, 2000, 30))
        for point in points:
            point.ns *= noise.uniform(0.5, 1.5)
        found = predict.fit(points)
        assert min(found) >= 0 and points[0].local_ns(found) > 0


def test_core_sharing_adds_no_error_to_worlds_without_sharing():
    measured = []
    for share in (1, 2, 4):
        point = predict.Point((1, 0, 0, 0, 0, share > 1, 0), share)
        point.ns = share * (3000 + (5000 if share > 1 else 0))
        measured.append(predict.Measured(2 * share, True, True, [point], point.ns, point.ns))
    assert predict.Model(measured).error < 0.01


@pytest.mark.parametrize(
    "link, local_ns, signal_ns, ns, bound",
    [("50GB/s,2us", 60e3, 500, 103e3, "link bandwidth"), ("50GB/s,2us", 160e3, 500, 163e3, "local copy"),
     ("400GB/s,2us,30ns,node", 20e3, 5e3, 100e3, "link bandwidth"), ("3200Gbit/s,0us,200ns", 20e3, 0, 200e3, "link messages"),
     ("1TB/s,1ms", 20e3, 0, 2020e3, "link latency"), (None, 20e3, 0, 20e3, "local copy")],
)  # fmt: skip
def test_the_longest_of_copy_bytes_and_messages_counts(link, local_ns, signal_ns, ns, bound):
    """5 MB at 50 GB/s and 40 MB at 400 GB/s take 100 us each; 1000 messages of 30 ns take 30 us."""
    load = {"rank_bytes": 5e6, "node_bytes": 40e6, "messages": 1000}
    time = predict.stage_time(local_ns, load, link and predict_link.Link.parse(link), signal_ns)
    assert (time["ns"], time["bound"]) == (pytest.approx(ns), bound)


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


# Documents of the former C implementation, with the traffic that `epa2a predict --dry-run` counts: ll_v2 and token_flag over two
# links, dedup, tokens as a list with --check, and allgather.
RECORDED = pathlib.Path(__file__).with_name("predictions.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: json.loads(line)["file"])
def test_predictions_equal_recorded_ones(line):
    document = json.loads(line)
    prediction = predict.predict(document)
    for theirs, ours in zip(document["worlds"], prediction["worlds"], strict=True):
        assert theirs.get("why") == ours.get("why")
        for one, other in zip([*theirs.get("stages", []), theirs.get("total")], [*ours.get("stages", []), ours.get("total")], strict=True):
            if one is not None:
                assert one["bound"] == other["bound"]
                assert [other[part] for part in PARTS] == pytest.approx([one[part] for part in PARTS], abs=1), (theirs["ranks"], one["name"])
        assert ours["times"] == (theirs["times"] and pytest.approx(theirs["times"], rel=1e-6))
    assert prediction["error"]["part"] == pytest.approx(document["error"]["part"], rel=1e-6)
    for theirs, ours in zip(document["measured"], prediction["measured"]):
        assert [s["predicted_ns"] for s in ours["stages"]] == pytest.approx([s["predicted_ns"] for s in theirs["stages"]], abs=1)
    for key in ("scales", "notes", "measured_text"):
        assert prediction[key] == document[key]
    assert prediction["error"]["text"] == document["error"]["text"]
    for theirs, ours in zip(document["check"] or [], prediction["check"] or [], strict=True):
        assert ours["ratio"] == pytest.approx(theirs["ratio"], rel=1e-2)
    assert predict_text.text(prediction) == document["text"]
    assert predict_text.markdown(prediction) == document["markdown"]
    assert predict_text.csv(prediction) == document["csv"]

    validate(prediction)


def validate(prediction):
    """Validates a prediction by the installed schema; "text", "markdown" and "csv" are expected outputs of recorded documents."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(pathlib.Path(__file__).parents[2].joinpath("share/epa2a-predict.schema.json").read_text())
    document = {key: value for key, value in prediction.items() if key not in ("text", "markdown", "csv")}
    jsonschema.validate(json.loads(json.dumps(document, allow_nan=False)), schema, jsonschema.Draft7Validator)


@pytest.mark.parametrize(
    "change",
    [lambda d: d.pop("machine"), lambda d: d["worlds"][0]["total"].update(ns=-1), lambda d: d["worlds"][1].pop("total"),
     lambda d: d["worlds"][0].update(why="rejected"), lambda d: d["error"].update(part="10 %"), lambda d: d.update(other=1),
     lambda d: d["costs"][0].pop("row_ns"), lambda d: d["link"].update(of="host")],
)  # fmt: skip
def test_the_schema_refuses_other_documents(change):
    jsonschema = pytest.importorskip("jsonschema")
    prediction = predict.predict({**costs_document(COST), "machine": {}})
    validate(prediction)
    change(prediction)
    with pytest.raises(jsonschema.ValidationError):
        validate(prediction)


def test_frames_have_a_row_for_each_stage_of_each_world():
    document = costs_document(COST)
    document["counted"].append({"ranks": 32, "nodes": 16, "why": "rejected: too many"})
    frame = predict.frame(predict.predict(document))
    assert list(frame.ranks) == [2, 2, 8, 8, 32, 64, 64] and frame.ns[4] is pandas.NA
    assert list(frame[frame.stage == "total"].ns) == [1600, 11800, 67800] and frame.refused[4] == "rejected: too many"


def test_the_size_up_to_which_it_scales_is_found_beyond_the_requested_world():
    document = costs_document(COST, link="1TB/s,2us", worlds=((2, 1), (4, 2), (8, 4), (16, 8)))
    document["ranks"] = document["low"]
    assert predict.predict(document)["scales"]["text"].startswith("it scales to 2 ranks: 4 take ")
    document["measured"] = [row for row in document["measured"] if row["ranks"] == 2]
    document["link"]["latency_ns"] = 0
    prediction = predict.predict(document)
    assert prediction["scales"]["text"] == "it scales to 16 ranks at least" and len(prediction["worlds"]) == 1
    assert "only one world could be measured" in prediction["notes"][-1]


@pytest.mark.parametrize(
    "link", ["", "50", "50GB", "GB/s,2us", "-1GB/s", "0GB/s", "infGB/s", "50GB/s,2", "50GB/s,2m", "50GB/s,", "50GB/s,2us,ns",
             "50GB/s,1us,1us,1us", "5,0GB/s,2us"],
)  # fmt: skip
def test_bad_links_are_refused(link):
    with pytest.raises(results.ResultsError, match="--link"):
        predict_link.Link.parse(link)


def test_links_are_parsed():
    assert predict_link.Link.parse("400Gbit/s,2us,10ns,node") == predict_link.Link(50, 2000, 10, True)
    assert predict_link.Link.parse("1.5TB/s") == predict_link.Link(1500)


@pytest.mark.parametrize("text, reason", [("{}", "file is missing"), ("", "should be an object"), ("[]", "no document"), ("{", "not JSON")])
def test_other_documents_are_refused(tmp_path, text, reason):
    path = pathlib.Path(tmp_path, "x.json")
    path.write_text(text)
    with pytest.raises(results.ResultsError, match=reason):
        predict.predict(predict.measure(path))


@pytest.mark.parametrize("value", ["x", [7], {}, 10**400, 0, None])
@pytest.mark.parametrize("section, key", [("measured", "ranks"), ("measured", "stages"), ("counted", "ranks"), ("counted", "nodes")])
def test_values_of_other_types_are_refused(section, key, value):
    document = costs_document(COST)
    document[section][1][key] = value
    with pytest.raises(results.ResultsError, match=f"{key}|contradict"):
        predict.predict(document)


def test_worlds_that_the_program_refused_stay_without_times():
    document = costs_document(COST)
    document["counted"][1] = {"ranks": 8, "nodes": 4, "why": "rejected: too many"}
    prediction = predict.predict(document)
    assert "total" not in prediction["worlds"][1] and "# 8 ranks: rejected: too many" in predict_text.text(prediction)


def test_errors_of_the_program_are_passed_on(tmp_path):
    with pytest.raises(results.ResultsError, match="nowhere.yaml"):
        predict.measure(tmp_path / "nowhere.yaml", program=made.program())
    with pytest.raises(results.ResultsError, match="no such program"):
        predict.measure("x.yaml", program=str(tmp_path / "epa2a"))
