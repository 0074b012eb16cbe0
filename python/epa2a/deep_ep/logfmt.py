"""LogFMT-10, the format of the expert outputs of DeepEP's low-latency combine.

A value has a sign and a code of 9 bits. Code 0 is the value 0. The codes 1 to 511 are equal steps of the
logarithm, from the least to the largest magnitude of 128 channels, at most 32 octaves. A row has parts of
1024 channels, or of 512 if hidden is no multiple of 1024. A part keeps its values unless each of its
groups has a largest magnitude below 1 and a smaller least magnitude.

round_rows() computes the values of the format, rounded to BF16. The rows between the ranks are these
BF16 rows."""

import sys

GROUP = 128
CODES = 512
OCTAVES = 32
PART = 1024, 512  # channels
# Bytes of the BF16 rows that one step converts on a device: the step needs about ten times as much memory.
STEP_BYTES = 64 << 20


def part_of(hidden):
    """Returns the channels of a part; 0: the format has no parts for `hidden`."""
    return next((part for part in PART if hidden % part == 0), 0)


def rounded(xp, x, hidden):
    """Returns float32 rows [n, hidden] as values of the format. xp: the module of the framework."""
    part = part_of(hidden)
    groups = x.reshape(-1, part // GROUP, GROUP)
    size = xp.abs(groups)
    most, least = xp.amax(size, -1, keepdims=True), xp.amin(size, -1, keepdims=True)
    has_codes = xp.all((most < 1) & (least < most), 1, keepdims=True)  # False with NaN
    top = xp.log2(most)
    low = xp.maximum(xp.log2(least), top - OCTAVES)
    step = (top - low) / (CODES - 2)
    # The border of two codes is the middle of their values, not of their logarithms.
    border = 2 - xp.log2((1 + xp.exp2(step)) / 2) / step
    code = xp.floor(xp.clip((xp.log2(size) - low) / step + border, 0, CODES - 1))
    value = xp.exp2((code - 1) * step + low) * (code > 0)
    return xp.where(has_codes, xp.copysign(value, groups), groups).reshape(-1, hidden)


def _round_numpy(y, out):
    import numpy

    bits = y.view(numpy.uint16)
    with numpy.errstate(all="ignore"):  # zeros have no logarithm
        value = rounded(numpy, (bits.astype(numpy.uint32) << 16).view(numpy.float32), y.shape[-1])
    word = numpy.ascontiguousarray(value).view(numpy.uint32)
    # To nearest even. A part that keeps its values has no lower bits.
    word = (word + (0x7FFF + (word >> 16 & 1)) * (word & 0xFFFF != 0)) >> 16
    out.view(numpy.uint16)[:] = word.astype(numpy.uint16)


def _round_torch(y, out):
    torch = sys.modules["torch"]
    out.copy_(rounded(torch, y.to(torch.float32), y.shape[-1]))


def round_rows(y, out, counts=None):
    """Writes the rounded rows of y [experts, rows, hidden] to `out`. counts: number of rows of each
    expert in host memory; None: all rows."""
    one = _round_torch if hasattr(y, "data_ptr") else _round_numpy
    if counts is not None:
        for e, n in enumerate(counts):
            one(y[e, : int(n)], out[e, : int(n)])
        return
    y, out = (x.reshape(-1, x.shape[-1]) for x in (y, out))
    step = max(1, STEP_BYTES // (2 * y.shape[1]))
    for first in range(0, y.shape[0], step):
        one(y[first : first + step], out[first : first + step])
