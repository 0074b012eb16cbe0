"""Operations on tensors of torch or arrays of NumPy for normal mode."""

import sys


class TorchOps:
    def __init__(self, like):
        self.torch, self.device = sys.modules["torch"], like.device

    def layout(self, topk_idx, ranks, experts):
        """Returns (tokens of each rank, tokens of each expert, whether a rank receives a token)."""
        torch = self.torch
        chosen = topk_idx >= 0
        rank = torch.div(topk_idx, experts // ranks, rounding_mode="floor")
        numbers = torch.arange(ranks, device=self.device, dtype=rank.dtype)
        in_rank = ((rank.unsqueeze(2) == numbers) & chosen.unsqueeze(2)).any(1)
        of_expert = torch.bincount(topk_idx[chosen].reshape(-1), minlength=experts)
        return in_rank.sum(0, dtype=torch.int32), of_expert.to(torch.int32), in_rank

    def one_choice_per_rank(self, in_rank, local):
        """Returns [tokens, ranks]: the first expert of each rank that receives the token, or -1."""
        first = self.torch.arange(in_rank.shape[1], device=self.device, dtype=self.torch.int64) * local
        return self.torch.where(in_rank, first, -1).contiguous()

    def zeros(self, shape, kind):
        return self.torch.zeros(shape, dtype=getattr(self.torch, kind), device=self.device)

    def empty_rows(self, x, size):
        """Returns `size` undefined rows of the shape, type and device of the rows of x."""
        return x.new_empty((size, *x.shape[1:]))

    def copy(self, x):
        return x.clone()

    def integers(self, rows):
        return self.torch.tensor(rows, dtype=self.torch.int32, device=self.device)

    def to_index(self, x):
        return x.to(self.torch.int64)

    def bytes_as_bf16(self, x):
        """Returns the bytes of a float32 tensor as whole numbers: 4 columns for each column."""
        return x.contiguous().view(self.torch.uint8).to(self.torch.bfloat16)

    def floats_of_bf16(self, x):
        """Reverses bytes_as_bf16()."""
        return x.to(self.torch.uint8).contiguous().view(self.torch.float32)


class NumpyOps:
    def __init__(self, like):
        import numpy

        self.numpy = numpy
        # BF16 has the type of ml_dtypes, or integers of 16 bits carry its bits.
        types = sys.modules.get("ml_dtypes")
        self.bf16 = types.bfloat16 if types else numpy.uint16

    def layout(self, topk_idx, ranks, experts):
        numpy = self.numpy
        chosen = topk_idx >= 0
        rank = topk_idx // (experts // ranks)
        in_rank = ((rank[:, :, None] == numpy.arange(ranks)) & chosen[:, :, None]).any(1)
        of_expert = numpy.bincount(topk_idx[chosen].reshape(-1), minlength=experts)
        return in_rank.sum(0, dtype=numpy.int32), of_expert.astype(numpy.int32), in_rank

    def one_choice_per_rank(self, in_rank, local):
        first = self.numpy.arange(in_rank.shape[1], dtype=self.numpy.int64) * local
        return self.numpy.ascontiguousarray(self.numpy.where(in_rank, first, -1))

    def zeros(self, shape, kind):
        return self.numpy.zeros(shape, self.bf16 if kind == "bfloat16" else kind)

    def empty_rows(self, x, size):
        return self.numpy.empty((size, *x.shape[1:]), x.dtype)

    def copy(self, x):
        return x.copy()

    def integers(self, rows):
        return self.numpy.array(rows, self.numpy.int32)

    def to_index(self, x):
        return x.astype(self.numpy.int64)

    def bytes_as_bf16(self, x):
        numbers = self.numpy.ascontiguousarray(x).view(self.numpy.uint8).astype(self.numpy.float32)
        return (numbers.view(self.numpy.uint32) >> 16).astype(self.numpy.uint16).view(self.bf16)

    def floats_of_bf16(self, x):
        numbers = x.view(self.numpy.uint16).astype(self.numpy.uint32) << 16
        bytes_ = numbers.view(self.numpy.float32).astype(self.numpy.uint8)
        return self.numpy.ascontiguousarray(bytes_).view(self.numpy.float32)


def ops_for(x):
    return TorchOps(x) if hasattr(x, "data_ptr") else NumpyOps(x)
