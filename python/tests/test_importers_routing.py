"""epa2a.importers: routing that vLLM and SGLang return becomes a routing file."""

import base64
import io
import json
import subprocess

import numpy
import pytest

import made
from epa2a import importers, results

ROUTING = numpy.array([[[t % 4, 4 + (t + l) % 4] for l in range(3)] for t in range(10)])


def write(tmp_path, response):
    path = tmp_path / "response.json"
    path.write_text(json.dumps(response))
    return str(path)


def npy(array):
    out = io.BytesIO()
    numpy.save(out, array.astype(numpy.int16))
    return base64.b64encode(out.getvalue()).decode()


def flat(array, dtype="<i4"):
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


@pytest.mark.parametrize(
    "response, options",
    [
        ({"prompt_routed_experts": ROUTING[:6].tolist(), "choices": [{"routed_experts": ROUTING[6:].tolist()}]}, {}),
        ({"choices": [{"routed_experts": npy(ROUTING)}]}, {}),
        ({"meta_info": {"routed_experts": flat(ROUTING)}}, {"layers": 3, "topk": 2}),
        ([{"meta_info": {"routed_experts": flat(ROUTING, "u1"), "routed_experts_dtype": "uint8"}}], {"layers": 3, "topk": 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["jsonl", "npy"])
def test_routing_of_engines_becomes_a_routing_file(tmp_path, response, options, suffix):
    out = tmp_path / f"routing.{suffix}"
    assert importers.write_routing([write(tmp_path, response)], str(out), **options) == 10
    if suffix == "npy":
        assert (numpy.load(out) == ROUTING).all()
    for layer in range(3):
        done = subprocess.run([made.program(), "routing", "stats", out, "--layer", str(layer), "--json", tmp_path / "s", "--force"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "response, options, reason",
    [
        ({"choices": []}, {}, "no response has routed_experts"),
        ({"routed_experts": flat(ROUTING)}, {}, "--layers and --topk"),
        ({"routed_experts": flat(ROUTING)}, {"layers": 7, "topk": 2}, "no whole number of tokens"),
        ({"routed_experts": "?"}, {"layers": 3, "topk": 2}, "not base64"),
        ({"routed_experts": [[[1, 1]]]}, {}, "twice"),
        ({"routed_experts": [[[1, -1]]]}, {}, "below 0"),
        ({"routed_experts": [[[1, 2], [3]]]}, {}, "[tokens][layers][top-k]"),
        ({"routed_experts": [[1, 2]]}, {}, "[tokens][layers][top-k]"),
        ({"routed_experts": flat(ROUTING), "routed_experts_dtype": "f8"}, {"layers": 3, "topk": 2}, "type f8"),
    ],
)  # fmt: skip
def test_bad_routing_is_refused(tmp_path, response, options, reason):
    with pytest.raises(results.ResultsError) as error:
        importers.write_routing([write(tmp_path, response)], str(tmp_path / "r.npy"), **options)
    assert reason in str(error.value) and not (tmp_path / "r.npy").exists()
