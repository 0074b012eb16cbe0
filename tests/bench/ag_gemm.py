#!/usr/bin/env python3
"""AllGather and GEMM as a user writes them with PyTorch: the baseline for configs/ag_gemm-nvlink.yaml.

Each rank has a GPU of this host.

    gather       dist.all_gather_into_tensor (NCCL)
    gemm         torch.mm of all rows (cuBLAS)
    sequential   one after the other
    fused        torch.ops.symm_mem.fused_all_gather_matmul
    parts        a product for each rank's rows, after copies that are pulled on a separate stream
    pushed       a product for each rank's rows, after copies that are pushed, two buffers in turn, a signal per peer
    beside       gemm during pushed copies of the same size: the least cost of a hidden gather

    tests/bench/ag_gemm.py [--ranks 4] [--m 8192] [--n 49152] [--k 12288] [--dtype f16|bf16]
                           [--rounds 5] [--ms 100] [--epa2a build/src/epa2a] [--product auto]

Each variant is checked against float32 sums of some rows. Times are medians in microseconds over rounds of the
slowest rank by CUDA events; the variants take turns. --epa2a adds epa2a after each round to the same table. A variant
that this PyTorch lacks is reported as missing. The last line is JSON."""

import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("ranks", 4), ("m", 8192), ("n", 49152), ("k", 12288), ("rounds", 5),
                        ("ms", 100), ("port", 29532)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--dtype", choices=DTYPES, default="f16")
    a.add_argument("--epa2a", help="the program, to be measured in turns")
    a.add_argument("--product", choices=("auto", "own", "library"), default="auto", help="algorithm.product of epa2a")
    o = a.parse_args()
    if o.m % o.ranks != 0 or o.n % o.ranks != 0:
        a.error("--m and --n must be multiples of --ranks")
    if o.ranks > torch.cuda.device_count():
        a.error(f"{o.ranks} ranks need as many GPUs; there are {torch.cuda.device_count()}")
    return o


class Layer:
    """Inputs of one rank, and the ways to compute C = allgather(A) * B^T."""

    def __init__(self, o, rank):
        torch.manual_seed(1000 + rank)
        dtype, self.o, self.rank = DTYPES[o.dtype], o, rank
        self.rows, columns = o.m // o.ranks, o.n // o.ranks
        self.group = dist.group.WORLD
        # In symmetric memory, so that peers can copy from it and to `gathered`.
        self.a = symm_mem.empty(self.rows, o.k, dtype=dtype, device="cuda")
        self.a.copy_(torch.randn(self.rows, o.k, device="cuda"))
        self.gathered = symm_mem.empty(o.m, o.k, dtype=dtype, device="cuda")
        self.a_at = symm_mem.rendezvous(self.a, self.group)
        self.gathered_at = symm_mem.rendezvous(self.gathered, self.group)
        self.b = torch.randn(columns, o.k, dtype=dtype, device="cuda")
        self.c = torch.empty(o.m, columns, dtype=dtype, device="cuda")
        self.all = torch.empty(o.m, o.k, dtype=dtype, device="cuda")
        self.side = torch.cuda.Stream()
        dist.all_gather_into_tensor(self.all, self.a)
        torch.cuda.synchronize()

    def gather(self):
        dist.all_gather_into_tensor(self.all, self.a)

    def gemm(self):
        torch.mm(self.all, self.b.t(), out=self.c)

    def sequential(self):
        self.gather()
        self.gemm()

    def fused(self):
        _, (self.c,) = torch.ops.symm_mem.fused_all_gather_matmul(
            self.a, [self.b.t()], gather_dim=0, group_name=self.group.group_name)

    def parts(self):
        """A barrier before: peers' rows are there. One after: they may change again."""
        self.a_at.barrier(channel=0)
        self.side.wait_stream(torch.cuda.current_stream())
        there = {self.rank: None}
        with torch.cuda.stream(self.side):
            for i in range(1, self.o.ranks):
                peer = (self.rank + i) % self.o.ranks
                part = self.part_of(self.gathered, peer)
                part.copy_(self.a_at.get_buffer(peer, part.shape, part.dtype))
                there[peer] = self.side.record_event()
        for i in range(self.o.ranks):
            peer = (self.rank + i) % self.o.ranks
            rows = self.a if i == 0 else self.part_of(self.gathered, peer)
            if there[peer] is not None:
                torch.cuda.current_stream().wait_event(there[peer])
            torch.mm(rows, self.b.t(), out=self.part_of(self.c, peer))
        self.a_at.barrier(channel=0)

    def pushed(self):
        """No barrier: a rank sends the rows of a call after its products of the call before, so two buffers suffice."""
        if not hasattr(self, "two"):
            self.two = [symm_mem.empty(self.o.m, self.o.k, dtype=self.a.dtype, device="cuda") for _ in range(2)]
            self.two_at = [symm_mem.rendezvous(g, self.group) for g in self.two]
            self.calls = 0
        g, at = self.two[self.calls % 2], self.two_at[self.calls % 2]
        self.calls += 1
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for i in range(1, self.o.ranks):
                peer = (self.rank - i) % self.o.ranks
                self.part_of(at.get_buffer(peer, g.shape, g.dtype), self.rank).copy_(self.a)
                at.put_signal(peer, channel=1)
        for i in range(self.o.ranks):
            peer = (self.rank + i) % self.o.ranks
            if i > 0:
                at.wait_signal(peer, channel=1)
            torch.mm(self.a if i == 0 else self.part_of(g, peer), self.b.t(), out=self.part_of(self.c, peer))
        torch.cuda.current_stream().wait_stream(self.side)

    def beside(self):
        """No dependency between the two: rows that are read are of the call before."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for i in range(1, self.o.ranks):
                peer = (self.rank - i) % self.o.ranks
                to = self.gathered_at.get_buffer(peer, self.gathered.shape, self.gathered.dtype)
                self.part_of(to, self.rank).copy_(self.a)
        self.gemm()
        torch.cuda.current_stream().wait_stream(self.side)

    def part_of(self, matrix, rank):
        return matrix[rank * self.rows:(rank + 1) * self.rows]

    def is_right(self):
        """Some rows of C against sums in float32; the bound is of the last rounding and of sums in
        another order."""
        rows = torch.randint(0, self.o.m, (64,), device="cuda")
        want = self.all[rows].float() @ self.b.float().t()
        error = (self.c[rows].float() - want).abs().max().item()
        return error <= want.abs().max().item() * 2.0 ** -7


WAYS = ["gather", "gemm", "sequential", "fused", "parts", "pushed", "beside"]


def time_calls(layer, way, calls):
    """Microseconds of a call of the slowest rank: so many, one after the other, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        getattr(layer, way)()
    end.record()
    torch.cuda.synchronize()
    took = torch.tensor([begin.elapsed_time(end) * 1e3 / calls], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def time_way(layer, way, o):
    """Microseconds of a call. A GPU that has rested is faster for some milliseconds, until its power is
    limited: so each way runs for that long before it is timed for as long."""
    calls = int(o.ms * 1e3 / time_calls(layer, way, 2)) + 1
    time_calls(layer, way, calls)
    return time_calls(layer, way, calls)


def check_way(layer, way):
    """None, or why the way cannot be measured."""
    problem = None
    try:
        if way != "gather":
            layer.c.zero_()
            getattr(layer, way)()
            torch.cuda.synchronize()
            problem = None if layer.is_right() else "wrong"
        else:
            layer.gather()
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        problem = f"missing: {str(error).splitlines()[0]}"
    flag = torch.tensor([int(problem is not None)], device="cuda")
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return problem or ("failed on another rank" if flag.item() else None)


def ours(o):
    """Microseconds of epa2a's median, while the ranks here wait."""
    config = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                          "../../configs/ag_gemm-nvlink.yaml")
    command = [o.epa2a, "bench", config, "--only", "m 8192 n 28672*", "--json", "-", "--quiet",
               "--set", f"ranks={o.ranks}", "--set", f"algorithm.product={o.product}",
               "--set", f"gemm={{m: {o.m}, n: {o.n}, k: {o.k}, dtype: {o.dtype}, values: random}}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["results"][0]["stages"][-1]["ns"]["median"] / 1e3


def rank_main(rank, o):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(o.port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=o.ranks,
                            device_id=torch.device("cuda", rank))
    symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    layer = Layer(o, rank)
    problems = {way: check_way(layer, way) for way in WAYS}
    took, own = {way: [] for way in WAYS if problems[way] is None}, []
    hosts = dist.new_group(backend="gloo")  # a wait without kernels, which would share the GPUs
    for _ in range(o.rounds):
        for way, times in took.items():
            times.append(time_way(layer, way, o))
        if o.epa2a:
            if rank == 0:
                own.append(ours(o))
            dist.barrier(group=hosts)
    if rank == 0:
        medians = {way: statistics.median(times) for way, times in took.items()}
        if own:
            medians["epa2a"] = statistics.median(own)
        for way, us in medians.items():
            print(f"{way:12} {us:9.1f} us  {us / medians['gemm']:.3f} of gemm")
        for way, problem in problems.items():
            if problem is not None:
                print(f"{way:12} {problem}")
        print(json.dumps({"m": o.m, "n": o.n, "k": o.k, "dtype": o.dtype, "ranks": o.ranks,
                          "ok": all(p is None or p.startswith("missing") for p in problems.values()),
                          "us": medians}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = arguments()
    torch.multiprocessing.spawn(rank_main, args=(options,), nprocs=options.ranks)
    sys.exit(0)
