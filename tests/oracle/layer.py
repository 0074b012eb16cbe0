#!/usr/bin/env python3
"""A layer with real experts, worked out again with NumPy and ml_dtypes: from the tokens, routes and weights
that a rank had, which the algorithm `tap` writes to files, and the definition in src/epa2a/problem.h.

layer.py EPA2A TAP FUSED LL_V2: the program, the folder with tap, the two plugins. layer.py EPA2A TAP FUSED --gpu FOLDER: fused
on GPUs that CPUs emulate, by the plugins in FOLDER. Nothing here is shared with the C code. A token's output is
compared by its norm, as roundings may fall to either side; with integers, whose sums are exact, each element to
the bit; with FP8 weights, each element by what it may be at most and at least (fp8.py), and with a scale
exchanged for its neighbour that must fail."""
import os
import pathlib
import subprocess
import sys
import tempfile

import fp8

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    print(f"skipped: {error} (pip install ml_dtypes numpy)")
    sys.exit(77)

FP8_BITS = "13"  # of sums of tensor cores
BF16, E4M3, F32 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32
RANKS, TOKENS, HIDDEN, FFN, EXPERTS, TOPK, CALLS = 2, 24, 256, 384, 8, 3, 3
LOCAL, OFF = EXPERTS // RANKS, 1 / 256

# What each case sets besides, and how its algorithm moves tokens and outputs.
CASES = {
    "fused, bf16": {"set": {}},
    "fused, integers": {"set": {"expert.activation": "none", "expert.values": "integers"}},
    "fused, FP8 weights": {"set": {"expert.weights": "fp8"}, "fp8_weights": True},
    "ll_v2, bf16": {"set": {}, "weights_of": "fused, bf16", "fp8_rows": True},
    "ll_v2, FP8 weights": {"set": {"expert.weights": "fp8"}, "weights_of": "fused, FP8 weights",
                           "fp8_weights": True, "fp8_rows": True},
    "ll_v2, oneDNN": {"set": {"expert.library": "onednn"}, "weights_of": "fused, bf16",
                      "fp8_rows": True, "may_lack": True},
}
CONFIG = f"""
version: 1
ranks: {RANKS}
transport: shm
algorithm: tap
moe: {{max_tokens: {TOKENS}, hidden: {HIDDEN}, experts: {EXPERTS}, topk: {TOPK}, fp8_group_size: 128}}
expert: {{kind: mlp, ffn: {FFN}, activation: swiglu}}
routing: {{kind: masked, share: 0.2}}
tokens: random
seed: 11
verify: {{iterations: {CALLS}}}
timeout: 30s
"""


def quantised(value):
    """float32 rows to what FP8 with a scale for each 128 channels holds of them, in float64."""
    group = value.astype(F32).reshape(*value.shape[:-1], value.shape[-1] // 128, 128)
    amax = np.abs(group).max(axis=-1, keepdims=True)
    scale = np.where(amax == 0, F32(1), amax * (F32(1) / F32(448)))
    codes = np.clip(group / scale, F32(-448), F32(448)).astype(E4M3)
    return (codes.astype(np.float64) * scale.astype(np.float64)).reshape(value.shape)


def code(value):
    return np.clip(value, -448, 448).astype(F32).astype(E4M3).astype(np.float64)


def rounded(value):
    return value.astype(F32).astype(BF16).astype(np.float64)


def read(folder, name, kind, *shape):
    return np.fromfile(folder / name, kind).reshape(*shape)


def weights(folder, case):
    """W_up and W_down of all experts, in float64."""
    both, up_rows = [], FFN if case["set"].get("expert.activation") == "none" else 2 * FFN
    for name, rows, columns in ("up", up_rows, HIDDEN), ("down", HIDDEN, FFN):
        kind = E4M3 if case.get("fp8_weights") else BF16
        w = np.concatenate([read(folder, f"{r}.{name}", kind, LOCAL, rows, columns).astype(np.float64)
                            for r in range(RANKS)])
        if case.get("fp8_weights"):
            scale = np.concatenate([read(folder, f"{r}.{name}_scale", F32, LOCAL, rows // 128, columns // 128)
                                    for r in range(RANKS)]).astype(np.float64)
            w *= scale.repeat(128, axis=1).repeat(128, axis=2)
        both.append(w)
    return both


def fp8_weights(folder, case, planted):
    """Codes and scales of W_up and W_down of each expert."""
    up_rows = FFN if case["set"].get("expert.activation") == "none" else 2 * FFN
    both = []
    for name, rows, columns in ("up", up_rows, HIDDEN), ("down", HIDDEN, FFN):
        both.append([])
        for r in range(RANKS):
            w = read(folder, f"{r}.{name}", E4M3, LOCAL, rows, columns).astype(np.float64)
            scale = read(folder, f"{r}.{name}_scale", F32, LOCAL, rows // 128, columns // 128).astype(np.float64)
            both[-1] += [(w[e], scale[e].copy()) for e in range(LOCAL)]
    if planted:
        scale = both[planted == "down"][EXPERTS // 2][1]
        scale[0, 0], scale[1, 0] = scale[1, 0], scale[0, 0]
    return both


def compare_fp8(name, case, folder, by, gpu, planted=None):
    """Elements that are wrong, tokens, elements, and those of the intermediate that have two codes, of all."""
    wrong = tokens = elements = two = of = 0
    up, down = fp8_weights(by, case, planted)
    fused = name.startswith("fused")
    for path in sorted(folder.glob("*.out")):
        x, out = (read(folder, f"{path.stem}.{what}", BF16, -1, HIDDEN).astype(np.float64) for what in ("x", "out"))
        expert = read(folder, f"{path.stem}.expert", np.int32, -1, TOPK)
        weight = read(folder, f"{path.stem}.weight", F32, -1, TOPK)
        least, most, n, all_of = fp8.outputs(
            np, x, expert, weight, up, down, LOCAL if fused else EXPERTS,
            case["set"].get("expert.activation") != "none", int(FP8_BITS) if gpu else 0, code, rounded, gpu or not fused)
        for t, (low, high) in enumerate(zip(least, most)):
            wrong += int(((out[t] < low) | (out[t] > high)).sum())
            elements += int((low != high).sum())
        tokens, two, of = tokens + len(x), two + n, of + all_of
    return wrong, tokens, elements, two, of


def outputs(case, fused, x, expert, weight, up, down):
    """[tokens][hidden] of a rank, in float64."""
    x, fp8 = x.astype(np.float64), case.get("fp8_weights")
    if case.get("fp8_rows") or fp8:
        x = quantised(x) if fp8 else rounded(quantised(x).astype(F32))
    total = np.zeros((len(x), RANKS, HIDDEN))
    for e in range(EXPERTS):
        token, k = np.nonzero(expert == e)
        a = x[token] @ up[e].T
        if up.shape[1] == 2 * FFN:
            gate, other = a[:, :FFN], a[:, FFN:]
            a = gate / (1 + np.exp(-gate)) * other
        y = (quantised(a) if fp8 else rounded(a)) @ down[e].T
        if not fused:
            y = rounded(y)
        total[token, e // LOCAL] += weight[token, k][:, None].astype(np.float64) * y
    return rounded(rounded(total).sum(axis=1) if fused else total.sum(axis=1))


def compare(name, case, folder, by):
    """(tokens, elements that differ, the largest error of a token) of all calls of all ranks."""
    tokens = differ = 0
    worst = 0.0
    up, down = weights(by, case)
    for path in sorted(folder.glob("*.out")):
        stem = path.stem
        x, out = (read(folder, f"{stem}.{what}", BF16, -1, HIDDEN) for what in ("x", "out"))
        expert = read(folder, f"{stem}.expert", np.int32, -1, TOPK)
        weight = read(folder, f"{stem}.weight", F32, -1, TOPK)
        want, have = outputs(case, name.startswith("fused"), x, expert, weight, up, down), out.astype(np.float64)
        tokens += len(x)
        differ += int((want != have).sum())
        size = np.linalg.norm(want, axis=1)
        error = np.linalg.norm(want - have, axis=1) / np.where(size == 0, 1, size)
        worst = max(worst, error.max(initial=0))
    return tokens, differ, worst


def check_fp8(name, case, folder, by, gpu):
    wrong, tokens, elements, two, of = compare_fp8(name, case, folder, by, gpu)
    noticed = [compare_fp8(name, case, folder, by, gpu, planted)[0] for planted in ("up", "down")]
    good = tokens > 0 and wrong == 0 and 0 not in noticed
    print(f"{name}: {tokens} tokens, {two} of {of} elements of the intermediate have two codes, {elements} of "
          f"{tokens * HIDDEN} outputs two ends, {wrong} wrong; with a wrong scale {noticed[0]} and {noticed[1]}"
          f"{'' if good else ': WRONG'}")
    return good


def check(name, case, folder, by):
    tokens, differ, worst = compare(name, case, folder, by)
    good = tokens > 0 and (differ == 0 if case["set"].get("expert.values") == "integers" else worst <= OFF)
    print(f"{name}: {tokens} tokens, {differ} elements differ, a token by {worst:.5f} at most{'' if good else ': WRONG'}")
    return good


def main(program, tap, fused, ll_v2, gpus=None):
    wrong, gpu = 0, ll_v2 == "--gpu"
    paths = ["--plugin-path", tap] + (["--plugin-path", gpus] if gpu else [])
    environment = os.environ | ({"EPA2A_SIMT_FP8_BITS": FP8_BITS} if gpu else {})
    with tempfile.TemporaryDirectory() as root:
        config = pathlib.Path(root, "layer.yaml")
        config.write_text(CONFIG)
        for name, case in CASES.items():
            if gpu and not case.get("fp8_weights") or gpu and not name.startswith("fused"):
                continue
            folder = pathlib.Path(root, name)
            folder.mkdir()
            settings = {"algorithm.plugin": fused if name.startswith("fused") else ll_v2,
                        "algorithm.folder": folder} | case["set"]
            if gpu:
                settings |= {"backend": "cuda", "transport": "nvlink", "algorithm.fp8_rows": "true"}
            done = subprocess.run([program, "verify", config, *paths, "--quiet"] +
                                  [word for key, value in settings.items() for word in ("--set", f"{key}={value}")],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
            if done.returncode == 3 and case.get("may_lack"):
                print(f"{name}: not here: {done.stderr.strip()}")
                continue
            if done.returncode != 0:
                print(f"{name}: exit code {done.returncode}: {done.stderr}")
                return 1
            by = pathlib.Path(root, case.get("weights_of", name))
            good = check_fp8(name, case, folder, by, gpu) if case.get("fp8_weights") else check(name, case, folder, by)
            wrong += not good
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
