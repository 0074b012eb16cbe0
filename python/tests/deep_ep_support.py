"""Shared code of the tests of epa2a.deep_ep: ranks, tensors of the tested framework, and checks. The
option --torch of a test selects tensors of torch in place of arrays of NumPy. The option --cuda selects
tensors of torch on GPUs."""

import os
import sys
from importlib import util

from plain_moe import TYPES, np
from support import epa2a, main, skip

# Started processes read the variable: they get no options.
for option in ("torch", "cuda"):
    if "--" + option in sys.argv:
        sys.argv.remove("--" + option)
        os.environ["DEEP_EP_TENSORS"] = option
TENSORS = os.environ.get("DEEP_EP_TENSORS")
TORCH, CUDA = TENSORS is not None, TENSORS == "cuda"


if TORCH and util.find_spec("torch") is None:
    skip("torch is not installed")
RANKS = 4
if CUDA:
    import torch

    if not torch.cuda.is_available():
        skip("the test needs GPUs")
    RANKS = max(2, min(RANKS, torch.cuda.device_count() // 2 * 2))

__all__ = [
    "BF16", "CUDA", "FP8", "RANKS", "array", "comm_like", "dequantised", "difference", "epa2a", "main", "np",
    "require", "run_ranks", "tensor"
]  # fmt: skip
BF16, FP8 = TYPES["bf16"], TYPES["fp8"]


def comm_like(comm, **more):
    """Returns another comm of the ranks and the device of a comm."""
    return epa2a.Comm(comm._group, device=comm.device, **comm.settings | more)


def _on_device(comm, function, *arguments):
    """Runs a function with a comm of the GPU of this rank. Two ranks share the only GPU of a machine, in comms of
    the function, too."""
    device = comm.rank % torch.cuda.device_count()
    torch.cuda.set_device(device)
    torch.cuda.init()
    if torch.cuda.device_count() == 1:
        os.environ["EPA2A_OPTIONS"] = "backend.share=true"
    with epa2a.Comm(comm._group, device=device) as on_device:
        return function(on_device, *arguments)


def run_ranks(function, *arguments):
    """Runs function(comm, *arguments) on RANKS processes."""
    if CUDA:
        return epa2a.spawn(_on_device, RANKS, function, *arguments, method="spawn", device="cpu")
    return epa2a.spawn(function, RANKS, *arguments)


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
    made = made if kind is None else made.view(kind)
    return made.cuda() if CUDA else made


def array(result):
    """Returns a result as an array of NumPy, without a copy of host memory."""
    if not TORCH:
        return np.asarray(result)
    import torch

    if CUDA:  # a copy in the order of the strides
        copy = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
        result = copy.copy_(result)
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
