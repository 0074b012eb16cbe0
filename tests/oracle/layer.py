#!/usr/bin/env python3
"""Recomputes a layer with real experts from the tokens, routes and weights of each rank, which the algorithm `tap`
writes to files, and from the definition in include/epa2a/problem.h.

layer.py EPA2A TAP FUSED LL_V2: the program, the folder with tap, the two plugins; NumPy and ml_dtypes recompute.
layer.py EPA2A TAP FUSED --gpu FOLDER: fused on emulated GPUs, with the plugins in FOLDER. layer.py EPA2A TAP FUSED
--torch [RANKS]: fused on GPUs, recomputed by PyTorch on one of them.

This script shares no code with the C sources. Outputs of a token are compared by their norm, since roundings may
differ; with integers, whose sums are exact, each element is compared to the bit; with FP8 weights, each element must
lie in its possible interval (fp8.py), and the comparison must fail with a scale exchanged for its neighbour."""
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import fp8

FP8_BITS = "13"  # fraction bits of sums in tensor cores
OFF = 1 / 256
INTEGERS = {"expert.activation": "none", "expert.values": "integers"}
FP8 = {"expert.weights": "fp8"}
INT8 = {"expert.weights": "int8"}
# Settings of each case, the case with the same weights, and whether its rows are quantised in
# transit.
ON_CPUS = {
    "fused, bf16": ({}, None, False),
    "fused, integers": (INTEGERS, None, False),
    "fused, channels in 32s": ({"moe.hidden": 96, "expert.ffn": 160}, None, False),
    "fused, FP8 weights": (FP8, None, True),
    "fused, INT8 weights": (INT8, None, False),
    "ll_v2, bf16": ({}, "fused, bf16", True),
    "ll_v2, FP8 weights": (FP8, "fused, FP8 weights", True),
    "ll_v2, oneDNN": ({"expert.library": "onednn"}, "fused, bf16", True),  # may be missing
}
EMULATED = {"fused, FP8 weights": ON_CPUS["fused, FP8 weights"]}
# Few rows per expert with swapped tiles; whole tiles, and partial tiles.
ON_GPUS = {f"fused, {name}, {tokens} tokens": (sets | {"moe.max_tokens": tokens}, None, sets.get("expert.weights") == "fp8")
           for tokens in (24, 700) for name, sets in (("bf16", {}), ("integers", INTEGERS), ("FP8", FP8),
                                                      ("FP8, integers", FP8 | INTEGERS))}
CONFIG = """
version: 1
ranks: {ranks}
transport: shm
algorithm: tap
moe: {{max_tokens: 24, hidden: {hidden}, experts: {experts}, topk: {topk}, fp8_group_size: 128}}
expert: {{kind: mlp, ffn: {ffn}, activation: swiglu, values: random}}
routing: {{kind: masked, share: 0.2}}
tokens: random
seed: 11
verify: {{iterations: 3}}
timeout: 30s
"""


class NumPy:
    """What arrays are made of and by. In float64, but for whole numbers."""

    def __init__(self):
        import ml_dtypes
        import numpy
        self.xp = numpy
        self.kinds = {"bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "f32": numpy.float32, "i32": numpy.int32,
                      "i8": numpy.int8}

    def read(self, path, kind, *shape):
        array = self.xp.fromfile(path, self.kinds[kind]).reshape(-1, *shape)
        return array if kind == "i32" else array.astype(self.xp.float64)

    def rounded(self, value, kind="bf16"):
        return value.astype(self.xp.float32).astype(self.kinds[kind]).astype(self.xp.float64)


class Torch:
    def __init__(self):
        import torch
        self.xp = torch
        self.kinds = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "f32": torch.float32, "i32": torch.int32}

    def read(self, path, kind, *shape):
        data = bytearray(path.read_bytes())
        raw = self.xp.frombuffer(data, dtype=self.xp.uint8) if data else self.xp.empty(0, dtype=self.xp.uint8)
        rows = len(data) // self.kinds[kind].itemsize // math.prod(shape)
        array = raw.view(self.kinds[kind]).reshape(rows, *shape).cuda()
        return array if kind == "i32" else array.float().double()

    def rounded(self, value, kind="bf16"):
        return value.float().to(self.kinds[kind]).float().double()


class Layer:
    """The outputs of a case, and the files that it left in `folder`; the weights come from the folder `by`."""

    def __init__(self, arrays, shape, name, sets, quantises, folder, by):
        self.arrays, self.xp, self.folder, self.by = arrays, arrays.xp, folder, by
        self.ranks, self.hidden, self.ffn, self.experts, self.topk = (shape[key] for key in
                                                                      ("ranks", "hidden", "ffn", "experts", "topk"))
        self.fused, self.quantises = name.startswith("fused"), quantises
        self.swiglu, self.fp8 = "expert.activation" not in sets, sets.get("expert.weights") == "fp8"
        self.int8 = sets.get("expert.weights") == "int8"
        self.exact = "expert.values" in sets

    def code(self, value):
        return self.arrays.rounded(self.xp.clip(value, -448, 448), "e4m3")

    def weights(self, planted=None):
        """(W, scales or None) of each expert, of W_up and of W_down."""
        both = []
        for name, rows, columns in ("up", 2 * self.ffn if self.swiglu else self.ffn, self.hidden), ("down", self.hidden, self.ffn):
            both.append([])
            for r in range(self.ranks):
                kind = "e4m3" if self.fp8 else "i8" if self.int8 else "bf16"
                w = self.arrays.read(self.by / f"{r}.{name}", kind, rows, columns)
                if self.int8:
                    w = w * self.arrays.read(self.by / f"{r}.{name}_scale", "f32", rows)[..., None]
                scale = self.arrays.read(self.by / f"{r}.{name}_scale", "f32", rows // 128, columns // 128) if self.fp8 else w
                both[-1] += list(zip(w, scale))
        if planted:
            scale = both[planted == "down"][self.experts // 2][1]
            first = float(scale[0, 0])
            scale[0, 0] = scale[1, 0]
            scale[1, 0] = first
        return both

    def calls(self):
        """x, out, expert and weight of each call of each rank."""
        for path in sorted(self.folder.glob("*.out")):
            yield [self.arrays.read(path.with_suffix(f".{what}"), kind, width) for what, kind, width in (
                ("x", "bf16", self.hidden), ("out", "bf16", self.hidden), ("expert", "i32", self.topk), ("weight", "f32", self.topk))]

    def rows(self, value):
        """Rows of an operand; INT8: in whole multiples of a scale for each row, in float32."""
        if not self.int8:
            return value
        narrow = self.arrays.kinds["f32"]
        value = value.astype(narrow)
        scale = abs(value).max(-1, keepdims=True) * (narrow(1) / narrow(127))
        scale = self.xp.where(scale == 0, narrow(1), scale)
        return self.xp.rint(value * (narrow(1) / scale)).astype(float) * scale

    def outputs(self, narrow, x, expert, weight, up, down):
        """Returns [tokens][hidden] of a rank, with unrounded weights; narrow: each expert's output is rounded
        separately."""
        xp, rounded, local = self.xp, self.arrays.rounded, self.experts // self.ranks
        if self.quantises:
            codes, _, scale, _ = fp8.quantised(xp, x, 0 * x, self.code)
            x = rounded((codes.reshape(*scale.shape, 128) * scale[..., None]).reshape(x.shape))
        total = [0 * x for _ in range(self.ranks)]
        for e in range(self.experts):
            token, k = xp.where(expert == e)
            a = self.rows(x[token]) @ up[e][0].T
            if self.swiglu:
                gate, other = a[:, :self.ffn], a[:, self.ffn:]
                a = gate / (1 + xp.exp(-gate)) * other
            y = self.rows(rounded(a)) @ down[e][0].T
            total[e // local][token] += weight[token, k][:, None] * (rounded(y) if narrow else y)
        return rounded(sum(map(rounded, total)) if self.fused else sum(total))

    def check(self, gpu):
        tokens, differ, worst, (up, down) = 0, 0, 0.0, self.weights()
        for x, out, expert, weight in self.calls():
            want = self.outputs(gpu or not self.fused, x, expert, weight, up, down)
            tokens, differ = tokens + len(x), differ + int((want != out).sum())
            size, error = ((v * v).sum(-1) ** 0.5 for v in (want, want - out))
            worst = max([worst, *(error / self.xp.where(size == 0, 1 + size, size)).tolist()])
        good = tokens > 0 and (differ == 0 if self.exact else worst <= OFF)
        return good, f"{tokens} tokens, {differ} elements differ, a token by {worst:.5f} at most"

    def outside(self, gpu, planted=None):
        """Elements that are wrong, tokens, outputs that have two ends, and elements of the intermediate that have two codes,
        of how many."""
        wrong = tokens = ends = two = of = 0
        up, down = self.weights(planted)
        for x, out, expert, weight in self.calls():
            least, most, n, all_of = fp8.outputs(
                self.xp, x, expert, weight, up, down, self.experts // self.ranks if self.fused else self.experts,
                self.swiglu, int(FP8_BITS) if gpu else 0, self.code, self.arrays.rounded, gpu or not self.fused)
            for have, low, high in zip(out, least, most):
                wrong += int(((have < low) | (have > high)).sum())
                ends += int((low != high).sum())
            tokens, two, of = tokens + len(x), two + n, of + all_of
        return wrong, tokens, ends, two, of

    def check_fp8(self, gpu):
        wrong, tokens, ends, two, of = self.outside(gpu)
        noticed = [self.outside(gpu, planted)[0] for planted in ("up", "down")]
        good = tokens > 0 and wrong == 0 and (ends == 0 if self.exact else 0 not in noticed)
        return good, (f"{tokens} tokens, {two} of {of} elements of the intermediate have two codes, {ends} of "
                      f"{tokens * self.hidden} outputs two ends, {wrong} wrong; with a wrong scale {noticed[0]} and {noticed[1]}")


def main(program, tap, fused, ll_v2, more=None):
    torch, emulated = ll_v2 == "--torch", ll_v2 == "--gpu"
    gpu = torch or emulated
    try:
        arrays = Torch() if torch else NumPy()
    except ImportError as error:
        print(f"skipped: {error} (pip install ml_dtypes numpy)")
        return 77
    shape = {"ranks": 2, "hidden": 256, "ffn": 384, "experts": 8, "topk": 3}
    if torch:
        shape = {"ranks": int(more or 2), "hidden": 1024, "ffn": 512, "experts": 16, "topk": 4}
    paths = ["--plugin-path", tap] + (["--plugin-path", more] if emulated else [])
    environment = os.environ | ({"EPA2A_SIMT_FP8_BITS": FP8_BITS} if emulated else {})
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        config = pathlib.Path(root, "layer.yaml")
        config.write_text(CONFIG.format(**shape))
        for name, (sets, weights_of, quantises) in (ON_GPUS if torch else EMULATED if emulated else ON_CPUS).items():
            folder = pathlib.Path(root, name)
            folder.mkdir()
            settings = {"algorithm.plugin": fused if name.startswith("fused") else ll_v2, "algorithm.folder": folder} | sets
            if gpu:
                settings |= {"backend": "cuda", "transport": "nvlink", "algorithm.fp8_rows": str(quantises).lower()}
            done = subprocess.run([program, "verify", config, *paths, "--quiet"] +
                                  [word for key, value in settings.items() for word in ("--set", f"{key}={value}")],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
            if done.returncode == 3 and name.endswith("oneDNN"):
                print(f"{name}: not here: {done.stderr.strip()}")
                continue
            if done.returncode != 0:
                print(f"{name}: exit code {done.returncode}: {done.stderr}")
                return 1
            own = shape | {key: sets.get(option, shape[key]) for key, option in (("hidden", "moe.hidden"), ("ffn", "expert.ffn"))}
            layer = Layer(arrays, own, name, sets, quantises, folder, pathlib.Path(root, weights_of or name))
            good, said = layer.check_fp8(gpu) if layer.fp8 else layer.check(gpu)
            print(f"{name}: {said}{'' if good else ': WRONG'}", flush=True)
            wrong += not good
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
