"""Calls of Moe through the compiled module: they do not enter the Python code, and equal its results and its
exceptions. Exits with 77 if the build has no module."""

import sys
import threading
import unittest

import support
from epa2a import binding
from plain_moe import np, routes_of, tokens_of
from support import epa2a

if binding.module is None:
    support.skip("the build has no compiled module")

RANKS, EXPERTS, TOPK, HIDDEN, MAX = 2, 4, 2, 128, 6
SHAPE = {"max_tokens": MAX, "hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "in_flight": 2}
SLOW = "_start", "_start_combine"  # the Python code of a call


def inputs(comm, tokens=MAX):
    x = tokens_of(comm.rank, tokens, HIDDEN, "bf16")
    return x, *routes_of(comm.rank, tokens, EXPERTS, TOPK)


def rows_of(moe, got):
    """Returns the used rows, and copies them to the expert outputs."""
    counts = [int(n) for n in got.count]
    for e, n in enumerate(counts):
        got.y[e, :n] = got.x[e, :n]
    return b"".join(got.x[e, :n].tobytes() for e, n in enumerate(counts))


def results(moe, x, index, weights, seen):
    """Returns the bytes of the results of each form of a call."""
    found = []

    def pair(got, *arguments, **options):
        found.append(rows_of(moe, got))
        found.append(moe.combine(got, *arguments, **options).tobytes())

    out = np.empty_like(x)
    first = moe.dispatch(x, index, weights)
    pair(first)
    pair(moe.dispatch(x, index.astype(np.int64), weights, seen=seen), out=out)
    pair(moe.dispatch(x, index, weights, into=first), first.y, out=out)
    pair(moe.dispatch(x, index, weights, views=True))
    pair(moe.dispatch(x, index), None, weights, topk_idx=index)
    pair(moe.dispatch(x, index, weights, keep_routes=True, sources=False), first.y)
    got = moe.dispatch_send(x, index, weights)
    pair(got.wait())
    got = moe.dispatch_send(x, index, weights).wait()
    found.append(moe.combine_send(got, first.y.reshape(-1, HIDDEN)).wait().tobytes())
    return [*found, seen.tobytes()]


def without_module(moe, call):
    """Calls a function while calls of the moe take the Python code."""
    calls, moe._calls = moe._calls, None
    try:
        return call()
    finally:
        moe._calls = calls


def run_forms(comm, direct):
    moe = epa2a.Moe(comm, **SHAPE)
    arguments = inputs(comm, MAX - comm.rank)
    if direct:  # as on a device, where the library does not wait for peers
        guard, comm.call_waiting = comm.call_waiting, None
        moe._calls = moe._compiled_calls()
        comm.call_waiting = guard
    wanted = without_module(moe, lambda: results(moe, *arguments, np.zeros(2, np.int32)))

    def fail(*_):
        raise AssertionError("a call took the Python code")

    for name in SLOW:
        setattr(moe, name, fail)
    assert results(moe, *arguments, np.zeros(2, np.int32)) == wanted


def message_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("no exception")


def run_exceptions(comm):
    moe = epa2a.Moe(comm, **SHAPE)
    x, index, weights = inputs(comm)
    moe.combine(moe.dispatch(x, index, weights), np.zeros((*moe._y_shape,), x.dtype))  # the dtypes are known
    wrong = index.copy()
    wrong[0] = EXPERTS
    got = moe.dispatch(x, index, weights)
    calls = {
        "width": lambda: moe.dispatch(x[:, 1:], index, weights),
        "dtype": lambda: moe.dispatch(x.astype(np.float32), index, weights),
        "choices": lambda: moe.dispatch(x, index[:3], weights),
        "no choices": lambda: moe.dispatch(x, None, weights),
        "expert": lambda: moe.dispatch(x, wrong, weights),
        "views": lambda: moe.dispatch(x, index, weights, views=True, into=got),
        "form": lambda: moe.dispatch(x, index, weights, recv=[]),
        "weights": lambda: moe.combine(got, got.x, weights[:1]),
        "out": lambda: moe.combine(got, got.x, out=np.zeros(3, x.dtype)),
        "y": lambda: moe.combine(got),
        "received": lambda: moe.combine(x),
    }
    for name, call in calls.items():
        found = message_of(call)
        assert found == without_module(moe, lambda: message_of(call)), (name, found)
    moe.combine(got, got.x)
    moe.close()
    return message_of(lambda: moe.dispatch(x, index, weights))[1]


def run_references(comm):
    """Calls keep no reference to their arguments and results."""
    moe = epa2a.Moe(comm, **SHAPE)
    x, index, weights = inputs(comm)
    out = np.empty_like(x)
    y = np.zeros((*moe._y_shape,), x.dtype)
    into = moe.dispatch(x, index, weights)
    moe.combine(into, y, out=out)

    def many(n):
        for _ in range(n):
            moe.combine(moe.dispatch(x, index, weights, into=into), y, out=out)
            moe.combine(moe.dispatch(x, index, weights, views=True), y)
            moe.combine(moe.dispatch(x, index), y, weights)

    def counts():
        objects = x, index, weights, out, y, into, moe, into._plan, into._arrays, into.framework
        return [sys.getrefcount(o) for o in objects]

    many(2)
    before = counts()
    many(50)
    assert counts() == before, (before, counts())


def run_threads(comm):
    """A call from another thread needs no main thread."""
    moe = epa2a.Moe(comm, **SHAPE)
    x, index, weights = inputs(comm)
    y = np.ones((*moe._y_shape,), x.dtype)
    sums = []
    thread = threading.Thread(target=lambda: sums.append(moe.combine(moe.dispatch(x, index, weights), y)))
    thread.start()
    thread.join()
    assert len(sums) == 1


class Binding(unittest.TestCase):
    def test_usual_calls_take_the_module(self):
        epa2a.spawn(run_forms, RANKS, False)

    def test_calls_that_wait_for_no_peer(self):
        epa2a.spawn(run_forms, RANKS, True)

    def test_exceptions_are_those_of_the_python_code(self):
        for text in epa2a.spawn(run_exceptions, RANKS):
            self.assertIn("closed", text)

    def test_references(self):
        epa2a.spawn(run_references, RANKS)

    def test_threads(self):
        epa2a.spawn(run_threads, RANKS)


if __name__ == "__main__":
    support.main()
