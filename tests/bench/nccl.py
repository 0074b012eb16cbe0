#!/usr/bin/env python3
"""Dispatch and combine as one writes them with PyTorch and NCCL: the baseline on GPUs.

A stable sort by expert, counts by all_to_all_single, rows by all_to_all_single, a second sort
that brings an expert's rows together; and back, with a sum in float32. A GPU of this host for
each rank. What arrives is checked once: every expert multiplies by 1 + its rank.

    tests/bench/nccl.py [--ranks 4] [--tokens 128] [--hidden 7168] [--experts 256] [--topk 8]
                        [--dtype bf16|f16] [--routing FILE.jsonl [--skip N]]
                        [--wall [--random-tokens]] [--reference] [--iterations 50]
                        [--ranks-per-node N]

Prints a line of JSON, medians over iterations of the slowest rank by CUDA events, so that it is
a --peer of tests/bench/run. --wall: the mean of rank 0's wall time, experts' work included,
from a cold L2 to a barrier, as the contest of configs/gpumode-nvlink.yaml takes it. --reference: token
by token in Python, as the contest's reference does it: nothing in it is optimised.
--ranks-per-node: nodes of so many ranks, between which NCCL takes the network, not NVLink."""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("ranks", 4), ("tokens", 128), ("hidden", 7168), ("experts", 256),
                        ("topk", 8), ("skip", 0), ("warmup", 10), ("iterations", 50),
                        ("port", 29531), ("ranks-per-node", 0)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--dtype", choices=DTYPES, default="bf16")
    a.add_argument("--routing", help="a log of captured routing, a JSON object a line")
    a.add_argument("--wall", action="store_true")
    a.add_argument("--reference", action="store_true")
    a.add_argument("--random-tokens", action="store_true", help="1 to --tokens, by rank")
    o = a.parse_args()
    if o.experts % o.ranks != 0:
        a.error(f"{o.experts} experts are not a multiple of {o.ranks} ranks")
    if o.ranks > torch.cuda.device_count():
        a.error(f"{o.ranks} ranks need as many GPUs; there are {torch.cuda.device_count()}")
    return o


def captured(o, rank):
    """This rank's window of the log: experts, [tokens, topk]."""
    rows = []
    with open(o.routing, encoding="utf-8") as log:
        for line in log:
            entry = json.loads(line)
            if entry.get("type") == "route":
                rows.append(entry["topk_ids"])
    first = o.skip + rank * o.tokens
    if first + o.tokens > len(rows):
        sys.exit(f"{o.routing}: {len(rows)} tokens, rank {rank} needs {first + o.tokens}")
    return torch.tensor(rows[first:first + o.tokens])


class Layer:
    """Inputs of one rank, and the two halves of the exchange."""

    def __init__(self, o, rank):
        g = torch.Generator().manual_seed(1000 + rank)
        n = o.tokens
        if o.random_tokens:
            n = int(torch.randint(1, o.tokens + 1, (1,), generator=g))
        self.o, self.rank, self.local = o, rank, o.experts // o.ranks
        if o.routing:
            expert = captured(o, rank)
        else:
            expert = torch.rand(n, o.experts, generator=g).topk(o.topk, dim=1).indices
        self.expert = expert.cuda()
        self.weight = torch.rand(n, o.topk, generator=g).cuda()
        self.x = torch.randn(n, o.hidden, generator=g).to(DTYPES[o.dtype]).cuda()

    def dispatch(self):
        """Rows by expert, and what combine needs to send them back."""
        o = self.o
        flat = self.expert.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=o.experts)
        came = torch.empty_like(counts)
        dist.all_to_all_single(came, counts)
        sent = counts.view(o.ranks, self.local).sum(1).tolist()
        taken = came.view(o.ranks, self.local).sum(1).tolist()
        rows = self.x[order // o.topk]
        arrived = rows.new_empty(sum(taken), o.hidden)
        dist.all_to_all_single(arrived, rows, taken, sent)
        number = torch.arange(self.local, device="cuda").repeat(o.ranks)
        by_expert = torch.argsort(torch.repeat_interleave(number, came), stable=True)
        return arrived[by_expert], (order, by_expert, sent, taken)

    def combine(self, answers, kept):
        """Sends expert outputs back to the ranks of their tokens, and computes the weighted sums."""
        o, (order, by_expert, sent, taken) = self.o, kept
        rows = torch.empty_like(answers)
        rows[by_expert] = answers
        back = answers.new_empty(sum(sent), o.hidden)
        dist.all_to_all_single(back, rows, sent, taken)
        each = torch.empty_like(back)
        each[order] = back
        each = each.view(-1, o.topk, o.hidden).float()
        return (each * self.weight[:, :, None]).sum(1).to(self.x.dtype)

    def experts(self, rows):
        return rows * (1 + self.rank)

    def is_right(self):
        rows, kept = self.dispatch()
        y = self.combine(self.experts(rows), kept)
        factor = (self.weight * (1 + self.expert // self.local)).sum(1, keepdim=True)
        return torch.allclose(y.float(), self.x.float() * factor, rtol=2e-2, atol=5e-2)


class Reference(Layer):
    """The same by loops over tokens, and over rows as they arrive: rows of experts are padded to
    all that may come."""

    def exchange(self, rows, sent, taken):
        out = rows.new_empty(sum(taken), *rows.shape[1:])
        dist.all_to_all_single(out, rows, taken, sent)
        return out

    def counts(self, sent):
        taken = torch.empty(self.o.ranks, dtype=torch.long, device="cuda")
        dist.all_to_all_single(taken, torch.tensor(sent, device="cuda"))
        return taken.tolist()

    def dispatch(self):
        o = self.o
        tokens, meta = [[] for _ in range(o.ranks)], [[] for _ in range(o.ranks)]
        for t, choices in enumerate(self.expert.tolist()):
            for k, e in enumerate(choices):
                tokens[e // self.local].append(t)
                meta[e // self.local].append([e, self.rank, t, k])
        sent = [len(one) for one in tokens]
        taken = self.counts(sent)
        rows = torch.cat([self.x[torch.tensor(one, dtype=torch.long, device="cuda")]
                          for one in tokens])
        metas = torch.tensor([m for one in meta for m in one], device="cuda").view(-1, 4)
        arrived, metas = self.exchange(rows, sent, taken), self.exchange(metas, sent, taken)
        x = arrived.new_zeros(self.local, o.ranks * o.tokens, o.hidden)
        kept = [[] for _ in range(self.local)]
        for i in range(len(arrived)):
            e = int(metas[i, 0].item()) % self.local
            x[e, len(kept[e])] = arrived[i]
            kept[e].append(metas[i])
        return x, kept

    def combine(self, answers, kept):
        back, meta = [[] for _ in range(self.o.ranks)], [[] for _ in range(self.o.ranks)]
        for e, metas in enumerate(kept):
            for j, m in enumerate(metas):
                rank = int(m[1].item())
                back[rank].append(answers[e, j])
                meta[rank].append(m.tolist())
        sent = [len(one) for one in back]
        taken = self.counts(sent)
        all_back = [row for one in back for row in one]
        rows = torch.stack(all_back) if all_back else answers.new_empty(0, self.o.hidden)
        metas = torch.tensor([m for one in meta for m in one], dtype=torch.long,
                             device="cuda").view(-1, 4)
        arrived, metas = self.exchange(rows, sent, taken), self.exchange(metas, sent, taken)
        out = torch.zeros_like(self.x, dtype=torch.float32)
        for i in range(len(arrived)):
            token, k = int(metas[i, 2].item()), int(metas[i, 3].item())
            out[token] += arrived[i].float() * self.weight[token, k]
        return out.to(self.x.dtype)


def by_events(layer, o):
    """Microseconds of this rank: [iterations, 2], dispatch and combine."""
    took = []
    for i in range(o.warmup + o.iterations):
        mark = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        dist.barrier()
        mark[0].record()
        rows, kept = layer.dispatch()
        mark[1].record()
        layer.combine(rows, kept)
        mark[2].record()
        torch.cuda.synchronize()
        if i >= o.warmup:
            took.append([mark[0].elapsed_time(mark[1]) * 1e3, mark[1].elapsed_time(mark[2]) * 1e3])
    return torch.tensor(took).cuda()


def by_wall(layer, o):
    """Microseconds from a cold L2 to a barrier: [iterations]."""
    took, flush = [], torch.empty(64 << 20, device="cuda")
    for i in range(o.warmup + o.iterations):
        flush.fill_(i)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        rows, kept = layer.dispatch()
        layer.combine(layer.experts(rows), kept)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        if i >= o.warmup:
            took.append((time.perf_counter() - begun) * 1e6)
    return took


def rank_main(rank, o):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(o.port))
    if o.ranks_per_node:
        os.environ["NCCL_HOSTID"] = f"node {rank // o.ranks_per_node}"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=o.ranks,
                            device_id=torch.device("cuda", rank))
    layer = (Reference if o.reference else Layer)(o, rank)
    right = torch.tensor([int(layer.is_right())], device="cuda")
    dist.all_reduce(right, dist.ReduceOp.MIN)
    result = {"ok": bool(right.item()), "tokens": o.tokens, "dtype": o.dtype}
    if o.wall:
        took = by_wall(layer, o)
        result["wall_us"] = {"mean": statistics.mean(took), "median": statistics.median(took)}
    else:
        both = by_events(layer, o)
        both = torch.cat([both, both.sum(1, keepdim=True)], 1)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        for name, column in zip(("dispatch_us", "combine_us", "total_us"), both.t().tolist()):
            result[name] = {"median": statistics.median(column), "min": min(column)}
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = arguments()
    torch.multiprocessing.spawn(rank_main, args=(options,), nprocs=options.ranks)
