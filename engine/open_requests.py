"""Requests that have not ended: what an engine sends for them, and what its death does to them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator

from engine.death import Death
from engine.recovery import bereaved, blame, may_retry
from engine.stream import Stream
from engine.wire import Deltas, Failed, Finished, PromptLogprobs, Submit

log = logging.getLogger(__name__)


class OpenRequests:
    """Streams by the id of their request, in the order in which they were given to an engine."""

    def __init__(self, on_finished: Callable[[Submit, Finished | Failed], None] | None) -> None:
        self._on_finished = on_finished
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream: Stream) -> bool:
        return self._streams.get(stream.request.id) is stream

    def all(self) -> list[Stream]:
        return list(self._streams.values())

    def add(self, stream: Stream) -> None:
        self._streams[stream.request.id] = stream

    def deliver(self, message: Deltas | PromptLogprobs | Finished | Failed) -> None:
        """Hand on what the engine sent; requests that have ended get nothing."""
        match message:
            case Deltas(items=items):
                for delta in items:
                    if stream := self._streams.get(delta.id):
                        stream.put(delta)
            case PromptLogprobs():
                if stream := self._streams.get(message.id):
                    stream.put(message)
            case Finished() | Failed():
                if stream := self._streams.get(message.id):
                    self.finish(stream, message)

    def finish(self, stream: Stream, event: Finished | Failed) -> None:
        """End a request, whether or not it was ever given to an engine."""
        if stream in self:
            del self._streams[stream.request.id]
        stream.put(event)
        if self._on_finished is not None:
            with logged("a finished request"):
                self._on_finished(stream.request, event)

    def outlive(self, death: Death, max_batch: int | None) -> None:
        """Keep the requests that the next engine may take up, and end the others. max_batch: how
        many the dead engine ran at once, None for all."""
        streams = self.all()
        blame(streams, len(streams) if max_batch is None else max_batch)
        for stream in streams:
            if may_retry(stream):
                stream.restart()
            else:
                self.finish(stream, bereaved(stream, death))

    def fail_all(self, code: str, message: str) -> None:
        """End every request, because no engine will take them."""
        for stream in self.all():
            self.finish(stream, Failed(stream.request.id, code, message))


@contextlib.contextmanager
def logged(what: str) -> Generator[None]:
    """A listener's fault is logged and costs its record, never the connection."""
    try:
        yield
    except Exception:
        log.exception("a listener failed on %s", what)
