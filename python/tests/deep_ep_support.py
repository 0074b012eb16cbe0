"""Shared code of the tests of epa2a.deep_ep: tensors of the tested framework, and checks. The option
--torch of a test selects tensors of torch in place of arrays of NumPy."""

import sys
from importlib import util

from support import SKIPPED, TYPES, epa2a, main, np

TORCH = "--torch" in sys.argv
if TORCH:
    sys.argv.remove("--torch")
    if util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        sys.exit(SKIPPED)

__all__ = [
    "BF16", "FP8", "RANKS", "array", "dequantised", "difference", "epa2a", "main", "np", "require", "tensor"
]  # fmt: skip
RANKS = 4
BF16, FP8 = TYPES["bf16"], TYPES["fp8"]


def require(condition, *facts):
    if not condition:
        raise AssertionError(f"failed with {facts}")


def tensor(array):
    """Returns an input of a test as a tensor of the tested framework."""
    if not TORCH:
        return array
    import torch

    kinds = {"bfloat16": (np.int16, torch.bfloat16), "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn)}
    bits, kind = kinds.get(array.dtype.name, (array.dtype, None))
    made = torch.from_numpy(array.view(bits))
    return made if kind is None else made.view(kind)


def array(result):
    """Returns a result as an array of NumPy, without a copy."""
    if not TORCH:
        return np.asarray(result)
    import torch

    if result.dtype == torch.bfloat16:
        return result.view(torch.int16).numpy().view(BF16)
    if result.dtype == torch.float8_e4m3fn:
        return result.view(torch.uint8).numpy().view(FP8)
    return result.numpy()


@np.errstate(all="ignore")  # rows without a token are undefined
def dequantised(rows, scales):
    """Returns BF16 rows of FP8 rows and their scales."""
    if scales.dtype == np.int32:  # four exponents per word
        exponents = np.ascontiguousarray(scales).view(np.uint8)[..., : rows.shape[-1] // 128]
        scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    groups = rows.astype(np.float32).reshape(*rows.shape[:-1], rows.shape[-1] // 128, 128)
    return (groups * scales[..., None]).reshape(rows.shape).astype(BF16)


def difference(a, b):
    """Returns 1 - the similarity of two arrays: 0 if they are equal."""
    a, b = a.astype(np.float64) + 1, b.astype(np.float64) + 1
    return 1 - 2 * (a * b).sum() / (a * a + b * b).sum()
