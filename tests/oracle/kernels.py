#!/usr/bin/env python3
"""Recomputes the reference of kernels (unit/kernels.c) with NumPy and ml_dtypes for many inputs, and compares to the
bit.

kernels.py PROGRAM: kernels.c describes PROGRAM. This script shares no code with the C sources; it follows the
definitions in include/epa2a/problem.h and include/epa2a/quant.h."""
import subprocess
import sys

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    print(f"skipped: {error} (pip install ml_dtypes numpy)")
    sys.exit(77)

BF16, F16, E4M3, F32, U16 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, np.float32, np.uint16
TYPES = {"bf16": BF16, "f16": F16}
GROUPS, VALUES = (16, 40, 64, 128, 256, 512), 96 * 5120  # each of groups divides them


def make_floats(random):
    """Any bits; where e4m3 has its numbers, and f16, whose ties are below; and at ties."""
    bits = random.integers(0, 1 << 32, 1 << 19, np.uint32)
    i = np.arange(bits.size)
    bits = np.where(i % 2 == 0, (bits & 0x83ffffff) + (112 << 23), np.where(i % 3 == 0, (bits & 0x8ffff000) + (100 << 23), bits))
    return np.where(i % 4 == 0, bits & 0xfff80000, bits).astype(np.uint32).view(F32)


def make_groups(random, groups, size, f16):
    """Makes a group of each kind in turn: around 1, any bits, zeros, one outlier, denormals, about equal, huge, and
    with non-finite values."""
    infinity, denormal, octaves = (0x7c00, 0x83ff, 0x8fff) if f16 else (0x7f80, 0x807f, 0x83ff)
    near, huge = (12 << 10, 27 << 10) if f16 else (0x78 << 7, 0xf8 << 7)
    any_ = random.integers(0, 1 << 16, (groups, size), U16)
    kind = (np.arange(groups) % 8)[:, None]
    x = np.select([kind == 1, kind == 7, kind == 2, kind == 4, kind == 5, kind == 6],
                  [any_, any_, any_ & 0x8000, any_ & denormal, (any_ & 0x8000) | (0x4000 + any_ % 8), (any_ & octaves) + huge],
                  (any_ & octaves) + near).astype(U16)
    x = np.where((kind != 7) & (x & infinity == infinity), x & 0xbfff, x)
    outlier = np.arange(3, groups, 8)
    x[outlier, random.integers(0, size, outlier.size)] = 0x7ab1 if f16 else 0x4eb1
    return x


def to_e4m3(value):
    """Converts float32 to codes. The type itself converts too large values to NaN; this function saturates."""
    sign = np.signbit(value).astype(np.uint8) << 7
    codes = np.clip(value, F32(-448), F32(448)).astype(E4M3).view(np.uint8)
    return np.where(np.isnan(value), sign | 0x7F, codes).astype(np.uint8)


def quantise(x, group, kind):
    """Of 16 bits to codes and scales."""
    value = x.view(kind).astype(F32).reshape(-1, group)
    amax = np.where(np.isfinite(value), np.abs(value), F32(0)).max(axis=1)
    scale = np.where(amax == 0, F32(1), amax * (F32(1) / F32(448)))
    return to_e4m3(value / scale[:, None]).ravel(), scale


class Holder:
    def __init__(self, program):
        self.program, self.compared, self.wrong = program, 0, 0

    def hold(self, words, given, *wants):
        """What the program prints is `wants`, one after the other, to the bit: arrays, with the type as which any NaN
        is as good as a NaN, or None."""
        done = subprocess.run([self.program, *map(str, words)], input=given.tobytes(), check=True, stdout=subprocess.PIPE)
        assert len(done.stdout) == sum(want.nbytes for want, _ in wants), (words, len(done.stdout))
        at = 0
        for number, (want, nan) in enumerate(wants):
            have = np.frombuffer(done.stdout[at:at + want.nbytes], want.dtype)
            at += want.nbytes
            bits = f"u{want.dtype.itemsize}"
            differs = have.view(bits) != want.view(bits)
            if nan is not None:
                differs &= ~(np.isnan(have.view(nan)) & np.isnan(want.view(nan)))
            self.compared += want.size
            self.wrong += int(differs.sum())
            for i in np.flatnonzero(differs)[:3]:
                print(f"{words}, array {number}: element {i} is {have.view(bits)[i]:#x}, should be {want.view(bits)[i]:#x}")


def main(program):
    holder, random = Holder(program), np.random.default_rng(88172645463325252)
    with np.errstate(all="ignore"):
        value, turn = make_floats(random), np.arange(251) * 37 % 251
        holder.hold(["scalars"], value, (value.astype(BF16).view(U16), BF16), (value.astype(F16).view(U16), F16),
                    (to_e4m3(value), None), (np.arange(256, dtype=np.uint8).view(E4M3).astype(F32), F32),
                    (np.arange(65536, dtype=U16).view(F16).astype(F32), F32),
                    (np.where(turn < 128, 1 + turn / 128, 2 * (1 + (turn - 128) / 128)).astype(F32), None))
        for type_, kind in TYPES.items():
            for group in GROUPS:
                x = make_groups(random, VALUES // group, group, type_ == "f16")
                holder.hold([type_, group], x, *((array, None) for array in quantise(x, group, kind)))
    print(f"{holder.compared} values, {holder.wrong} wrong")
    return 0 if holder.wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
