"""An all-to-all backend for the modular MoE kernels of vLLM on CPUs: prepare() dispatches the tokens of a rank to the
ranks of their experts, finalize() sums the weighted outputs of the experts for each token.

    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel

    backend = PrepareAndFinalize(group, max_tokens=256, hidden=2048, experts=64, topk=8)
    kernel = FusedMoEKernel(backend, experts)   # experts of the format BatchedExperts

`group` is a process group of torch, or a Comm. Rows of an expert are [ranks * max_tokens, hidden] of BF16 or FP16, of
which the first `expert_num_tokens` are valid. Without vLLM the class has the same methods, for PyTorch alone."""

from dataclasses import dataclass

import epa2a
import torch

try:
    from vllm.model_executor.layers.fused_moe import modular_kernel

    Base = modular_kernel.FusedMoEPrepareAndFinalizeModular
    ExpertTokens = modular_kernel.ExpertTokensMetadata
    BATCHED = modular_kernel.FusedMoEActivationFormat.BatchedExperts
except ImportError:
    Base, BATCHED = object, "batched_experts"

    @dataclass
    class ExpertTokens:
        expert_num_tokens: torch.Tensor
        expert_num_tokens_cpu: torch.Tensor


class PrepareAndFinalize(Base):
    """Dispatches and combines for one shape. One dispatch is open at a time, as without dual batch overlap."""

    def __init__(self, group, max_tokens, hidden, experts, topk, dtype=torch.bfloat16):
        # vLLM's own initialiser only stores configurations, which this class does not read.
        self.comm = group if isinstance(group, epa2a.Comm) else epa2a.Comm(group, device="cpu")
        # ll_v1 reads the weights in combine and adds the outputs in the order of the choices.
        self.moe = epa2a.Moe(
            self.comm, max_tokens=max_tokens, hidden=hidden, experts=experts, topk=topk, dtype=dtype, options="algorithm=ll_v1"
        )
        self.received = None

    activation_format = property(lambda self: BATCHED)

    def topk_indices_dtype(self):
        return torch.int64

    def max_num_tokens_per_rank(self):
        return self.moe.max_tokens

    def num_dispatchers(self):
        return self.comm.ranks

    def output_is_reduced(self):
        return True  # each token has its complete sum on its own rank

    def prepare(
        self, a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input, quant_config,
        defer_input_quant=False
    ):  # fmt: skip
        """Returns rows of the local experts, no scales, the number of rows of each expert, and no routes."""
        if num_experts != self.moe.experts:
            raise ValueError(f"num_experts is {num_experts}; the backend was created for {self.moe.experts} experts.")
        if getattr(quant_config, "quant_dtype", None) is not None and not defer_input_quant:
            raise ValueError("the backend sends rows without quantisation; use unquantised experts on CPUs.")
        if apply_router_weight_on_input:
            if topk_ids.shape[1] != 1:
                raise ValueError(f"weights on the input need 1 expert of a token; topk_ids has {topk_ids.shape[1]}.")
            a1 = a1 * topk_weights.to(a1.dtype)
        if self.received is not None:
            raise RuntimeError("prepare() follows a prepare() without its finalize().")
        self.received = self.moe.dispatch(a1, topk_ids.to(torch.int64), topk_weights.to(torch.float32))
        count = self.received.count
        return self.received.x, None, ExpertTokens(count, count), None, None

    def finalize(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                 weight_and_reduce_impl=None):  # fmt: skip
        """Writes the sums of the tokens of the last prepare() to output, which is [tokens, hidden]."""
        if self.received is None:
            raise RuntimeError("finalize() follows a prepare().")
        received, self.received = self.received, None
        weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        shape = (self.moe.local_experts, -1, self.moe.hidden)
        self.moe.combine(received, fused_expert_output.view(shape), weights.to(torch.float32), out=output)

    def close(self):
        self.moe.close()
