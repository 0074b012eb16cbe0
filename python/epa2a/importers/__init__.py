"""Imports the output of other benchmarks as results of epa2a, and the routing of engines.

    from epa2a import importers

    document = importers.read(["deepep.log", "mooncake.json"], ["moe.hidden=7168"])
    importers.write_routing(["response.json"], "routing.npy")

nccl-tests, ep_bench of NCCL EP (also its text of 2026), DeepEP's tests, MSCCL++ and Mooncake print lines;
CollectiveX and Mooncake's ep_benchmark write JSON. A row that cannot be read is left out and counted. A
number is read to its end, or its row is left out: 21,40 is not 21. Only `write_routing` needs NumPy."""

import json
import os

from ..result_files import SCHEMA, ResultsError, at, read_text
from . import documents, found, log

__all__ = ["read", "text", "write_routing"]


def _embedded(content):
    """Yields (line, document) of JSON objects whose first character begins a line of a log."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(content):
        at = place if content[place] in "{[" else -1
        if at < 0:
            candidates = [p for p in (content.find("\n{", place), content.find("\n[", place)) if p >= 0]
            if not candidates:
                return
            at = min(candidates) + 1
        try:
            document, end = decoder.raw_decode(content, at)
        except (ValueError, RecursionError):
            place = at + 1
            continue
        yield content.count("\n", 0, at) + 1, document
        place = end


def _without_common_prefix(content):
    """Removes a prefix of each line that a launcher added, such as "[1,0]<stdout>:", so that a
    document of several lines is JSON again."""
    lines = [line for line in content.splitlines() if line.strip()]
    prefix = os.path.commonprefix(lines) if len(lines) > 1 else ""
    prefix = prefix.rstrip(" {[\"'")
    if not prefix:
        return content
    return "\n".join(line.removeprefix(prefix).lstrip(" ") for line in content.splitlines())


def _read_documents(content, reading):
    """Adds the runs of all JSON documents in a text; returns True if there is one of a known kind."""
    known = False
    for line, document in _embedded(content):
        for one in document if isinstance(document, list) else [document]:
            for is_of, read_runs in documents.READERS:
                if is_of(one):
                    known = True

                    def skip(at_line, reason):
                        reading.line = at_line
                        reading.skip(0, reason)

                    reading.runs.extend(read_runs(one, line, skip))
    return known


def _read_file(path, sets, warn):
    content = read_text(path)
    reading = log.Log(path)
    if not _read_documents(content, reading) and not _read_documents(_without_common_prefix(content), reading):
        reading.line = 0
        for line in content.split("\n"):
            reading.read_line(line)
    if not reading.runs:
        raise ResultsError(
            reading.first_reason
            or f"{path}: holds no times that nccl-tests, ep_bench, DeepEP's tests, CollectiveX, Mooncake or MSCCL++ print"
        )
    if reading.unread:
        warn(f"{reading.first_reason}; {reading.unread} line{'s were' if reading.unread > 1 else ' was'} left out")
    # A name of other bytes than UTF-8 is not text of JSON.
    shown = os.fsencode(path).decode(errors="replace")
    return [found.to_result(run, shown, sets) for run in reading.runs]


def read(files, settings=(), warn=lambda text: None):
    """Returns a document of results of all files, in the form of `epa2a import --json`. `settings`
    are KEY=VALUE facts that the programs do not print; `warn` is called for unreadable rows."""
    sets = found.parse_sets(settings)
    runs = [run for path in files for run in _read_file(os.fspath(path), sets, warn)]
    return {"schema": SCHEMA, "program": "epa2a", "percentiles": "nearest rank", "results": runs}


def text(document):
    """Returns the table of imported results that `epa2a import` prints."""
    runs = document["results"]
    width = max([24, *(len(run["label"]) for run in runs)])
    lines = [
        f"# epa2a import: {len(runs)} results; size: bytes, or tokens of a rank",
        f"# {'run':{width}} {'size':>11}" + "".join(f" {stage:>10}" for stage in found.STAGES),
        f"# {'':{width}} {'':>11}" + f" {'[us]':>10}" * len(found.STAGES),
    ]
    for run in runs:
        times = {stage["name"]: f"{stage['samples_ns'][0] / 1e3:.2f}" for stage in run["stages"]}
        size = at(run, "experiment.collective.bytes") or at(run, "experiment.moe.max_tokens") or "-"
        place = f"{run['file']}:{run['source']['line']}" + ("" if run["status"] == "ok" else f" {run['status']}")
        cells = "".join(f" {times.get(stage, ''):>10}" for stage in found.STAGES)
        lines.append(f"  {run['label']:{width}} {size:>11}{cells}  {place}")
    return "\n".join(lines)


def write_routing(files, path, layers=None, topk=None, overwrite=False):
    """Writes the routing of responses of vLLM or SGLang as a file for routing.path. Returns the
    number of tokens."""
    from ..console import write_file
    from . import routing  # needs NumPy

    array = routing.read([os.fspath(file) for file in files], layers, topk)
    write_file(path, routing.serialize(array, os.fspath(path)), overwrite)
    return len(array)
