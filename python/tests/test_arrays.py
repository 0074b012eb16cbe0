"""Arrays of each framework that is installed: outputs are of the framework of the tokens, or of NumPy
where the arrays of the framework are immutable. The frameworks are optional."""

import importlib.util
import re
import unittest

import support
from epa2a import arrays
from plain_moe import np, routes_of, tokens_of
from support import epa2a

RANKS, EXPERTS, TOPK, HIDDEN, MAX = 2, 4, 2, 128, 6


def run(comm, framework, views):
    """Dispatch and combine with arrays of a framework equal those with arrays of NumPy."""
    moe = epa2a.Moe(comm, max_tokens=MAX, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, dtype="bf16")
    quantised = epa2a.Moe(comm, max_tokens=MAX, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, recv="fp8")
    x = tokens_of(comm.rank, MAX, HIDDEN, "bf16")
    index, weights = routes_of(comm.rank, MAX, EXPERTS, TOPK)
    if framework == "torch":
        import torch

        def convert(array):
            bits = torch.from_numpy(array.view(np.uint16).copy() if array.dtype == x.dtype else array)
            return bits.view(torch.bfloat16) if array.dtype == x.dtype else bits

        def back(array):
            return array.view(torch.uint8 if array.element_size() == 1 else torch.int16).numpy().view(
                np.uint8 if array.element_size() == 1 else x.dtype
            )

        kind, index = torch.Tensor, index.astype(np.int64)
    else:
        import jax

        convert, back, kind = jax.numpy.asarray, lambda array: array, np.ndarray
    results = []
    for change in (lambda array: array, convert):
        got = moe.dispatch(change(x), change(index), change(weights), views=views)
        rows = got.x if change is not convert else back(got.x)
        for e in range(EXPERTS // RANKS):
            got.y[e, : got.count[e]] = got.x[e, : got.count[e]]
        count = [int(n) for n in got.count]
        rows = [rows[e, :n].copy() for e, n in enumerate(count)]
        out = moe.combine(got)
        if change is convert:
            assert isinstance(out, kind) and isinstance(got.source_token, kind)
        codes = quantised.dispatch(change(x), change(index), change(weights), views=views)
        code_rows = codes.x.view(np.uint8) if change is not convert or kind is np.ndarray else back(codes.x)
        code_rows = [code_rows[e, :n].copy() for e, n in enumerate(count)]
        quantised.discard(codes)
        results.append((count, rows, np.asarray(out if change is not convert else back(out)), code_rows))
    (count, rows, out, codes), (count2, rows2, out2, codes2) = results
    assert count == count2 and out.tobytes() == out2.tobytes()
    assert [r.tobytes() for r in rows] == [r.tobytes() for r in rows2]
    assert [r.tobytes() for r in codes] == [r.tobytes() for r in codes2]


class Dlpack:
    """An array with no interface but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)


class Interface:
    """An array with no interface but that of NumPy."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__


class Frameworks(unittest.TestCase):
    def test_all_interfaces_read_the_same(self):
        for dtype in "int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32":
            array = np.arange(24).astype(dtype).reshape(2, 3, 4)[:, 1:]
            direct = arrays.read(array, "x")
            for other in Dlpack(array), Interface(array):
                read = arrays.read(other, "x")
                for field in ("address", "shape", "strides", "dtype", "device"):
                    self.assertEqual(getattr(read, field), getattr(direct, field), (dtype, other, field))

    def test_dlpack(self):
        array = np.zeros((2, 3), np.float32)
        with self.assertRaises(epa2a.ArgumentError):
            arrays.read(Dlpack(array), "out", writable=True)
        with self.assertRaises(epa2a.ArgumentError):
            arrays.read(Dlpack(array.astype(np.complex64)), "x")

    def test_tensors_of_torch_are_checked(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("torch is not installed")
        import torch

        known = arrays.Argument("x", "f32")
        known.dense(torch.zeros((2, 4)), (2, 4), -1)
        for words, x in {
            "device meta": torch.empty((2, 4), device="meta"),
            "layout sparse": torch.eye(4)[:2].to_sparse(),
            "float64 float32": torch.zeros((2, 4), dtype=torch.float64),
            "contiguous strides": torch.zeros((4, 2)).T,
            "shape 3": torch.zeros((2, 3)),
        }.items():
            for check in (lambda x: arrays.dense(x, "x", (2, 4), ("f32",), -1), lambda x: known.dense(x, (2, 4), -1)):
                with self.subTest(words), self.assertRaises(epa2a.ArgumentError) as context:
                    check(x)
                for word in words.split():
                    self.assertIn(word, str(context.exception))
        self.assertEqual(arrays.dense(torch.zeros((0, 4)), "x", (0, 4), ("f32",), -1).shape, (0, 4))

    def test_a_known_dtype_is_checked_as_the_first_time(self):
        frozen = np.zeros((2, 4), np.float32)
        frozen.flags.writeable = False
        odd = np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4)
        wrong = {
            "float64": np.zeros((2, 4)),
            ">f4": np.zeros((2, 4), ">f4"),
            "[4, 2]": np.zeros((4, 2), np.float32),
            "contiguous": np.zeros((4, 2), np.float32).T,
            "read-only": frozen,
            "multiple of 4": odd,
            "list": [[0.0] * 4] * 2,
        }
        good = np.zeros((2, 4), np.float32)
        argument = arrays.Argument("out", "f32", writable=True)
        for _ in range(2):
            for words, x in wrong.items():
                with self.assertRaisesRegex(epa2a.ArgumentError, re.escape(words)):
                    argument.dense(x, (2, 4), -1)
            with self.assertRaisesRegex(epa2a.ArgumentError, "CUDA device 0"):
                argument.dense(good, (2, 4), 0)
            self.assertEqual(argument.dense(good, (2, 4), -1), (good.ctypes.data, good, 4))
        self.assertEqual(argument.rows(good, None, 4, -1), (good.ctypes.data, good, 2, 0))
        wide = np.zeros((2, 8), np.float32)
        self.assertEqual(argument.rows(wide[:, :4], 2, 4, -1)[2:], (2, 32))

    def test_frameworks(self):
        for framework, method in {"torch": "fork", "jax": "spawn"}.items():
            with self.subTest(framework):
                if importlib.util.find_spec(framework) is None:
                    self.skipTest(f"{framework} is not installed")
                for views in (False, True):
                    epa2a.spawn(run, RANKS, framework, views, method=method)


if __name__ == "__main__":
    support.main()
