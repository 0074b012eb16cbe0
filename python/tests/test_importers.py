"""epa2a.importers: output of other programs becomes results; unreadable rows are left out and counted.

The logs of tests/cli/import have the format of the programs, and made-up numbers. tests/cli/import.case states
their results."""

import json
import pathlib
import random
import subprocess

import pytest

import made
from epa2a import importers, results, results_compare

LOGS = pathlib.Path(__file__).resolve().parents[2] / "tests/cli/import"
PREFIXES = (
    "0: ", " 3:  ", "[default0]:", "[1,0]<stdout>:", "[prterun-node-7@1,0]<stdout>: ", "[0] ", "[pod/job-0/main] ",
    "(RankActor pid=7, ip=10.0.0.1) ", "node1.cluster: ", "web-1  | ", "2025-11-06T12:34:56.789Z ",
    "2025-11-06T12:34:56Z 0: [default0]:", "    ", "[rank0]: ", "INFO 11-06 12:34:56 [worker.py:12] ", "0> ",
    "2025-11-06 12:34:56,789 - root - INFO - ", "Nov 29 19:26:33 host prog[12]: ", "stdout | ", "host 0: ", "DEBUG ",
    "I1106 12:34:56.789 12 a.cc:3] ", "\x1b[36m(Worker pid=3)\x1b[0m ", "rank3> ",
)  # fmt: skip

EP_BENCH_2026 = """=== NCCL EP Performance Benchmark ===
Configuration:
  Algorithm:       LOW_LATENCY
  Layout:          rank-major
  Ranks:           8
  Tokens:          128
  Hidden:          7168
  Top-k:           8
  Experts:         256 (local: 32)
  Dispatch recipe: ds-fp8e3m4
  Dispatch dtype:  fp8e4m3
  Scale dtype:     fp32 (56 elements/token, 224 bytes/token)

=== Summary (Low Latency, across 8 ranks) ===

--- Host-observed performance ---
Dispatch:  avg=65.10 us, min=63.00 us, max=70.20 us
          bus bandwidth (excl. protocol headers): avg=224.30 GB/s, min=208.00 GB/s (rank 3), max=231.70 GB/s (rank 1)
          algorithm bandwidth: avg=224.30 GB/s, min=208.00 GB/s, max=231.70 GB/s
Combine:   avg=79.00 us, min=76.10 us, max=84.00 us
Total (D+C):      avg=148.00 us, min=144.20 us, max=153.90 us

--- Kernel-only performance ---
Dispatch:    avg=51.40 us, min=50.00 us, max=53.00 us
Combine:     avg=62.30 us, min=61.00 us, max=64.00 us

Mean payload/rank: dispatch=14.60 MB (8.0 messages), combine=14.60 MB (8.0 messages), valid selections=1018.0
"""
EP_BENCH_HT_2026 = """=== NCCL EP Performance Benchmark ===
  Layout:          expert-major
  Ranks:           8
  Tokens:          4096
  Dispatch dtype:  bf16
  Output layout:   expert-major (with alignment)
=== Summary (High Throughput recipe none, across 8 ranks) ===
--- BW based on kernel time ---
Dispatch:    kernel=814.00 us
             recv: total_bw=250.00  nvl_bw=250.00  rdma_bw=0.00 GB/s
DispatchEpilogue: kernel=20.00 us
Combine:     kernel=846.00 us
CombinePrologue: kernel=30.00 us
Total (D+C): kernel=1660.00 us
"""
MSCCLPP = """[cfg] kineto barrier: torch NCCL all_reduce (GPU-side)

=== Summary [mscclpp] (Low Latency, across 4 ranks) ===

--- Host-observed performance ---
Dispatch (BF16):  avg=60.00 us, min=58.00 us, max=64.00 us
                  throughput: avg=224.30 GB/s, min=208.00 GB/s (rank 3), max=231.70 GB/s (rank 1)
Combine (BF16):   avg=70.00 us, min=69.00 us, max=72.00 us
Total (D+C):      avg=132.00 us, min=130.00 us, max=139.00 us

--- Kernel-only performance (torch kineto (per-iter barrier + L2 flush)) ---
Dispatch:    avg=50.00 us, min=41.00 us (representative), max=53.00 us [avg/max carry recv-spin skew on lagging ranks]
                  throughput: avg=284.00 GB/s, @min=292.00 GB/s
Combine:     avg=61.00 us, min=60.00 us, max=62.00 us
Total (D+C): avg=111.00 us (dispatch avg + combine avg), floor=102.00 us (dispatch min + combine avg)

=== Summary [flashinfer] (Low Latency, across 4 ranks) ===

--- Host-observed performance ---
Dispatch (BF16):  avg=80.00 us, min=58.00 us, max=64.00 us
"""
MOONCAKE_TEXT = """[rank 0] Native dispatch + combine: 200.00 GB/s, avg_t=140.00 us, min_t=130.00 us, max_t=150.00 us
[rank 1] Native dispatch + combine: 199.00 GB/s, avg_t=141.00 us, min_t=129.00 us, max_t=149.00 us
MOONCAKE_ELASTIC_PERF_OK world=16 route=uniform transport=auto reuse_handle=1 tokens=4096 hidden=7168 topk=8 scaleout=2 \
scaleup=8 dispatch_avg_ms=1.100 combine_avg_ms=2.100 e2e_avg_ms=3.200 dispatch_critical_ms=1.205 combine_critical_ms=2.25 \
e2e_critical_ms=3.400 wall_ms_per_iter=4.0 recv_tokens_avg=100.0 effective_payload_MB_per_rank=100.0
"""
MOONCAKE_JSON = {
    "benchmark": "mooncake_ep", "backend": "cuda", "world_size": 8, "num_experts": 256, "hidden_size": 7168, "top_k": 8,
    "num_tokens": 1024, "dtype": "fp8", "routing_mode": "uniform",
    "metrics": {"dispatch_latency_ms": {"p50": 0.2105, "mean": 0.3}, "combine_latency_ms": {"p50": 0.4, "mean": 0.5},
                "end_to_end_latency_ms": {"p50": 0.9}},
}  # fmt: skip


def component(us):
    return {"availability": "measured", "percentiles_us": us and {"p50": us, "p99": 2 * us}, "sample_count": 100}


COLLECTIVEX = {
    "version": 1, "record_type": "case-attempt", "implementation": {"name": "deepep-v2"},
    "identity": {"case_factors": {"case": {"hidden": 7168, "experts": 256, "topk": 8, "backend": "deepep-v2"}}},
    "topology": {"world_size": 8, "gpus_per_node": 8},
    "measurement": {"dispatch_dtype": "fp8-e4m3fn", "combine_dtype": "bf16", "rows": [
        {"tokens_per_rank": 8, "correctness": {"passed": True}, "components": {
            "dispatch": component(31.5), "combine": component(40.25), "roundtrip": component(80.0), "pair_period": component(70.0)}},
        {"tokens_per_rank": 64, "correctness": {"passed": False}, "components": {
            "dispatch": component(None), "combine": component(None), "roundtrip": component(95.0), "pair_period": component(90.0)}},
        {"tokens_per_rank": 128, "components": {"roundtrip": component("95,0")}},
    ]},
}  # fmt: skip


def write(tmp_path, text, name="log"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=2))
    return str(path)


def read(path, *settings):
    """Returns the runs of a file, and the warnings."""
    warnings = []
    return importers.read([path], settings, warnings.append)["results"], warnings


def times(run):
    return {stage["name"]: stage["samples_ns"][0] for stage in run["stages"]}


def essence(path):
    return [
        (run["label"], run["experiment"], run["delivers"], run["status"], run["source"], run["stages"])
        for run in read(path)[0]
    ]


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.txt")))
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_do_not_change_a_line(tmp_path, log, prefix):
    text = (LOGS / log).read_text()
    path = write(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert essence(path) == essence(LOGS / log)


def test_ep_bench_of_2026_is_read(tmp_path):
    (host, kernels), warnings = read(write(tmp_path, EP_BENCH_2026))
    assert (host["label"], kernels["label"], warnings) == ("nccl_ep host", "nccl_ep kernels", [])
    assert times(host) == {"dispatch": 65100, "combine": 79000, "total": 148000}
    assert host["delivers"] == {"layout": "rank", "rows": "fp8", "outputs": "unknown", "fused": False}
    assert kernels["experiment"]["moe"] == {"max_tokens": 128, "hidden": 7168, "topk": 8, "experts": 256}
    (kernels,), warnings = read(write(tmp_path, EP_BENCH_HT_2026))
    assert times(kernels) == {"dispatch": 814000, "combine": 846000, "total": 1660000} and warnings == []
    assert kernels["delivers"]["layout"] == "expert" and kernels["delivers"]["rows"] == "bf16"


def test_mscclpp_is_read(tmp_path):
    runs, warnings = read(write(tmp_path, MSCCLPP), "moe.max_tokens=128")
    assert [run["label"] for run in runs] == ["mscclpp_ep mscclpp host", "mscclpp_ep mscclpp kernels", "mscclpp_ep flashinfer host"]
    assert [times(run).get("total") for run in runs] == [132000, 111000, None] and warnings == []
    assert times(runs[1])["dispatch"] == 50000 and runs[1]["stages"][0]["min_ns"] == 41000
    assert runs[0]["experiment"] == {"ranks": 4, "moe": {"max_tokens": 128}, "algorithm": {"name": "mscclpp_ep"}}


def test_mooncake_is_read(tmp_path):
    native, elastic = read(write(tmp_path, MOONCAKE_TEXT))[0]
    assert times(native) == {"total": 141000} and native["experiment"]["ranks"] == 2
    assert times(elastic) == {"dispatch": 1205000, "combine": 2250000, "total": 3400000}
    assert elastic["experiment"]["moe"] == {"max_tokens": 4096, "hidden": 7168, "topk": 8}
    (run,), _ = read(write(tmp_path, MOONCAKE_JSON))
    assert times(run) == {"dispatch": 210500, "combine": 400000}
    assert run["experiment"]["ranks"] == 8 and run["experiment"]["routing"] == {"kind": "uniform"}
    assert run["delivers"]["rows"] == "fp8"
    # On standard output, among other lines, and with the prefix of a launcher.
    text = json.dumps(MOONCAKE_JSON, indent=2)
    assert times(read(write(tmp_path, f"loading\n{text}\ndone\n"))[0][0]) == times(run)
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    assert times(read(write(tmp_path, tagged))[0][0]) == times(run)


def test_collectivex_is_read(tmp_path):
    runs, (warning,) = read(write(tmp_path, COLLECTIVEX))
    assert [(run["label"], run["experiment"]["moe"]["max_tokens"], times(run), run["status"]) for run in runs] == [
        ("collectivex deepep-v2 fresh", 8, {"dispatch": 31500, "combine": 40250, "total": 80000}, "ok"),
        ("collectivex deepep-v2 chained", 8, {"total": 70000}, "ok"),
        ("collectivex deepep-v2 fresh", 64, {"total": 95000}, "mismatch"),
        ("collectivex deepep-v2 chained", 64, {"total": 90000}, "mismatch"),
    ]
    assert runs[0]["experiment"]["ranks"] == 8 and runs[0]["delivers"]["rows"] == "fp8"
    assert "row 2" in warning and "'95,0'" in warning and "1 line was left out" in warning


@pytest.mark.parametrize("value", [7, "x", [1], {}, None, True, 10**400])
def test_other_types_in_documents_are_left_out(tmp_path, value):
    """A case that is no object, and numbers that no float holds, are facts that are not known."""
    case = {"identity": {"case_factors": {"case": value}}}
    runs, _ = read(write(tmp_path, {**COLLECTIVEX, **case}))
    assert len(runs) == 4 and "hidden" not in runs[0]["experiment"]["moe"]
    (run,), _ = read(write(tmp_path, {**MOONCAKE_JSON, "hidden_size": value}))
    assert run["experiment"]["moe"].get("hidden") in (None, 7)


def test_imported_results_are_valid_and_comparable(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    files = [str(path) for path in LOGS.glob("*.txt")]
    files += [write(tmp_path, text, f"{place}") for place, text in
              enumerate((EP_BENCH_2026, MSCCLPP, MOONCAKE_TEXT, MOONCAKE_JSON, COLLECTIVEX))]  # fmt: skip
    document = importers.read(files)
    path = tmp_path / "imported.json"
    path.write_text(json.dumps(document))
    assert len(results_compare.best(results.load(path))) > 5
    assert len(importers.text(document).splitlines()) == len(document["results"]) + 3
    done = subprocess.run([made.program(), "config", "schema", "--results"], capture_output=True, text=True, check=True)
    jsonschema.validate(document, json.loads(done.stdout))


def swap_points(text):
    return "".join("," if c == "." and text[n - 1 : n].isdigit() and text[n + 1 : n + 2].isdigit() else c
                   for n, c in enumerate(text))  # fmt: skip


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.txt")))
def test_decimal_commas_are_never_cut_off(tmp_path, log):
    """No time with a decimal comma becomes a shorter time."""
    text = (LOGS / log).read_text()
    right = {time for run in read(LOGS / log)[0] for time in times(run).values()}
    try:
        runs, warnings = read(write(tmp_path, swap_points(text)))
    except results.ResultsError as error:
        assert ": error: " in str(error)
        return
    assert warnings and {time for run in runs for time in times(run).values()} <= right


@pytest.mark.parametrize("number", ["57,60", "57.6.0", "57e1", "57_60", "x", "nan", "inf", "-57.60", "0", "57.60.", ".5"])
def test_bad_numbers_leave_the_row_out_with_its_place(tmp_path, number):
    text = (LOGS / "low_latency.txt").read_text().replace("avg_t=57.60", f"avg_t={number}")
    runs, (warning,) = read(write(tmp_path, text))
    assert times(runs[0])["dispatch"] == 57100 and "log:5:" in warning and warning.endswith("1 line was left out")
    table = (LOGS / "nccl.txt").read_text().replace(" 21.40 ", f" {number} ")
    runs, warnings = read(write(tmp_path, table))
    assert len(runs) == (4 if number == "57e1" else 2)
    place = table.splitlines()[14].index(f" {number} ") + 2
    reason = f"log:15:{place}: error: '{number}' is no time above 0; 1 line was left out"
    assert [warning.rpartition("/")[2] for warning in warnings] == ([] if number == "57e1" else [reason])
    # Old rows have no word for the reduction: another word of a row does not shift its times.
    table = (LOGS / "nccl_old.txt").read_text().replace(" 17.61 ", " 17 .61 ")
    with pytest.raises(results.ResultsError, match="log:6:1: error: a row of nccl-tests has not as many words"):
        read(write(tmp_path, table))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "holds no times"),
        ("[rank0]: some line\n", "holds no times"),
        ("\n[rank 0] Dispatch + combine bandwidth: 9.1 GB/s, avg_t=x us\n", "log:2:56: error: the line should continue"),
        ((LOGS / "nccl.txt").read_text().replace(" 30.10 ", " ").replace(" 21.40 ", " "), "log:15:1: error: a row"),
        (json.dumps({**MOONCAKE_JSON, "metrics": {}}), "no times"),
        (json.dumps({"unknown": 1}), "holds no times"),
    ],
)  # fmt: skip
def test_files_without_times_are_refused(tmp_path, text, reason):
    with pytest.raises(results.ResultsError) as error:
        runs, warnings = read(write(tmp_path, text))
        raise results.ResultsError(warnings[0] if "nccl" in runs[0]["label"] else "")
    assert reason in str(error.value)


def test_settings_add_facts_and_never_contradict(tmp_path):
    (run,), _ = read(LOGS / "low_latency.txt", "moe.max_tokens=128", "delivers.layout=expert", "ranks_per_node=2")
    assert run["experiment"]["moe"] == {"max_tokens": 128} and run["experiment"]["ranks_per_node"] == 2
    for setting in ("moe.hiden=7", "moe.experts=x", "moe.experts=0", "delivers.rows=", "ranks", "delivers.rows=bf16"):
        with pytest.raises(results.ResultsError, match=f"--set {setting}"):
            read(LOGS / "low_latency.txt", setting)


def damage(text, other, spread):
    """Returns a text with a part that is lost, repeated, changed, or of another text."""
    at, n = spread.randrange(len(text) + 1), spread.choice((1, 1, 2, 5, 20, 200))
    insert = spread.choice(("", text[at : at + n] * 2, other[at : at + n], chr(spread.randrange(1, 0x300)), "9" * n, "{[\"", "1e999"))
    return text[:at] + insert + text[at + n :]


def test_damaged_files_become_results_or_an_error(tmp_path):
    """No content ends in another exception, and results that were read can be loaded."""
    spread, read_runs, path = random.Random(1), [], tmp_path / "log"
    texts = [file.read_text() for file in sorted(LOGS.glob("*.txt"))]
    texts += [EP_BENCH_2026, EP_BENCH_HT_2026, MSCCLPP, MOONCAKE_TEXT, json.dumps(MOONCAKE_JSON), json.dumps(COLLECTIVEX)]
    for turn in range(40 * len(texts)):
        text = texts[turn % len(texts)]
        for _ in range(spread.randrange(1, 6)):
            text = damage(text, spread.choice(texts), spread)
        path.write_text(text)
        settings = ["moe.hidden=7168"] if turn % 2 else []
        try:
            read_runs.extend(importers.read([path], settings)["results"])
        except results.ResultsError as error:
            assert str(error)
    path.write_text(json.dumps({"schema": 1, "program": "epa2a", "results": read_runs}, allow_nan=False))
    frame = results.load(path)
    assert len(frame) > 500 and (frame["median_ns"] > 0).all()
