"""Ranks that other programs start: variables of torchrun, and process groups of torch."""

import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import support
from epa2a import exchange
from plain_moe import np
from support import epa2a

RANKS = 2


def data_of(rank, length):
    """Returns bytes with all values, among them the bits of BF16 numbers that are not finite."""
    return np.random.default_rng(rank).bytes(length)


def check_allgather(comm):
    """A length is 0, some differ between ranks, and some need several messages."""
    for lengths in ([0, 0, 0, 0], [1, 0, 5, 2], [4096, 4097, 1, 0], [9001, 20000, 3, 4]):
        got = comm.allgather(data_of(comm.rank, lengths[comm.rank]))
        wanted = [data_of(r, lengths[r]) for r in range(comm.ranks)]
        if got != wanted:
            raise AssertionError(f"rank {comm.rank} received {[len(part) for part in got]} bytes of {lengths}")


def use(group, results):
    with epa2a.Comm(group, device="cpu") as comm:
        comm.barrier()
        check_allgather(comm)
        results.put((comm.rank, comm.ranks, comm.facts["transport"]))


def run_environment(rank, port, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    use(None, results)


def run_torch(rank, path, results):
    import torch.distributed as dist

    store = dist.FileStore(path, RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    use(dist.group.WORLD, results)
    dist.destroy_process_group()


def use_library(comm, choices):
    """Without the group, the library moves the bytes. More ranks than choices need several tokens."""
    comm._group, exchange._CHOICES = None, choices
    check_allgather(comm)
    try:
        comm.allgather("text")
    except epa2a.ArgumentError as error:
        return str(error)


MPI = """
from mpi4py import MPI
import epa2a
with epa2a.Comm(MPI.COMM_WORLD, device="cpu") as comm:
    comm.barrier()
    print(comm.rank, comm.ranks)
"""


class ThreadGroup:
    """Ranks as threads of one process."""

    def __init__(self, rank, parts, barrier):
        self.rank, self.parts, self.barrier = rank, parts, barrier

    def size(self):
        return len(self.parts)

    def allgather(self, mine):
        self.parts[self.rank] = mine
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class Groups(unittest.TestCase):
    def ranks(self, function, argument):
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        processes = [context.Process(target=function, args=(r, argument, results)) for r in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            self.assertEqual(process.exitcode, 0)
        self.assertEqual(sorted(results.get() for _ in range(RANKS)), [(0, 2, "shm"), (1, 2, "shm")])

    @unittest.skipUnless(support.has_hash(), "neither OpenSSL nor the kernel hashes")
    def test_variables_of_torchrun(self):
        with support.reserve_port() as port:
            self.ranks(run_environment, port.getsockname()[1])

    def test_process_group_of_torch(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("torch is not installed")
        with tempfile.TemporaryDirectory() as folder:
            self.ranks(run_torch, os.path.join(folder, "store"))

    def test_communicator_of_mpi4py(self):
        if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None:
            self.skipTest("mpi4py or mpirun is not installed")
        command = ["mpirun", "--oversubscribe", "-n", str(RANKS), sys.executable, "-c", MPI]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **root})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0 2", "1 2"])

    def test_library_gathers_bytes_without_a_group(self):
        for choices in 32, 3:
            for text in epa2a.spawn(use_library, 4, choices):
                self.assertIn("str", text)

    def test_ranks_as_threads(self):
        import queue

        results, parts, barrier = queue.Queue(), [b""] * RANKS, threading.Barrier(RANKS)
        threads = [
            threading.Thread(target=use, args=(ThreadGroup(r, parts, barrier), results)) for r in range(RANKS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results.get_nowait() for _ in range(RANKS)), [(0, 2, "shm"), (1, 2, "shm")])


if __name__ == "__main__":
    support.main()
