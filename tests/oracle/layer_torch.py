#!/usr/bin/env python3
"""The fused layer on GPUs, worked out again by PyTorch on a GPU: from the tokens, routes and weights that a rank
had, which the algorithm `tap` writes to files, and the definition in src/epa2a/problem.h. As layer.py, for where
there are GPUs and torch.

layer_torch.py EPA2A TAP FUSED [RANKS]: the program, the folder with tap, the plugin. A token's output is compared
by its norm, as roundings may fall to either side; with integers, whose sums are exact, each element; in FP8 each
element by what it may be at most and at least (fp8.py), which a scale exchanged for its neighbour must fail."""
import math
import pathlib
import subprocess
import sys
import tempfile

import torch

import fp8

HIDDEN, FFN, EXPERTS, TOPK, CALLS = 1024, 512, 16, 4, 3
OFF = 1 / 256
FP8_BITS = 13  # of sums of tensor cores
E4M3 = torch.float8_e4m3fn

# Tokens a rank: few rows of an expert, whose tiles are swapped; whole tiles, and what is left of them.
SHAPES = {"24 tokens": 24, "700 tokens": 700}
CASES = {
    "bf16": {},
    "bf16, integers": {"expert.activation": "none", "expert.values": "integers"},
    "FP8": {"expert.weights": "fp8", "algorithm.fp8_rows": "true"},
    "FP8, integers": {"expert.weights": "fp8", "algorithm.fp8_rows": "true", "expert.activation": "none",
                      "expert.values": "integers"},
}
CONFIG = f"""
version: 1
ranks: 2
backend: cuda
transport: nvlink
algorithm: tap
moe: {{hidden: {HIDDEN}, experts: {EXPERTS}, topk: {TOPK}, fp8_group_size: 128, dtype: bf16}}
expert: {{kind: mlp, ffn: {FFN}, activation: swiglu}}
routing: {{kind: masked, share: 0.2}}
tokens: random
seed: 12
verify: {{iterations: {CALLS}}}
timeout: 30s
"""


def quantised(value):
    """Rows to what FP8 with a scale for each 128 channels holds of them, in float64."""
    group = value.float().reshape(*value.shape[:-1], value.shape[-1] // 128, 128)
    amax = group.abs().amax(-1, keepdim=True)
    scale = torch.where(amax == 0, torch.ones_like(amax), amax * (1.0 / 448.0))
    codes = (group / scale).clamp(-448, 448).to(E4M3)
    return (codes.float().double() * scale.double()).reshape(value.shape)


def rounded(value):
    return value.to(torch.bfloat16).double()


def read(path, kind, *shape):
    """An array of as many of shape[1:] as there are."""
    size = path.stat().st_size
    raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    return raw.view(kind).reshape(*(size // kind.itemsize // math.prod(shape[1:]), *shape[1:])).cuda()


def weights(folder, case, ranks):
    both = []
    up_rows = FFN if case.get("expert.activation") == "none" else 2 * FFN
    for name, rows, columns in ("up", up_rows, HIDDEN), ("down", HIDDEN, FFN):
        fp8 = "expert.weights" in case
        w = torch.cat([read(folder / f"{r}.{name}", E4M3 if fp8 else torch.bfloat16, -1, rows, columns).float().double()
                       for r in range(ranks)])
        if fp8:
            scale = torch.cat([read(folder / f"{r}.{name}_scale", torch.float32, -1, rows // 128, columns // 128)
                               for r in range(ranks)]).double()
            w *= scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        both.append(w)
    return both


def code(value):
    return value.clamp(-448, 448).float().to(E4M3).double()


def fp8_weights(folder, ranks, planted):
    """Codes and scales of W_up and W_down of each expert."""
    both = []
    for name, rows, columns in ("up", 2 * FFN, HIDDEN), ("down", HIDDEN, FFN):
        both.append([])
        for r in range(ranks):
            w = read(folder / f"{r}.{name}", E4M3, -1, rows, columns).float().double()
            scale = read(folder / f"{r}.{name}_scale", torch.float32, -1, rows // 128, columns // 128).double()
            both[-1] += list(zip(w, scale))
    if planted:
        scale = both[planted == "down"][EXPERTS // 2][1]
        scale[:2, 0] = scale[:2, 0].flip(0)
    return both


def outside(folder, ranks, planted=None):
    """Elements that are wrong; tokens; elements of the intermediate that have two codes, of how many; outputs that have
    two ends."""
    wrong = tokens = two = of = ends = 0
    up, down = fp8_weights(folder, ranks, planted)
    for path in sorted(folder.glob("*.out")):
        x, out = (read(folder / f"{path.stem}.{what}", torch.bfloat16, -1, HIDDEN).double() for what in ("x", "out"))
        expert = read(folder / f"{path.stem}.expert", torch.int32, -1, TOPK)
        weight = read(folder / f"{path.stem}.weight", torch.float32, -1, TOPK)
        least, most, n, all_of = fp8.outputs(torch, x, expert, weight, up, down, EXPERTS // ranks, True, FP8_BITS, code, rounded)
        if len(x):
            least, most = torch.stack(least), torch.stack(most)
            wrong += int(((out < least) | (out > most)).sum())
            ends += int((least != most).sum())
        tokens, two, of = tokens + len(x), two + n, of + all_of
    return wrong, tokens, two, of, ends


def outputs(case, ranks, x, expert, weight, up, down):
    fp8 = "expert.weights" in case
    x = quantised(x) if fp8 else x.double()
    total = torch.zeros(len(x), ranks, HIDDEN, dtype=torch.float64, device="cuda")
    for e in range(EXPERTS):
        token, k = torch.nonzero(expert == e, as_tuple=True)
        a = x[token] @ up[e].T
        if "expert.activation" not in case:
            a = torch.nn.functional.silu(a[:, :FFN]) * a[:, FFN:]
        y = rounded((quantised(a) if fp8 else rounded(a)) @ down[e].T)
        total[token, e * ranks // EXPERTS] += weight[token, k][:, None].double() * y
    return rounded(rounded(total).sum(1))


def main(program, tap, fused, ranks="2"):
    wrong, ranks = 0, int(ranks)
    for shape, tokens in SHAPES.items():
        for name, case in CASES.items():
            with tempfile.TemporaryDirectory() as root:
                folder = pathlib.Path(root)
                config = folder / "layer.yaml"
                config.write_text(CONFIG)
                settings = {"ranks": ranks, "moe.max_tokens": tokens, "algorithm.plugin": fused,
                            "algorithm.folder": folder} | case
                done = subprocess.run([program, "verify", config, "--plugin-path", tap, "--quiet"] +
                                      [word for key, value in settings.items() for word in ("--set", f"{key}={value}")],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                if done.returncode != 0:
                    print(f"{shape}, {name}: exit code {done.returncode}: {done.stderr}")
                    return 1
                if name == "FP8":
                    bad, seen, two, of, ends = outside(folder, ranks)
                    noticed = [outside(folder, ranks, planted)[0] for planted in ("up", "down")]
                    good = seen > 0 and bad == 0 and 0 not in noticed
                    wrong += not good
                    print(f"{shape}, {name}: {seen} tokens, {two} of {of} elements of the intermediate have two codes, "
                          f"{ends} of {seen * HIDDEN} outputs two ends, {bad} wrong; with a wrong scale {noticed[0]} and "
                          f"{noticed[1]}{'' if good else ': WRONG'}", flush=True)
                    continue
                up, down = weights(folder, case, ranks)
                seen = differ = 0
                worst = 0.0
                for path in sorted(folder.glob("*.out")):
                    x, out = (read(folder / f"{path.stem}.{what}", torch.bfloat16, -1, HIDDEN) for what in ("x", "out"))
                    expert = read(folder / f"{path.stem}.expert", torch.int32, -1, TOPK)
                    weight = read(folder / f"{path.stem}.weight", torch.float32, -1, TOPK)
                    want, have = outputs(case, ranks, x, expert, weight, up, down), out.double()
                    seen += len(x)
                    differ += int((want != have).sum())
                    size = want.norm(dim=1)
                    error = (want - have).norm(dim=1) / torch.where(size == 0, 1, size)
                    worst = max([worst] + error.tolist())
                good = seen > 0 and (differ == 0 if "expert.values" in case else worst <= OFF)
                wrong += not good
                print(f"{shape}, {name}: {seen} tokens, {differ} elements differ, a token by {worst:.5f} at most"
                      f"{'' if good else ': WRONG'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
