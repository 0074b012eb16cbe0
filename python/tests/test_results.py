"""epa2a.results: documents become frames, and bad documents are refused with their place."""

import json
import subprocess

import pytest

import made
from epa2a import results


def test_each_stage_of_each_run_is_a_row(tmp_path):
    frame = results.load(made.write(tmp_path / "r.json", *made.batch(2, 2)))
    assert list(frame["stage"]) == ["dispatch", "combine", "total"] * 4
    assert frame["run"].nunique() == 4 and list(frame["size"].unique()) == [1, 2]
    assert set(frame["name"]) == {"ll_v2/shm"} and frame["ok"].all()
    assert list(frame["repetition"].unique()) == [1, 2]
    assert len(results.samples(frame)) == 4 * 3 * 200
    assert list(results.ranks(frame)["rank"]) == [0, 1] * 12


def test_json_lines_folders_and_several_files_are_read(tmp_path):
    lines = "".join(json.dumps(made.document(made.run(name, 100))) + "\n" for name in "ab")
    (tmp_path / "r.jsonl").write_text("\ufeff" + lines)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "results.jsonl").write_text(lines + '{"schema":1,"pro')  # a batch writes this line
    pretty = tmp_path / "p.json"
    pretty.write_text(json.dumps(made.document(made.run("c", 1)), indent=1))
    frame = results.load(tmp_path / "r.jsonl", folder, [pretty])
    assert list(frame.drop_duplicates("run")["label"]) == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize(
    "text, place",
    [
        ("", ":1:1: error: not JSON"),
        ('{"a": 1,\n "b" 2}', ":2:6: error: not JSON"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[" * 100000, "nested"),
        ("[]", "not results"),
        ('{"program": "other"}', "not results"),
        ('{"program": "epa2a", "schema": 1}', "results"),
        ('{"program": "epa2a", "schema": 2, "results": []}', "schema 2 is not known; this program reads 1"),
        ('{"program": "epa2a", "schema": 1, "results": [7]}', "result 0: a value should be an object"),
        ('{"program": "epa2a", "schema": 1, "results": [{"stages": [{"name": "total"}]}]}', "stages[0].samples_ns is missing"),
        ('{"program": "epa2a", "schema": 1, "results": [{}, {"machine": {"cpu": 7}}]}', "result 1: machine.cpu should be a text"),
        ('{"program": "epa2a", "schema": 1, "results": [{"experiment": {"ranks": 1%s}}]}' % ("0" * 400), "ranks should be a number"),
        (
            '{"program": "epa2a", "schema": 1, "results": [{"stages": [{"name": "t", "samples_ns": [1, -1]}]}]}',
            "sample 1 of stage t",
        ),
    ],
)  # fmt: skip
def test_bad_documents_are_refused_with_their_place(tmp_path, text, place):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(results.ResultsError) as error:
        results.load(path)
    assert str(path) in str(error.value) and place in str(error.value)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(results.ResultsError, match="No such file"):
        results.load(tmp_path / "nowhere")
    with pytest.raises(results.ResultsError):
        results.load()


def test_failed_runs_have_rows_but_are_not_chosen(tmp_path):
    dead = made.run("dead", 1, status="died", stages=[], error={"status": "died", "text": "rank 1 died"})
    frame = results.load(made.write(tmp_path / "r.json", dead, made.run("good", 1), made.run("late", 2, status="missed")))
    assert list(frame[~frame["ok"]]["error"]) == ["rank 1 died"]
    assert list(results.choose(frame)["label"]) == ["good", "late"]
    assert results.failures(frame) == [f"{tmp_path}/r.json: 'dead' ended with status died and is left out"]
    with pytest.raises(results.ResultsError, match="ended well"):
        results.choose(frame[~frame["ok"]])


def test_names_contain_the_keys_in_which_runs_differ():
    runs = [
        made.run("a", 1),
        made.run("b", 1, experiment__algorithm__name="ll_v1", experiment__seed=2),
        made.run("c", 1, experiment__algorithm__chunks=3),
        made.run("d", 1, run="mine", experiment__moe__max_tokens=16),
    ]
    assert results.name_runs(runs) == ["ll_v2/shm", "ll_v1/shm", "ll_v2/shm algorithm.chunks=3", "mine"]


def test_results_of_the_program_are_read(tmp_path):
    yaml = tmp_path / "x.yaml"
    yaml.write_text("version: 1\nranks: 2\nmoe: {hidden: 256, experts: 8, topk: 2, fp8_group_size: 128}\n"
                    "matrix: {moe.max_tokens: [1, 8]}\nrepeat: 2\nbench: {warmup: 2, iterations: 20}\n")  # fmt: skip
    subprocess.run([made.program(), "bench", yaml, "--out-dir", tmp_path / "d", "--json", tmp_path / "j", "--quiet"],
                   check=True, capture_output=True)  # fmt: skip
    by_file, by_folder = results.load(tmp_path / "j"), results.load(tmp_path / "d")
    assert list(by_file["median_ns"]) == list(by_folder["median_ns"])
    total = by_file[by_file["stage"] == "total"]
    assert list(total["n"]) == [20] * 4 and (total["low_ns"] <= total["median_ns"]).all()
    assert total["started"].notna().all() and set(total["transport"]) == {"shm"}
