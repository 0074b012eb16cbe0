#!/usr/bin/env python3
"""Works out again, with NumPy and ml_dtypes, what the kernels made: to the bit.

kernels.py PROGRAM: PROGRAM FOLDER writes arrays there (kernels.c says which) and prints the
sets of kernels that this CPU has. Nothing here is shared with the C code; what is held is
the definition in src/epa2a/problem.h and src/epa2a/quant.h."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    print(f"skipped: {error} (pip install ml_dtypes numpy)")
    sys.exit(77)

BF16, F16, E4M3, F32 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, np.float32
TYPES = {"bf16": BF16, "f16": F16}
GROUPS, TERMS, WIDTH = (16, 40, 64, 128, 256, 512), (1, 2, 3, 8, 17, 32), 5120


def to_e4m3(value):
    """float32 to codes; the type itself makes NaN of what is too large, we saturate."""
    sign = np.signbit(value).astype(np.uint8) << 7
    codes = np.clip(value, F32(-448), F32(448)).astype(E4M3).view(np.uint8)
    return np.where(np.isnan(value), sign | 0x7F, codes).astype(np.uint8)


def quantise(x, group, kind):
    """Of 16 bits to codes and scales."""
    value = x.view(kind).astype(F32).reshape(-1, group)
    amax = np.where(np.isfinite(value), np.abs(value), F32(0)).max(axis=1)
    scale = np.where(amax == 0, F32(1), amax * (F32(1) / F32(448)))
    return to_e4m3(value / scale[:, None]).ravel(), scale


def answer(codes, scale, group, kind):
    """What expert r answers to row r: float32 products, each rounded, then `kind`."""
    value = codes.view(E4M3).astype(F32).reshape(-1, group) * scale[:, None]
    turn = np.arange(codes.size // WIDTH) * 37 % 251
    factor = np.where(turn < 128, 1 + turn / 128, 2 * (1 + (turn - 128) / 128)).astype(F32)
    return (value.reshape(-1, WIDTH) * factor[:, None]).astype(kind).view(np.uint16).ravel()


def fused(a, b, c):
    """a * b + c rounded once to float32. The product is exact in float64; the sum is made so
    that rounding it again does no harm: what is cut off sets its last bit."""
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    other = total - product
    rest = (product - (total - other)) + (c - other)
    bits = total.view(np.int64)
    step = np.where((rest > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(total) & (rest != 0)
    odd = np.where(inexact & (bits & 1 == 0), bits + step, bits)
    return odd.view(np.float64).astype(F32)


def add_up(rows, weight, kind):
    acc = np.zeros(WIDTH, F32)
    for row, w in zip(rows.view(kind).astype(F32).reshape(-1, WIDTH), weight):
        acc = fused(np.full(WIDTH, w, F32), row, acc)
    return acc.astype(kind).view(np.uint16)


def add_up_fp8(codes, scale, group, kind):
    """Sums of n rows from row n on, for each n; kernels.c has the weights."""
    value = (codes.view(E4M3).astype(F32).reshape(-1, group) * scale[:, None]).reshape(-1, WIDTH)
    sums = []
    for n in TERMS:
        acc = np.zeros(WIDTH, F32)
        for k in range(n):
            weight = F32(1) / F32(k + 3)
            acc = fused(np.full(WIDTH, weight, F32), value[n + k], acc)
        sums.append(acc.astype(kind).view(np.uint16))
    return np.concatenate(sums)


class Holder:
    def __init__(self, folder):
        self.folder, self.compared, self.wrong = pathlib.Path(folder), 0, 0

    def read(self, name, kind):
        return np.fromfile(self.folder / name, kind)

    def hold(self, name, want, nan=None):
        """The array in a file is `want` to the bit. nan: as which type a NaN is any NaN."""
        have = self.read(name, want.dtype)
        if have.size != want.size or want.size == 0:
            print(f"{name}: {have.size} elements, should be {want.size}")
            self.wrong += 1
            return
        bits = f"u{want.dtype.itemsize}"
        differs = have.view(bits) != want.view(bits)
        if nan is not None:
            differs &= ~(np.isnan(have.view(nan)) & np.isnan(want.view(nan)))
        self.compared += want.size
        self.wrong += int(differs.sum())
        for i in np.flatnonzero(differs)[:3]:
            print(f"{name}: element {i} is {have.view(bits)[i]:#x}, should be "
                  f"{want.view(bits)[i]:#x}")


def main(program):
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        done = subprocess.run([program, folder], check=True, stdout=subprocess.PIPE, text=True)
        holder, sets = Holder(folder), done.stdout.split()
        value = holder.read("scalars-0.float", F32)
        holder.hold("scalars-0.bf16", value.astype(BF16).view(np.uint16), nan=BF16)
        holder.hold("scalars-0.f16", value.astype(F16).view(np.uint16), nan=F16)
        words = np.arange(65536, dtype=np.uint16)
        holder.hold("scalars-0.widened", words.view(F16).astype(F32), nan=F32)
        holder.hold("scalars-0.e4m3", to_e4m3(value))
        codes = np.arange(256, dtype=np.uint8)
        holder.hold("scalars-0.decoded", codes.view(E4M3).astype(F32), nan=F32)
        for name in sets:
            kind = TYPES[name.split("-")[1]]
            for group in GROUPS:
                codes, scale = quantise(holder.read(f"{name}-{group}.x", np.uint16), group, kind)
                holder.hold(f"{name}-{group}.q", codes)
                holder.hold(f"{name}-{group}.scale", scale)
                holder.hold(f"{name}-{group}.y", answer(codes, scale, group, kind), nan=kind)
                holder.hold(f"{name}-{group}.sums", add_up_fp8(codes, scale, group, kind), nan=kind)
            for n in TERMS:
                rows = holder.read(f"{name}-{n}.rows", np.uint16)
                weight = holder.read(f"{name}-{n}.weight", F32)
                holder.hold(f"{name}-{n}.sum", add_up(rows, weight, kind))
        print(f"{', '.join(sets)}: {holder.compared} values, {holder.wrong} wrong")
        return 0 if sets and holder.wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
