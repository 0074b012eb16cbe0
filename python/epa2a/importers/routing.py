"""Routing that engines return for requests: `routed_experts` of vLLM and of SGLang.

vLLM: choices[].routed_experts and prompt_routed_experts, lists [tokens][layers][top-k], or an .npy file
in base64. SGLang: meta_info.routed_experts, integers in base64, [tokens][layers][top-k] without their
shape, so that --layers and --topk state it. A file holds one response, a list of responses, or JSON
lines. The routing becomes a file for routing.path of an experiment: .jsonl, or .npy with all layers."""

import base64
import binascii
import io
import json

import numpy

from ..result_files import ResultsError, parse, read_text

_wire_types = {"int32": "<i4", "uint16": "<u2", "uint8": "u1", "int16": "<i2", "int64": "<i8"}


def find_routing(value, name="response"):
    """Yields (name, routing, dtype) of all routings in a response, prompts first."""
    if isinstance(value, list):
        for place, one in enumerate(value):
            yield from find_routing(one, f"{name}[{place}]")
    elif isinstance(value, dict):
        dtype = value.get("routed_experts_dtype", "int32")
        for key in ("prompt_routed_experts", "routed_experts"):
            if value.get(key) is not None:
                yield f"{name}.{key}", value[key], dtype
        for key, one in value.items():
            if key not in ("prompt_routed_experts", "routed_experts") and isinstance(one, (dict, list)):
                yield from find_routing(one, f"{name}.{key}")


def _decode(name, text, dtype, layers, topk):
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ResultsError(f"{name}: not base64: {error}") from None
    if data[:6] == b"\x93NUMPY":
        try:
            return numpy.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ResultsError(f"{name}: not an .npy file: {error}") from None
    if dtype not in _wire_types:
        raise ResultsError(f"{name}: integers of type {dtype} are not known; known are {', '.join(_wire_types)}")
    if layers is None or topk is None:
        raise ResultsError(f"{name}: the routing has no shape; --layers and --topk state it")
    kind = numpy.dtype(_wire_types[dtype])
    token = layers * topk * kind.itemsize
    if len(data) == 0 or len(data) % token != 0:
        raise ResultsError(
            f"{name}: {len(data)} bytes are no whole number of tokens of {layers} layers x {topk} choices ({token} bytes)"
        )
    return numpy.frombuffer(data, kind).reshape(-1, layers, topk)


def _as_array(name, routing, dtype, layers, topk):
    if isinstance(routing, str):
        array = _decode(name, routing, dtype, layers, topk)
    else:
        try:
            array = numpy.array(routing)
        except ValueError:
            array = numpy.array(None)
    if array.ndim != 3 or array.dtype.kind not in "iu" or array.size == 0:
        raise ResultsError(f"{name}: a routing is a list [tokens][layers][top-k] of expert numbers")
    if (layers or array.shape[1]) != array.shape[1] or (topk or array.shape[2]) != array.shape[2]:
        raise ResultsError(f"{name}: the routing has {array.shape[1]} layers x {array.shape[2]} choices")
    array = array.astype(numpy.int64)
    if array.min() < 0 or array.max() > 2**31 - 1:
        raise ResultsError(f"{name}: an expert number is below 0 or too large")
    ordered = numpy.sort(array, axis=2)
    twice = numpy.argwhere(ordered[:, :, 1:] == ordered[:, :, :-1])
    if len(twice):
        token, layer, _ = twice[0]
        raise ResultsError(f"{name}: token {token} chooses an expert of layer {layer} twice")
    return array


def read(files, layers=None, topk=None):
    """Returns the routing of all responses in files, as an array [tokens][layers][top-k]."""
    arrays = []
    for path in files:
        for number, document in enumerate(parse(read_text(path), path)):
            for name, routing, dtype in find_routing(document):
                name = f"{path}: response {number}{name.removeprefix('response')}"
                array = _as_array(name, routing, dtype, layers, topk)
                if arrays and arrays[0].shape[1:] != array.shape[1:]:
                    shape = " x ".join(map(str, arrays[0].shape[1:]))
                    raise ResultsError(f"{name}: the responses before it have {shape} layers and choices")
                arrays.append(array)
    if not arrays:
        raise ResultsError(f"{', '.join(files)}: no response has routed_experts; start the engine with its return")
    return numpy.concatenate(arrays)


def serialize(array, path):
    """Returns the bytes of a routing file: .npy, or JSON lines with a line for each token and layer."""
    if path.endswith(".npy"):
        out = io.BytesIO()
        numpy.save(out, array.astype("<i4"))
        return out.getvalue()
    if not path.endswith(".jsonl"):
        raise ResultsError(f"--routing {path}: a routing file ends with .jsonl or .npy")
    lines = [json.dumps({"type": "meta", "top_k": array.shape[2], "num_experts": int(array.max()) + 1})]
    for token, rows in enumerate(array.tolist()):
        for layer, ids in enumerate(rows):
            lines.append(json.dumps({"type": "route", "token_idx": token, "layer": layer, "topk_ids": ids}))
    return ("\n".join(lines) + "\n").encode()
