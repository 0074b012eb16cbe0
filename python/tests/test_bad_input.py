"""Each bad input raises an exception whose message is a sentence, and the ranks go on."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import support
from epa2a import interrupt
from epa2a.processes import PipeGroup
from plain_moe import np, routes_of, tokens_of
from support import epa2a

RANKS, EXPERTS, TOPK, HIDDEN, MAX, TOKENS = 2, 8, 2, 128, 6, 4
SHAPE = {"max_tokens": MAX, "hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "dtype": "bf16"}
TIMEOUT = 300  # in seconds, of waits that Ctrl-C ends
Argument, Unsupported = epa2a.ArgumentError, epa2a.Unsupported


def inputs(comm):
    return (tokens_of(comm.rank, TOKENS, HIDDEN, "bf16"), *routes_of(comm.rank, TOKENS, EXPERTS, TOPK))


class State:
    """Valid objects and inputs of a rank, and an open dispatch, for the cases to spoil."""

    def __init__(self, comm):
        self.comm = comm
        self.moe = epa2a.Moe(comm, **SHAPE, options="algorithm=ll_v1")
        self.other = epa2a.Moe(comm, **SHAPE, recv="fp8")
        self.x, self.index, self.weights = inputs(comm)

    def open(self):
        self.got = self.moe.dispatch(self.x, self.index, self.weights)
        self.got.y[:] = self.got.x


class OtherDevice:
    """An array on a GPU. Its address is never read."""

    def __init__(self, like):
        facts = dict(like.__array_interface__)
        facts["typestr"] = "<u2"
        self.__cuda_array_interface__ = facts


class Nothing:
    pass


def changed(array, at, value):
    copy = array.copy()
    copy[at] = value
    return copy


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def dispatch(s, x=None, index=None, weights=None, moe=None, **more):
    moe = moe or s.moe
    return moe.dispatch(
        s.x if x is None else x, s.index if index is None else index, s.weights if weights is None else weights, **more
    )


def combine(s, *arguments, **more):
    return s.moe.combine(s.got, *arguments, **more)


def make(s, **changes):
    return epa2a.Moe(s.comm, **{**SHAPE, **changes})


def closed_moe(s):
    moe = make(s)
    moe.close()
    return dispatch(s, moe=moe)


def make_int8(s, **changes):
    """Makes a layer of int8 weights for 4 experts of a rank, 32 intermediates and hidden of 128."""
    weights = {
        "up": np.zeros((4, 64, HIDDEN), np.int8), "down": np.zeros((4, HIDDEN, 32), np.int8),
        "up_scale": np.ones((4, 64), np.float32), "down_scale": np.ones((4, HIDDEN), np.float32), **changes
    }  # fmt: skip
    return epa2a.FusedMoE(s.comm, weights.pop("up"), weights.pop("down"), topk=1, max_tokens=1, **weights)


# Name: exception, words of the message, call. All ranks make the call. One dispatch is open.
CASES = {
    "x of float32": (Argument, "x float32 bfloat16", lambda s: dispatch(s, s.x.astype(np.float32))),
    "x of float16": (Argument, "x float16 bfloat16", lambda s: dispatch(s, s.x.astype(np.float16))),
    "x of big-endian words": (Argument, "x dtype", lambda s: dispatch(s, s.x.view(np.uint16).astype(">u2"))),
    "x with one dimension": (Argument, "x shape 128", lambda s: dispatch(s, s.x[0])),
    "x with another hidden size": (Argument, "x shape 112 128", lambda s: dispatch(s, s.x[:, :112].copy())),
    "x with a step between elements": (
        Argument, "x stride", lambda s: dispatch(s, np.repeat(s.x, 2, axis=1)[:, ::2])),
    "x in column order": (Argument, "x stride", lambda s: dispatch(s, np.asfortranarray(s.x))),
    "x in reverse order": (Argument, "x stride", lambda s: dispatch(s, s.x[::-1])),
    "x as one repeated row": (
        Argument, "x stride", lambda s: dispatch(s, np.broadcast_to(s.x[:1], s.x.shape))),
    "x at an odd address": (
        Argument, "x address",
        lambda s: dispatch(s, np.zeros(2 * TOKENS * HIDDEN + 1, np.uint8)[1:].view(np.uint16).reshape(s.x.shape))),
    "x of lists": (Argument, "x list NumPy", lambda s: dispatch(s, s.x.tolist())),
    "x of an unknown class": (Argument, "x Nothing", lambda s: dispatch(s, Nothing())),
    "x on a GPU": (Argument, "x CUDA host memory", lambda s: dispatch(s, OtherDevice(s.x))),
    "more tokens than the maximum": (
        Argument, "7 tokens max_tokens 6",
        lambda s: dispatch(s, np.zeros((7, HIDDEN), s.x.dtype), np.zeros((7, TOPK), np.int32) + [0, 1],
                           np.zeros((7, TOPK), np.float32))),
    "topk_idx of floats": (Argument, "topk_idx int32", lambda s: dispatch(s, index=s.index.astype(np.float32))),
    "topk_idx is missing": (Argument, "topk_idx", lambda s: s.moe.dispatch(s.x, None)),
    "topk_idx with another top-k": (Argument, "topk_idx shape", lambda s: dispatch(s, index=s.index[:, :1].copy())),
    "topk_idx of fewer tokens": (Argument, "topk_idx shape", lambda s: dispatch(s, index=s.index[:2])),
    "an expert above the last": (
        Argument, "topk_idx token 1 8", lambda s: dispatch(s, index=changed(s.index, (1, 0), 8))),
    "an expert below -1": (Argument, "token 2 -2", lambda s: dispatch(s, index=changed(s.index, (2, 1), -2))),
    "an expert of 64 bits": (
        Argument, "token 0 4294967296",
        lambda s: dispatch(s, index=changed(s.index.astype(np.int64), (0, 0), 2**32))),
    "an expert twice in a row": (
        Argument, "token 3 twice", lambda s: dispatch(s, index=changed(s.index, 3, 5))),
    "weights of float64": (
        Argument, "topk_weights float64", lambda s: dispatch(s, weights=s.weights.astype(np.float64))),
    "weights of another shape": (Argument, "topk_weights shape", lambda s: dispatch(s, weights=s.weights.T.copy())),
    "scales of rows that are not FP8": (
        Argument, "x bfloat16 float8", lambda s: dispatch(s, x_scale=np.ones((TOKENS, 1), np.float32))),
    "FP8 rows for a moe that sends bf16": (
        Unsupported, "x_scale", lambda s: dispatch(
            s, np.zeros((TOKENS, HIDDEN), np.uint8), x_scale=np.ones((TOKENS, 1), np.float32))),
    "rows in dtype from a moe that sends FP8": (
        Unsupported, "FP8", lambda s: dispatch(s, moe=s.other, recv="bf16")),
    "scale flags without FP8 rows": (Argument, "scales FP8", lambda s: dispatch(s, pow2_scales=True)),
    "recv of another type": (Argument, "recv f32 fp8", lambda s: dispatch(s, recv="f32")),
    "seen of int64": (Argument, "seen int64", lambda s: dispatch(s, seen=np.zeros(4, np.int64))),
    "an unknown output": (Argument, "into rows", lambda s: dispatch(s, into={"rows": s.got.x})),
    "an output of another shape": (Argument, "into x shape", lambda s: dispatch(s, into={"x": s.got.x[:, :1]})),
    "a read-only output": (Argument, "count read-only", lambda s: dispatch(s, into={"count": read_only(s.got.count)})),
    "outputs as views and in memory": (Argument, "views into", lambda s: dispatch(s, views=True, into=s.got)),
    "a text as number": (Argument, "max_tokens", lambda s: make(s, max_tokens="many")),
    "a second dispatch in flight": (Argument, "combine in_flight", dispatch),
    "routes of a dispatch without routes": (
        Argument, "keep_routes", lambda s: s.moe.dispatch_again(s.got, s.x)),
    "counts without host_counts": (Argument, "host_counts", lambda s: s.got.counts),
    "wait for a complete dispatch": (Argument, "complete", lambda s: s.got.wait()),
    "y of float32": (Argument, "y float32", lambda s: combine(s, s.got.y.astype(np.float32))),
    "y of another shape": (Argument, "y shape", lambda s: combine(s, s.got.y[0])),
    "y with a step": (Argument, "y contiguous", lambda s: combine(s, np.repeat(s.got.y, 2, axis=2)[:, :, ::2])),
    "out of another shape": (Argument, "out shape", lambda s: combine(s, out=np.zeros((1, HIDDEN), s.x.dtype))),
    "out of another type": (Argument, "out int8", lambda s: combine(s, out=np.zeros(s.x.shape, np.int8))),
    "a read-only out": (Argument, "out read-only", lambda s: combine(s, out=read_only(s.x))),
    "LogFMT of 128 channels": (Argument, "LOGFMT 512 128", lambda s: combine(s, s.got.y, logfmt=True)),
    "three biases": (Argument, "bias 3", lambda s: combine(s, bias=[s.x] * 3)),
    "weights of a layout by rank": (Argument, "out_weight RANK", lambda s: combine(s, return_weights=True)),
    "combine of another moe": (Argument, "another Moe", lambda s: s.other.combine(s.got, s.got.y)),
    "combine of an array": (Argument, "received ndarray", lambda s: s.moe.combine(s.x)),
    "top-k above the limit": (Argument, "topk 33", lambda s: make(s, topk=33, experts=64)),
    "no tokens at all": (Argument, "max_tokens 0", lambda s: make(s, max_tokens=0)),
    "a negative number of tokens": (Argument, "max_tokens -1", lambda s: make(s, max_tokens=-1)),
    "a hidden size of 100": (Argument, "hidden 100 16", lambda s: make(s, hidden=100)),
    "experts that the ranks cannot share": (Argument, "experts 7", lambda s: make(s, experts=7)),
    "a moe of float32": (Argument, "dtype f32", lambda s: make(s, dtype="float32")),
    "an unknown layout": (Argument, "layout", lambda s: make(s, layout="padded")),
    "an unknown option": (Argument, "dedupe dedup", lambda s: make(s, options="dedupe=true")),
    "an unknown algorithm": (Argument, "ll_v9", lambda s: make(s, options="algorithm=ll_v9")),
    "options of numbers": (Argument, "options int", lambda s: make(s, options=3)),
    "an unknown argument": (Argument, "top_k", lambda s: make(s, top_k=2)),
    "a closed moe": (Argument, "closed", closed_moe),
    "a group in place of a comm": (Argument, "comm PipeGroup", lambda s: epa2a.Moe(PipeGroup(0, 1, None), **SHAPE)),
    "memory of a negative size": (Argument, "shape -1", lambda s: s.comm.empty(-1)),
    "weights of one scale only": (
        Argument, "down_scale", lambda s: epa2a.FusedMoE(
            s.comm, s.x.reshape(1, TOKENS, HIDDEN), s.x.reshape(1, HIDDEN, TOKENS), topk=1, max_tokens=1,
            up_scale=np.ones((1, 1, 1), np.float32))),
    "int8 weights without scales": (
        Argument, "up_scale int8", lambda s: make_int8(s, up_scale=None, down_scale=None)),
    "int8 weights with one scale": (Argument, "down_scale int8", lambda s: make_int8(s, down_scale=None)),
    "int8 weights with scales of blocks": (
        Argument, "up_scale shape [4, 64]", lambda s: make_int8(s, up_scale=np.ones((4, 1, 1), np.float32))),
    "int8 weights with a scale for each column": (
        Argument, "down_scale shape 128", lambda s: make_int8(s, down_scale=np.ones((4, 32), np.float32))),
    "int8 weights with scales of float64": (
        Argument, "up_scale float64 float32", lambda s: make_int8(s, up_scale=np.ones((4, 64)))),
    "int8 weights with one matrix of bf16": (
        Argument, "down bfloat16 int8", lambda s: make_int8(s, down=np.zeros((4, HIDDEN, 32), s.x.dtype))),
    "bf16 weights with scales of int8": (
        Argument, "up bfloat16 float8", lambda s: make_int8(s, up=np.zeros((4, 64, HIDDEN), s.x.dtype))),
    "int8 weights of another number of experts": (
        Argument, "down shape", lambda s: make_int8(s, down=np.zeros((3, HIDDEN, 32), np.int8))),
    "int8 weights in steps": (
        Argument, "up contiguous", lambda s: make_int8(s, up=np.zeros((4, 64, 2 * HIDDEN), np.int8)[:, :, ::2])),
    "int8 weights with an odd size": (
        Argument, "ffn hidden multiples 32", lambda s: make_int8(
            s, up=np.zeros((4, 2 * 24, HIDDEN), np.int8), down=np.zeros((4, HIDDEN, 24), np.int8),
            up_scale=np.ones((4, 2 * 24), np.float32))),
    "tokens and sums of int8": (Argument, "dtype 'int8' bf16", lambda s: make_int8(s, dtype="int8")),
    "int8 tokens": (Argument, "x int8 bfloat16", lambda s: dispatch(s, np.zeros(s.x.shape, np.int8))),
    "rows of another number of ranks": (
        Argument, "rows", lambda s: epa2a.AgGemm(s.comm, s.x, max_rows=4)(s.x, rows=[1])),
}  # fmt: skip


def check_message(test, error, words):
    text = str(error)
    test.assertNotIn("\n", text)
    test.assertGreaterEqual(len(text.split()), 3, text)
    for word in words.split():
        test.assertIn(word, text)


def run_case(s, call):
    """Returns the failure of a call. The open dispatch must be combinable after the failure."""
    failure = None
    s.open()
    try:
        call(s)
    except epa2a.Error as error:
        failure = error
    out = s.moe.combine(s.got)
    wanted = s.x.astype(np.float32) * s.weights.sum(1)[:, None]
    assert np.allclose(out.astype(np.float32), wanted, rtol=0.02, atol=0.02)
    return failure


def run_cases(comm):
    s = State(comm)
    return {name: run_case(s, call) for name, (_, _, call) in CASES.items()}


class Table(unittest.TestCase):
    def test_each_bad_input_is_an_error_and_has_no_effect(self):
        self.assertGreaterEqual(len(CASES), 40)
        for failures in epa2a.spawn(run_cases, RANKS):
            for name, (kind, words, _) in CASES.items():
                with self.subTest(name):
                    self.assertIsInstance(failures[name], kind)
                    check_message(self, failures[name], words)


# ---- cases of a process ----


def run_other_order(comm):
    moe = epa2a.Moe(comm, **SHAPE)
    if comm.rank == 0:
        moe.dispatch(*inputs(comm))
    else:
        comm.barrier()


def run_other_shapes(comm):
    epa2a.Moe(comm, **{**SHAPE, "hidden": HIDDEN * (comm.rank + 1)})


def run_killed_peer(comm):
    moe = epa2a.Moe(comm, **SHAPE)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    moe.dispatch(*inputs(comm))


def interrupt_call():
    """Sends SIGINT to this process while its main thread is in a call of the library."""
    while interrupt._state is None or interrupt._state.abort is None:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


def run_interrupted(comm):
    moe = epa2a.Moe(comm, **SHAPE)
    if comm.rank != 0:  # rank 0 waits for this rank
        while True:
            try:
                comm.check()
            except epa2a.Error as error:
                return error
            time.sleep(0.001)
    threading.Thread(target=interrupt_call).start()
    begin = time.monotonic()
    try:
        moe.dispatch(*inputs(comm))
    except KeyboardInterrupt:
        return time.monotonic() - begin


def dispatch_later(moe, arguments):
    """The call of the other thread may hold the comm: a refused call is repeated."""
    while True:
        try:
            return moe.discard(moe.dispatch(*arguments))
        except epa2a.ArgumentError:
            pass


def run_second_thread(comm, pipe):
    moe = epa2a.Moe(comm, **SHAPE)
    if comm.rank != 0:
        os.read(pipe[0], 1)
        return moe.discard(moe.dispatch(*inputs(comm)))
    thread = threading.Thread(target=dispatch_later, args=(moe, inputs(comm)))
    thread.start()
    while True:  # the thread waits for rank 1, which waits for the failure
        try:
            comm.sync()
        except epa2a.ArgumentError as error:
            os.write(pipe[1], b"x")
            thread.join()
            return error


def run_fork(comm):
    moe = epa2a.Moe(comm, **SHAPE)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            moe.dispatch(*inputs(comm))
            text = "no failure"
        except epa2a.ArgumentError as error:
            text = str(error)
        comm.close()
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    os.waitpid(child, 0)
    moe.discard(moe.dispatch(*inputs(comm)))  # the parent goes on
    return text


EXIT = """
import sys, epa2a, numpy as np
def rank(comm):
    moe = epa2a.Moe(comm, max_tokens=4, hidden=128, experts=4, topk=1)
    x = np.zeros((4, 128), np.uint16)
    got = moe.dispatch_send(x, np.zeros((4, 1), np.int32), np.ones((4, 1), np.float32))
    sys.exit(0)
class Alone:
    rank, size = 0, 1
    def allgather(self, mine):
        return [mine]
comm = epa2a.Comm(Alone(), device="cpu")
rank(comm)
"""


class Alone:
    rank, size = 0, 1

    def allgather(self, mine):
        return [mine]


class BadGroup:
    rank, size = 0, 2

    def allgather(self, mine):
        return [mine]


class RaisingGroup(BadGroup):
    def allgather(self, mine):
        raise ConnectionError("the store of the job is gone")


class Processes(unittest.TestCase):
    def fails(self, function, *arguments, **options):
        with self.assertRaises(epa2a.SpawnError) as context:
            epa2a.spawn(function, RANKS, *arguments, **options)
        return context.exception

    def test_calls_in_another_order_time_out(self):
        error = self.fails(run_other_order, timeout=1)
        self.assertIsInstance(error.__cause__, (epa2a.Timeout, epa2a.Aborted, epa2a.ArgumentError))
        check_message(self, error.__cause__, "rank")

    def test_shapes_of_the_ranks_must_be_equal(self):
        error = self.fails(run_other_shapes)
        self.assertIsInstance(error.__cause__, epa2a.ArgumentError)
        check_message(self, error.__cause__, "hidden")

    def test_killed_peer_is_named(self):
        error = self.fails(run_killed_peer)
        self.assertEqual(sorted(error.failures), [0, 1])
        self.assertIn("SIGKILL", error.failures[1])
        self.assertRegex(error.failures[0], "RankDied: .*rank 1")

    def test_ctrl_c_ends_a_call_and_the_calls_of_the_other_ranks(self):
        waited, failure = epa2a.spawn(run_interrupted, RANKS, timeout=TIMEOUT)
        self.assertLess(waited, TIMEOUT)
        self.assertIsInstance(failure, epa2a.Aborted)
        check_message(self, failure, "rank 0")

    @unittest.skipUnless(support.has_hash(), "neither OpenSSL nor the kernel hashes")
    def test_ctrl_c_ends_the_creation_of_a_comm(self):
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        begin = time.monotonic()
        with support.reserve_port() as port, subprocess.Popen(
            [sys.executable, "-c", f"import epa2a; epa2a.Comm(device='cpu', timeout={TIMEOUT})"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "MASTER_PORT": str(port.getsockname()[1])},
        ) as process:
            # A second thread waits for rank 1.
            while process.poll() is None and len(os.listdir(f"/proc/{process.pid}/task")) < 2:
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            _, text = process.communicate()
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", text)
        self.assertLess(time.monotonic() - begin, TIMEOUT)

    def test_second_thread_is_refused(self):
        failure, _ = epa2a.spawn(run_second_thread, RANKS, os.pipe())
        check_message(self, failure, "another thread")

    def test_child_of_fork_cannot_use_the_comm(self):
        for text in epa2a.spawn(run_fork, RANKS):
            self.assertIn("after fork()", text)

    def test_exit_with_an_open_call(self):
        done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_failures_of_the_group(self):
        with self.assertRaises(epa2a.ArgumentError) as context:
            epa2a.Comm(BadGroup(), device="cpu")
        check_message(self, context.exception, "allgather 2 parts")
        with self.assertRaises(ConnectionError):
            epa2a.Comm(RaisingGroup(), device="cpu")

    def test_arguments_of_a_comm(self):
        for words, arguments in {
            "group allgather": {"group": Nothing()},
            "device tpu": {"device": "tpu"},
            "timeout -1": {"timeout": -1},
            "heap_bytes float": {"heap_bytes": 1.5},
            "transport pigeon": {"group": Alone(), "options": "transport=pigeon"},
        }.items():
            with self.subTest(words), self.assertRaises(epa2a.ArgumentError) as context:
                epa2a.Comm(**arguments)
            check_message(self, context.exception, words)

    def test_arguments_of_spawn(self):
        for arguments in ((None, 2), (run_fork, 0), (run_fork, "two")):
            with self.assertRaises(epa2a.ArgumentError):
                epa2a.spawn(*arguments)


if __name__ == "__main__":
    support.main()
