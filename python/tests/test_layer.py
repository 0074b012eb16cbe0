"""A complete layer and an AllGather with a matrix product, compared with NumPy."""

import types
import unittest

import support
from plain_moe import TYPES, np, quantise, routes_of, tokens_of
from support import epa2a

RANKS, EXPERTS, TOPK, HIDDEN, FFN, MAX = 2, 4, 2, 128, 64, 6
COUNTS = [6, 3]


def weights_of(dtype):
    """Returns up and down of all experts."""
    random = np.random.default_rng(7)
    up = random.standard_normal((EXPERTS, 2 * FFN, HIDDEN)) / HIDDEN**0.5
    down = random.standard_normal((EXPERTS, HIDDEN, FFN)) / FFN**0.5
    return up.astype(TYPES[dtype]), down.astype(TYPES[dtype])


def mlp(x, up, down, dtype):
    h = x.astype(np.float32) @ up.astype(np.float32).T
    gate, value = h[:, :FFN], h[:, FFN:]
    hidden = (gate / (1 + np.exp(-gate)) * value).astype(TYPES[dtype])
    return (hidden.astype(np.float32) @ down.astype(np.float32).T).astype(TYPES[dtype]).astype(np.float32)


def expected(x, index, weights, up, down, dtype):
    sums = np.zeros(x.shape, np.float32)
    for e in range(EXPERTS):
        for t, k in zip(*np.nonzero(index == e)):
            sums[t] += weights[t, k] * mlp(x[t : t + 1], up[e], down[e], dtype)[0]
    return sums


def run_layer(comm):
    for dtype in ("bf16", "f16"):
        up, down = weights_of(dtype)
        mine = slice(comm.rank * EXPERTS // RANKS, (comm.rank + 1) * EXPERTS // RANKS)
        x = tokens_of(comm.rank, COUNTS[comm.rank], HIDDEN, dtype)
        index, weights = routes_of(comm.rank, COUNTS[comm.rank], EXPERTS, TOPK)
        wanted = expected(x, index, weights, up, down, dtype)
        for algorithm in ("fused", "ll_v2"):
            options = f"algorithm={algorithm}"
            layer = epa2a.FusedMoE(comm, up[mine], down[mine], topk=TOPK, max_tokens=MAX, dtype=dtype, options=options)
            for _ in range(2):
                out = layer(x, index.astype(np.int64), weights)
                bound = 2.0**-6 if dtype == "bf16" else 2.0**-9
                assert out.dtype == x.dtype
                assert np.abs(out.astype(np.float32) - wanted).max() <= bound * max(1, np.abs(wanted).max())
            layer.close()


def block_quantise(weights, rows, columns):
    """Returns codes and scales of blocks of `rows` x 128, and the values of the codes."""
    blocks = weights.reshape(*weights.shape[:-2], -1, rows, weights.shape[-1] // columns, columns)
    scale = (np.abs(blocks).max(axis=(-3, -1)) / 448).astype(np.float32)
    codes = (blocks / scale[..., :, None, :, None]).astype(TYPES["fp8"])
    values = codes.astype(np.float32) * scale[..., :, None, :, None]
    return codes.reshape(weights.shape), scale, values.reshape(weights.shape)


def run_fp8_layer(comm):
    hidden, ffn, local = 256, 128, EXPERTS // RANKS
    random = np.random.default_rng(7)
    up, up_scale, up_values = block_quantise(
        (random.standard_normal((EXPERTS, ffn, hidden)) / hidden**0.5).astype(np.float32), 128, 128
    )
    down, down_scale, down_values = block_quantise(
        (random.standard_normal((EXPERTS, hidden, ffn)) / ffn**0.5).astype(np.float32), 128, 128
    )
    mine = slice(comm.rank * local, (comm.rank + 1) * local)
    layer = epa2a.FusedMoE(
        comm, up[mine], down[mine], topk=TOPK, max_tokens=MAX, activation="none", up_scale=up_scale[mine],
        down_scale=down_scale[mine], recv="fp8"
    )  # fmt: skip
    x = tokens_of(comm.rank, COUNTS[comm.rank], hidden, "bf16")
    index, weights = routes_of(comm.rank, COUNTS[comm.rank], EXPERTS, TOPK)
    out = layer(x, index, weights).astype(np.float32)
    wanted = np.zeros(x.shape, np.float32)
    for t, k in np.ndindex(index.shape):
        e = index[t, k]
        wanted[t] += weights[t, k] * (down_values[e] @ (up_values[e] @ x[t].astype(np.float32)))
    # Rows are quantised twice to 4 bits of significance: 3 % of each product, with random signs.
    assert np.linalg.norm(out - wanted) <= 0.06 * np.linalg.norm(wanted)
    layer.close()


def row_quantise(x):
    """Returns int8 codes and a scale for each row: 1/127 of its largest magnitude, or 1 for a row of 0."""
    x = np.asarray(x, np.float32)
    scale = np.abs(x).max(-1) * (np.float32(1) / np.float32(127))
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.rint(x * (np.float32(1) / scale)[..., None]).astype(np.int8), scale


def int8_product(x, w, scale):
    """Multiplies rows by codes: exact sums, then the scales of both rows."""
    codes, own = row_quantise(x)
    return (codes.astype(np.int32) @ w.astype(np.int32).T).astype(np.float32) * (own[:, None] * scale)


def int8_mlp(x, up, down, activation, dtype):
    """Returns the output of an expert. up and down are pairs of codes and scales."""
    h = int8_product(x, *up)
    if activation == "swiglu":
        gate, value = h[:, :FFN], h[:, FFN:]
        h = gate / (1 + np.exp(-gate)) * value
    return int8_product(h.astype(TYPES[dtype]), *down)


def dense_mlp(x, up, down):
    """Returns the output of an expert without activation and without rounding, and a bound of the error of int8: each
    element of a token and of an intermediate is off by up to half of a scale."""
    up, down = (codes * scale[:, None] for codes, scale in (up, down))
    h = x @ up.T
    off = row_quantise(x)[1][:, None] / 2 * np.abs(up).sum(1) + np.abs(h) * 2.0**-8
    step = (np.abs(h) + off).max(-1, keepdims=True) / 127
    return h @ down.T, (off + step / 2) @ np.abs(down).T


def run_int8_layer(comm):
    random = np.random.default_rng(11)
    local = EXPERTS // RANKS
    mine = slice(comm.rank * local, (comm.rank + 1) * local)
    index, weights = routes_of(comm.rank, COUNTS[comm.rank], EXPERTS, TOPK)
    for dtype, activation, algorithm in ("bf16", "none", "fused"), ("f16", "swiglu", "ll_v2"), ("bf16", "swiglu", "fused"):
        rows = 2 * FFN if activation == "swiglu" else FFN
        up = row_quantise(random.standard_normal((EXPERTS, rows, HIDDEN)) / HIDDEN**0.5)
        down = row_quantise(random.standard_normal((EXPERTS, HIDDEN, FFN)) / FFN**0.5)
        x = tokens_of(comm.rank, COUNTS[comm.rank], HIDDEN, dtype)
        layer = epa2a.FusedMoE(
            comm, up[0][mine], down[0][mine], up_scale=up[1][mine], down_scale=down[1][mine], topk=TOPK, max_tokens=MAX,
            activation=activation, dtype=None if dtype == "bf16" else dtype, options=f"algorithm={algorithm}"
        )  # fmt: skip
        out = layer(x, index, weights)
        assert out.dtype == x.dtype
        layer.close()
        wanted, dense, bound = np.zeros((3, *x.shape), np.float32)
        for t, k in np.ndindex(index.shape):
            expert = [(codes[index[t, k]], scale[index[t, k]]) for codes, scale in (up, down)]
            row = x[t : t + 1].astype(np.float32)
            wanted[t] += weights[t, k] * int8_mlp(row, *expert, activation, dtype)[0]
            if activation == "none":
                y, off = dense_mlp(row, *expert)
                dense[t] += weights[t, k] * y[0]
                bound[t] += weights[t, k] * off[0]
        # Outputs of experts and sums of ranks are rounded to dtype. SwiGLU may round an intermediate to its neighbour.
        rounding = 2.0**-7 if dtype == "bf16" else 2.0**-9
        away = np.abs(out.astype(np.float32) - wanted).max()
        assert away <= rounding * max(1, np.abs(wanted).max()), (dtype, activation, away)
        if activation == "none":
            away = np.abs(out.astype(np.float32) - dense)
            assert (away <= bound + rounding * np.abs(dense).max()).all()
            assert 0 < np.linalg.norm(away) <= 0.03 * np.linalg.norm(dense), np.linalg.norm(away) / np.linalg.norm(dense)


def run_int8_of_a_device(comm):
    """The refusal comes before the check of memory, so a comm of a host with the number of a device is enough."""
    comm.device_number = 0
    try:
        epa2a.FusedMoE(
            comm, np.zeros((2, 64, 64), np.int8), np.zeros((2, 64, 32), np.int8), topk=1, max_tokens=1,
            up_scale=np.ones((2, 64), np.float32), down_scale=np.ones((2, 64), np.float32)
        )  # fmt: skip
    except epa2a.Unsupported as error:
        return str(error)
    finally:
        comm.device_number = -1


def run_fp8_ag_gemm(comm):
    n, k, most = 128, 256, 5
    a = np.random.default_rng(3).standard_normal((RANKS, most, k)).astype(np.float32)
    codes, scale = zip(*(quantise(part, 128) for part in a))
    values = [c.astype(np.float32) * np.repeat(s, 128, axis=1) for c, s in zip(codes, scale)]
    b, b_scale, b_values = block_quantise(np.random.default_rng(9).standard_normal((n, k)).astype(np.float32), 128, 128)
    gemm = epa2a.AgGemm(comm, b, b_scale=b_scale, max_rows=most)
    c = gemm(codes[comm.rank], a_scale=scale[comm.rank]).astype(np.float32)
    wanted = np.concatenate(values) @ b_values.T
    assert np.abs(c - wanted).max() <= np.abs(wanted).max() * 2.0**-8
    gemm.close()
    # FP8 output has one scale for a row and 128 columns: half of the last of 4 bits of significance.
    gemm = epa2a.AgGemm(comm, b, b_scale=b_scale, max_rows=most, out_dtype="fp8")
    c, c_scale = gemm(codes[comm.rank], a_scale=scale[comm.rank])
    assert c.dtype == TYPES["fp8"] and c.shape == (RANKS * most, n) and c_scale.shape == (RANKS * most, 1)
    assert (np.abs(c.astype(np.float32) * c_scale - wanted) <= np.abs(wanted) * 2.0**-4 + c_scale * 2.0**-9).all()
    room = np.empty((RANKS * most, n), TYPES["fp8"]), np.empty((RANKS * most, 1), np.float32)
    again = gemm(codes[comm.rank], a_scale=scale[comm.rank], c=room[0], c_scale=room[1])
    assert np.shares_memory(again[0], room[0]) and (room[0].view(np.uint8) == c.view(np.uint8)).all()
    assert (room[1] == c_scale).all()
    for arguments in {"c_scale": room[1][1:]}, {"c": room[0].astype(TYPES["bf16"])}:
        try:
            gemm(codes[comm.rank], a_scale=scale[comm.rank], **arguments)
        except epa2a.ArgumentError as error:
            assert next(iter(arguments)) in str(error)
        else:
            raise AssertionError(arguments)
    gemm.close()


def run_ag_gemm(comm):
    n, k, most = 24, 64, 5
    random = np.random.default_rng(3)
    a = [random.standard_normal((most, k)).astype(TYPES["bf16"]) for _ in range(RANKS)]
    b = np.random.default_rng(comm.rank).standard_normal((n, k)).astype(TYPES["bf16"])
    bias = np.arange(n, dtype=np.float32)
    gemm = epa2a.AgGemm(comm, b, max_rows=most, bias=bias)
    for rows in (None, [2, 5], [0, 3]):
        counts = rows or [4, 4]
        c = gemm(a[comm.rank][: counts[comm.rank]], rows)
        whole = np.concatenate([part[:m] for part, m in zip(a, counts)]).astype(np.float32)
        wanted = whole @ b.astype(np.float32).T + bias
        assert c.shape == (sum(counts), n) and c.dtype == TYPES["bf16"]
        assert np.abs(c.astype(np.float32) - wanted).max() <= np.abs(wanted).max() * 2.0**-8
    gemm.close()


class Layer(unittest.TestCase):
    def test_layer_equals_numpy(self):
        epa2a.spawn(run_layer, RANKS)

    def test_layer_with_fp8_weights(self):
        epa2a.spawn(run_fp8_layer, RANKS)

    def test_layer_with_int8_weights(self):
        epa2a.spawn(run_int8_layer, RANKS)

    def test_int8_weights_on_a_device_are_refused(self):
        for text in epa2a.spawn(run_int8_of_a_device, RANKS):
            self.assertRegex(text, "int8.*hosts")

    def test_ag_gemm_of_fp8(self):
        epa2a.spawn(run_fp8_ag_gemm, RANKS)

    def test_ag_gemm_equals_numpy(self):
        epa2a.spawn(run_ag_gemm, RANKS)

    def test_c_of_a_device_has_room_for_all_rows(self):
        for device, rows in (-1, 5), (0, 8):
            comm = types.SimpleNamespace(ranks=2, device_number=device)
            gemm = types.SimpleNamespace(comm=comm, max_rows=4)
            self.assertEqual(epa2a.AgGemm._least_rows(gemm, 5), rows)


if __name__ == "__main__":
    support.main()
