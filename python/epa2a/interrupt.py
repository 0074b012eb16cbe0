"""Ctrl-C during a call that waits for peers on the host.

Python runs the handler of SIGINT after the call of the library returns, which may be never. Its C
handler writes a byte to the wakeup descriptor. A thread reads the byte and aborts the comm, which
ends the call; Python then raises KeyboardInterrupt. A process with a handler of its own for SIGINT
does not use this module."""

import _signal
import os
import signal
import threading

_state = None


class _Watcher:
    def __init__(self):
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.read_end, True)
        self.abort = None  # of the comm that waits
        self.previous = -1
        self.lock = threading.Lock()
        threading.Thread(target=self.run, name="epa2a-ctrl-c", daemon=True).start()

    def run(self):
        while True:
            signals = os.read(self.read_end, 256)
            with self.lock:
                if signal.SIGINT in signals and self.abort is not None:
                    self.abort()
                previous = self.previous
            if previous >= 0:
                try:
                    os.write(previous, signals)
                except OSError:
                    pass  # the loop of the caller has closed its descriptor


def _forget():
    global _state

    _state = None  # the thread stays in the parent


os.register_at_fork(after_in_child=_forget)
_thread = threading.get_ident
_default = signal.default_int_handler
# signal.getsignal() converts its result to an enumeration, which takes microseconds.
_handler = getattr(_signal, "getsignal", signal.getsignal)
_SIGINT = int(signal.SIGINT)


def call(abort, function, *arguments):
    """Calls a function of the library. Ctrl-C calls `abort`."""
    global _state

    if _thread() != threading.main_thread().ident or _handler(_SIGINT) is not _default:
        return function(*arguments)
    if _state is None:
        _state = _Watcher()
    state = _state
    if state.abort is not None:  # a call from a callback of another call
        return function(*arguments)
    try:
        previous = signal.set_wakeup_fd(state.write_end, warn_on_full_buffer=False)
    except ValueError:  # a subinterpreter receives no signals
        return function(*arguments)
    try:
        state.abort, state.previous = abort, previous
        return function(*arguments)
    finally:
        signal.set_wakeup_fd(previous)
        with state.lock:  # the thread may be inside abort()
            state.abort, state.previous = None, -1
