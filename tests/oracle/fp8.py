"""Recomputes layers in FP8 and tracks the permitted deviations of an implementation, for layer.py (NumPy and torch;
the module is `xp`). Arrays are float64.

A sum of FP8 products is either a sum of Hopper's tensor cores, which is known to the bit: 32 products and the current
sum are aligned to the largest of their exponents, cut to `bits` fraction bits and added, and the sum is cut to the
same number, four times for a group of 128, whose sum is scaled in float32. The exponent of a product is the sum of
the exponents of its codes. Or it is a float32 sum in any order (`bits` 0) within a bound. Then an activation is
quantised again. Any error of it, however small, moves an element to the next code near a boundary, by a sixteenth of
its value: the bound is therefore not a constant. Elements with two possible codes are counted, with their largest
effect on each output."""
UNIT = 2.0 ** -23  # an addition of float32, rounded or cut
GROUP, STEP = 128, 32
LEAST, NONE = 2.0 ** -6, -99  # of a code that has an exponent of its own; that of nothing
REST = float.fromhex("0x1.24924a0000000p-9")  # 1 / 448 in float32
TINY = 2.0 ** -140


def single(xp, v):
    """Rounded to float32."""
    return v.float().double() if hasattr(v, "float") else v.astype(xp.float32).astype(xp.float64)


def exponent_of(xp, v):
    """The largest power of two that is not above |v|, as its exponent."""
    return xp.frexp(v)[1] - 1


def tensor_core_group(xp, codes, w, bits):
    """[m][n] sums of one group: codes [m][128], w [n][128]."""
    total = codes[:, :1] * 0 * w[None, :, 0]
    of_code, of_w = (exponent_of(xp, xp.where(xp.abs(v) < LEAST, LEAST + 0 * v, v)) for v in (codes, w))
    for at in range(0, GROUP, STEP):
        p = codes[:, None, at:at + STEP] * w[None, :, at:at + STEP]
        e = of_code[:, None, at:at + STEP] + of_w[None, :, at:at + STEP]
        e = xp.amax(xp.where(p == 0, NONE + 0 * e, e), -1)
        e = xp.maximum(e, xp.where(total == 0, NONE + 0 * e, exponent_of(xp, total))) - bits
        p = xp.trunc(xp.ldexp(p, -e[..., None])).sum(-1) + xp.trunc(xp.ldexp(total, -e))
        cut = exponent_of(xp, p) - bits
        total = xp.ldexp(xp.trunc(xp.ldexp(p, -cut)), cut + e)
    return total


def product(xp, codes, radius, scale, drift, w, w_scale, bits):
    """Sums and how far off they may be: codes [m][k] +- radius, scale [m][k / 128], off by a share of `drift`;
    w [n][k] codes, w_scale [n / 128][k / 128]."""
    total, off, magnitudes = 0.0, 0.0, 0.0
    for g in range(codes.shape[1] // GROUP):
        at = slice(g * GROUP, (g + 1) * GROUP)
        c, v, r = codes[:, at], w[:, at], radius[:, at]
        by = single(xp, scale[:, g:g + 1] * spread(xp, w_scale[:, g])[None])
        size, within = xp.abs(c) @ xp.abs(v).T, r @ xp.abs(v).T
        if bits:
            part = tensor_core_group(xp, c, v, bits)
            total = single(xp, part * by + total)
            # Another code may align all of the group otherwise: each addend, and each sum, is cut elsewhere, at most.
            unit = xp.ldexp(1 + 0 * size, exponent_of(xp, xp.maximum(size + within, 4 + 0 * size)) - bits)
            within = xp.where(xp.amax(r, -1)[:, None] > 0, within + 2 * GROUP // STEP * (STEP + 2) * unit, 0 * unit)
        else:
            part = c @ v.T
            total = total + part * by
        off = off + by * (within + drift[:, g:g + 1] * (xp.abs(part) + within))
        magnitudes = magnitudes + by * size
    groups = codes.shape[1] // GROUP
    if bits:  # what follows what is off is rounded elsewhere
        return total, off + xp.where(off > 0, (groups + 3) * UNIT * (magnitudes + off), 0 * off)
    return total, off + (GROUP + groups + 3) * UNIT * (magnitudes + off)


def spread(xp, v):
    """A value for each row of a block of 128."""
    return xp.repeat_interleave(v, GROUP, 0) if hasattr(xp, "repeat_interleave") else xp.repeat(v, GROUP, 0)


def activation(xp, value, off, ffn):
    """SwiGLU of [gate, up], with the exp and the division of float32 that is fast, not exact."""
    g, u = value[:, :ffn], value[:, ffn:]
    s = g / (1 + xp.exp(-g))
    rest = xp.abs(s * u) * (8 + 2 * xp.abs(g)) * UNIT
    return s * u, 1.1 * off[:, :ffn] * (xp.abs(u) + off[:, ffn:]) + xp.abs(s) * off[:, ffn:] + rest


def quantised(xp, value, off, code):
    """value +- off in FP8: codes, their radius, scales, and how far off these may be, as a share. code(v): v
    as FP8, saturated."""
    shape = (value.shape[0], value.shape[1] // GROUP, GROUP)
    low, high = (single(xp, v.reshape(shape)) for v in (value - off, value + off))
    least = xp.where((low <= 0) & (high >= 0), 0 * low, xp.minimum(xp.abs(low), xp.abs(high)))
    most = xp.amax(xp.maximum(xp.abs(low), xp.abs(high)), -1)[..., None]
    least = xp.amax(least, -1)[..., None]
    small, large = (xp.where(most == 0, 1 + 0 * most, single(xp, m * REST) + TINY) for m in (least, most))
    ends = [code(single(xp, xp.where(away, v / small, v / large))).reshape(value.shape)
            for v, away in ((low, low < 0), (high, high > 0))]
    return (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2, large[..., 0], ((large - small) / large)[..., 0]


def outputs(xp, x, expert, weight, up, down, local, swiglu, bits, code, rounded, narrow=True):
    """The least and the largest output that is right, [tokens][hidden], and of how many elements of how many of the
    intermediate there are two codes. x [tokens][hidden], expert and weight [tokens][topk]; up and down of each
    expert: codes and scales; `local` experts a rank, whose outputs return as one row; code(v), rounded(v): v
    as FP8, and in the type of outputs, which each output has by itself (`narrow`) before they are added up."""
    ranks, topk = len(up) // local, expert.shape[1]
    x, none, scale, drift = quantised(xp, x, 0 * x, code)
    experts, weights = expert.tolist(), weight.tolist()
    two = of = 0
    y = {}
    for e in range(len(up)):
        token = [(t, k) for t, k in zip(*(v.tolist() for v in xp.where(expert == e)))]
        if not token:
            continue
        rows = [t for t, _ in token]
        a, off = product(xp, x[rows], none[rows], scale[rows], 0 * drift[rows], *up[e], bits)
        if swiglu:
            a, off = activation(xp, a, off, a.shape[1] // 2)
        codes, radius, *scales = quantised(xp, a, off, code)
        two, of = two + int((radius > 0).sum()), of + radius.shape[0] * radius.shape[1]
        a, off = product(xp, codes, radius, *scales, *down[e], bits)
        low, high = ((rounded(v) if narrow else v) for v in (single(xp, a - off), single(xp, a + off)))
        for i, at in enumerate(token):
            y[at] = (low[i], high[i])
    least, most = [], []
    for t in range(x.shape[0]):
        sums = []
        for r in range(ranks):
            ends = [0 * x[t], 0 * x[t]]
            for k in range(topk):
                if (t, k) in y and experts[t][k] // local == r:
                    w = weights[t][k]
                    by = [w * v for v in y[t, k]]
                    ends = [single(xp, end + v) for end, v in zip(ends, by if w >= 0 else by[::-1])]
            sums.append([rounded(end) for end in ends])
        for out, i in (least, 0), (most, 1):
            end = 0 * x[t]
            for r in range(ranks):
                end = single(xp, end + sums[r][i])
            out.append(rounded(end))
    return least, most, two, of
