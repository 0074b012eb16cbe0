#!/usr/bin/env python3
"""A small random MoE model with examples/vllm_backend.py on 4 ranks generates the tokens of the dense computation."""

import os
import sys
import unittest

import support
from support import epa2a

try:
    import torch
except ImportError as error:
    support.skip(error)

sys.path.insert(0, os.path.join(support.ROOT, "..", "examples"))
import vllm_backend

RANKS, EXPERTS, TOPK, HIDDEN, INNER, WORDS, MAX, STEPS = 4, 16, 4, 256, 128, 512, 8, 6


class Model:
    """One layer: embedding, router, experts with SiLU, output words. All ranks have the same weights."""

    def __init__(self):
        random = torch.Generator().manual_seed(7)
        new = lambda *shape: torch.randn(*shape, generator=random) / shape[-1] ** 0.5  # noqa: E731
        self.words, self.router = new(WORDS, HIDDEN).mul(16), new(HIDDEN, EXPERTS)
        self.up, self.down = new(EXPERTS, HIDDEN, INNER), new(EXPERTS, INNER, HIDDEN)

    def expert(self, e, rows):
        return (torch.nn.functional.silu(rows.float() @ self.up[e]) @ self.down[e]).to(rows.dtype)

    def routes(self, x):
        weights, ids = torch.topk(torch.softmax(x.float() @ self.router, -1), TOPK)
        return weights / weights.sum(-1, keepdim=True), ids

    def dense(self, x):
        weights, ids = self.routes(x)
        out = torch.zeros(x.shape)
        for t in range(x.shape[0]):
            for k in range(TOPK):
                out[t] += weights[t, k] * self.expert(int(ids[t, k]), x[t : t + 1])[0].float()
        return out.to(x.dtype)

    def generate(self, start, layer):
        """Returns the words that follow the words of each sequence, and the outputs of the layer."""
        words, outputs = [start], []
        for _ in range(STEPS):
            x = self.words[words[-1]].to(torch.bfloat16)
            outputs.append(layer(x))
            words.append((outputs[-1].float() @ self.words.T).argmax(-1))
        return torch.stack(words), torch.stack(outputs)


def run_rank(comm):
    torch.set_num_threads(1)
    model = Model()
    backend = vllm_backend.PrepareAndFinalize(comm, MAX, HIDDEN, EXPERTS, TOPK)
    first = comm.rank * backend.moe.local_experts
    largest = 0

    def layer(x, on_input=False):
        nonlocal largest
        weights, ids = model.routes(x)
        rows, scale, tokens, _, _ = backend.prepare(x, weights, ids, EXPERTS, None, on_input, None)
        assert scale is None and rows.shape[1] == backend.num_dispatchers() * backend.max_num_tokens_per_rank()
        y = torch.full_like(rows, float("nan"))  # rows behind the count do not count
        for e, count in enumerate(tokens.expert_num_tokens.tolist()):
            largest = max(largest, count)
            y[e, :count] = model.expert(first + e, rows[e, :count])
        out = torch.empty_like(x)
        backend.finalize(out, y, weights, ids, on_input)
        return out

    # A rank has no sequence: it takes part in each call.
    start = torch.arange(comm.rank, WORDS, WORDS // MAX)[: comm.rank * MAX // (RANKS - 1)]
    found, wanted = model.generate(start, layer), model.generate(start, model.dense)
    refused = []
    for change in ({"num_experts": EXPERTS + 1}, {"apply_router_weight_on_input": True}):
        x = model.words[:1].to(torch.bfloat16)
        arguments = {"num_experts": EXPERTS, "expert_map": None, "apply_router_weight_on_input": False, "quant_config": None}
        try:
            backend.prepare(x, *model.routes(x), **{**arguments, **change})
        except ValueError as error:
            refused.append(str(error))
    backend.close()
    return [t.tolist() for t in (found[0], wanted[0])], (found[1] - wanted[1]).abs().float().numpy(), largest, refused


class Backend(unittest.TestCase):
    def test_tokens_equal_those_of_the_dense_computation(self):
        results = epa2a.spawn(run_rank, RANKS)
        for rank, ((found, wanted), error, _, refused) in enumerate(results):
            self.assertEqual(found, wanted, f"rank {rank}")
            self.assertLess(error.max(initial=0), 0.05)
            self.assertEqual(len(refused), 2)
        self.assertGreater(max(result[2] for result in results), 1)
        self.assertGreater(len({word for row in results[-1][0][0] for word in row}), 2 * MAX)

    def test_finalize_without_prepare_is_refused(self):
        backend = object.__new__(vllm_backend.PrepareAndFinalize)
        backend.received = None
        with self.assertRaises(RuntimeError):
            backend.finalize(None, None, None, None, False)


if __name__ == "__main__":
    support.main()
