"""Events that order streams. On hosts a call is complete on return, so its event has no effect."""

from .torch_or_none import cuda


class EventHandle:
    """A point of the current stream."""

    def __init__(self):
        self._event = None
        if cuda() is not None:
            self._event = cuda().Event()
            self._event.record(cuda().current_stream())

    def current_stream_wait(self):
        """The current stream waits for the event."""
        if self._event is not None:
            cuda().current_stream().wait_event(self._event)


class EventOverlap:
    """An event that the current stream awaits at the end of a `with` block. `extra_tensors` live as
    long as the event. The event of a call without async_finish is None."""

    def __init__(self, event=None, extra_tensors=None):
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self):
        """The current stream waits for the event."""
        if self.event is None:
            raise ValueError("This EventOverlap has no event; pass async_finish=True to the call.")
        self.event.current_stream_wait()

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        if self.event is not None:
            self.event.current_stream_wait()
