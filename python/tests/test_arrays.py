"""Arrays of frameworks."""

import unittest

import support
from epa2a import arrays
from support import epa2a, np


class Dlpack:
    """An array with no interface but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)


class Frameworks(unittest.TestCase):
    def test_dlpack(self):
        array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, 1:]
        read, direct = arrays.read(Dlpack(array), "x"), arrays.read(array, "x")
        for field in ("address", "shape", "strides", "dtype", "device"):
            self.assertEqual(getattr(read, field), getattr(direct, field))
        with self.assertRaises(epa2a.ArgumentError):
            arrays.read(Dlpack(array), "out", writable=True)
        with self.assertRaises(epa2a.ArgumentError):
            arrays.read(Dlpack(array.astype(np.complex64)), "x")


if __name__ == "__main__":
    support.main()
