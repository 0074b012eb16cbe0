"""Imports the output of other benchmarks as results of epa2a.

    from epa2a import importers

    document = importers.read(["deepep.log"], ["moe.hidden=7168"])

nccl-tests, ep_bench of NCCL EP (also its text of 2026), DeepEP's tests, MSCCL++ and Mooncake print
lines. A row that cannot be read is left out and counted. A
number is read to its end, or its row is left out: 21,40 is not 21."""

import os

from .. import results
from . import found, log

__all__ = ["read", "text"]


def _read_file(path, sets, warn):
    content = results.read_text(path)
    reading = log.Log(path)
    for line in content.split("\n"):
        reading.read_line(line)
    if not reading.runs:
        raise results.ResultsError(
            reading.first_reason
            or f"{path}: holds no times that nccl-tests, ep_bench, DeepEP's tests, Mooncake or MSCCL++ print"
        )
    if reading.unread:
        warn(f"{reading.first_reason}; {reading.unread} line{'s were' if reading.unread > 1 else ' was'} left out")
    return [found.to_result(run, path, sets) for run in reading.runs]


def read(files, settings=(), warn=lambda text: None):
    """Returns a document of results of all files, in the form of `epa2a import --json`. `settings`
    are KEY=VALUE facts that the programs do not print; `warn` is called for unreadable rows."""
    sets = found.parse_sets(settings)
    runs = [run for path in files for run in _read_file(os.fspath(path), sets, warn)]
    return {"schema": results.SCHEMA, "program": "epa2a", "percentiles": "nearest rank", "results": runs}


def text(document):
    """Returns a table of imported results."""
    from ..charts_text import table

    rows = []
    for run in document["results"]:
        times = {stage["name"]: stage["samples_ns"][0] for stage in run["stages"]}
        size = results.at(run, "experiment.collective.bytes") or results.at(run, "experiment.moe.max_tokens")
        cells = [f"{times[stage] / 1e3:.2f}" if stage in times else "-" for stage in found.STAGES]
        status = "" if run["status"] == "ok" else f" {run['status']}"
        rows.append([run["label"], str(size or "-"), *cells, f"{run['file']}:{run['source']['line']}{status}"])
    head = ["run", "size", *[f"{stage} [us]" for stage in found.STAGES], "line"]
    count = len(rows)
    return "\n".join([f"{count} result{'s' if count != 1 else ''}; size: bytes, or tokens of a rank", *table(head, rows, 200)])
