"""torch, if it is installed. Without torch, Buffer accepts arrays of NumPy in host memory."""

try:
    import torch
except ImportError:
    torch = None


def cuda():
    """Returns torch.cuda if the process uses a CUDA device, else None."""
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def index_dtype():
    """Returns the dtype of expert indices."""
    if torch is not None:
        return torch.int64
    try:
        import numpy
    except ImportError:
        return "int64"
    return numpy.dtype(numpy.int64)
