"""JSON documents of other benchmarks: CollectiveX, and Mooncake's ep_benchmark."""

import math

from ..result_files import at, is_number
from .found import Found, is_time
from .programs import Program

COLLECTIVEX = Program(
    "collectivex", "CollectiveX", "unknown", "bf16", "median over iterations of the slowest rank", "none", ()
)
MOONCAKE = Program(
    "mooncake_ep", "Mooncake ep_benchmark", "expert", "bf16",
    "median over iterations of the slowest rank; the time of the whole cycle includes experts and is left out", "none", (),
)  # fmt: skip


def _count(value):
    return int(value) if is_number(value) and value == int(value) and value >= 1 else None


def _dtype(word):
    word = str(word).lower()
    return "fp8" if "fp8" in word or "e4m3" in word else word if word in ("bf16", "f16", "f32") else "unknown"


def _keys(**keys):
    return {key.replace("__", "."): value for key, value in keys.items() if value is not None}


class Unreadable(ValueError):
    """A value of a document is missing or wrong."""


def _time(owner, path, factor):
    """Returns a time in us at a path; NaN if the document states that it is unavailable."""
    value = at(owner, path)
    if value is None:
        return math.nan
    if not is_number(value) or not is_time(value * factor):
        raise Unreadable(f"{path} is not a time above 0: {value!r}")
    return value * factor


def _run(program, variant, line, keys, times, clock=None):
    run = Found(program, variant, line, clock, keys)
    for stage, us in times.items():
        if not math.isnan(us):
            run.said[stage][0] = {stage: us, "line": line}
    return run


def is_collectivex(document):
    return isinstance(document, dict) and isinstance(at(document, "measurement.rows"), list)


def read_collectivex(document, line, skip):
    """Yields two runs for each number of tokens: fresh iterations, and the period of chained pairs."""
    case = at(document, "identity.case_factors.case")
    case = case if isinstance(case, dict) else {}
    backend = at(document, "implementation.name") or case.get("backend")
    shape = _keys(
        ranks=_count(at(document, "topology.world_size")), ranks_per_node=_count(at(document, "topology.gpus_per_node")),
        moe__hidden=_count(case.get("hidden")), moe__experts=_count(case.get("experts")), moe__topk=_count(case.get("topk")),
        rows=_dtype(at(document, "measurement.dispatch_dtype")), outputs=_dtype(at(document, "measurement.combine_dtype")),
        backend="".join(c for c in str(backend) if c.isalnum() or c in "_-") if backend else None,
    )  # fmt: skip
    layouts = {"token-expert": "expert", "token-rank": "rank"}
    for number, row in enumerate(document["measurement"]["rows"]):
        try:
            tokens = _count(at(row, "tokens_per_rank"))
            if tokens is None:
                raise Unreadable("tokens_per_rank is no number of tokens")
            median = "components.{}.percentiles_us.p50"
            fresh = {
                stage: _time(row, median.format(name), 1)
                for stage, name in (("dispatch", "dispatch"), ("combine", "combine"), ("total", "roundtrip"))
            }
            chained = {"total": _time(row, median.format("pair_period"), 1)}
        except Unreadable as error:
            skip(line, f"row {number} of measurement.rows: {error}")
            continue
        keys = {**shape, "moe.max_tokens": tokens}
        if at(row, "receive_layout") in layouts:
            keys["layout"] = layouts[row["receive_layout"]]
        for variant, times in (("fresh", fresh), ("chained", chained)):
            if all(math.isnan(us) for us in times.values()):
                continue
            run = _run(COLLECTIVEX, variant, line, dict(keys), times)
            if variant == "chained":
                run.statistic = "median over ranks of the period of back-to-back pairs of dispatch and combine"
            if at(row, "correctness.passed") is False:
                run.wrong = f"row {number}: the check of CollectiveX failed"
            yield run


def is_mooncake(document):
    return isinstance(document, dict) and document.get("benchmark") == "mooncake_ep"


def read_mooncake(document, line, skip):
    """Yields the run of a document of ep_benchmark. Its times are milliseconds."""
    try:
        times = {stage: _time(document, f"metrics.{stage}_latency_ms.p50", 1e3) for stage in ("dispatch", "combine")}
    except Unreadable as error:
        skip(line, str(error))
        return
    if all(math.isnan(us) for us in times.values()):
        skip(line, "metrics has no times of dispatch and combine")
        return
    keys = _keys(
        ranks=_count(document.get("world_size")), moe__max_tokens=_count(document.get("num_tokens")),
        moe__hidden=_count(document.get("hidden_size")), moe__experts=_count(document.get("num_experts")),
        moe__topk=_count(document.get("top_k")), rows=_dtype(document.get("dtype")),
    )  # fmt: skip
    if document.get("routing_mode") in ("uniform", "zipf"):
        keys["routing.kind"] = document["routing_mode"]
    yield _run(MOONCAKE, "", line, keys, times)


READERS = ((is_collectivex, read_collectivex), (is_mooncake, read_mooncake))
