"""One answer as it comes: bytes of a stream to typed events, and at its end, clean or not, the reply. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from backends.faults import Fault, FaultKind
from backends.fold import Fold
from backends.json import JsonObject, as_list, as_object, as_str
from backends.reader import Chunk, ChunkReader, Done, Failed, Item
from kimi_sdk.events import TextDelta, ThinkingDelta
from kimi_sdk.reply import Reading, Reply, partial_reply
from kimi_sdk.steps import Head
from kimi_sdk.wire import Answer


@dataclass(frozen=True, slots=True)
class Broken:
    """How a stream ended that has no clean end."""

    fault: Fault


class Hearing:
    """A streamed answer.

    `has_content`: something of it has been given out, so it must not be asked for again. `ended` is None while it
    goes on, then `True` for a clean end or what broke it.
    """

    def __init__(self, head: Head, reading: Reading, *, calls_wanted: bool) -> None:
        self._reader = ChunkReader(reading.place.dialect, calls_wanted=calls_wanted)
        self._fold = Fold()
        self._usage: JsonObject | None = None
        self._head = head
        self._reading = reading
        self._opening_due = bool(reading.opening.text)
        self.has_content = False
        self.ended: bool | Broken | None = None

    def feed(self, data: bytes) -> Iterator[ThinkingDelta | TextDelta]:
        """The events in the next bytes; b"" is the end of the body."""
        for item in self._reader.feed(data) if data else self._reader.finish():
            yield from self._events(item)

    def opening(self) -> Iterator[TextDelta]:
        """The prefix, once, where no text of the model followed it."""
        if self._opening_due:
            self._opening_due = False
            yield TextDelta(self._reading.opening.text)

    def reply(self) -> Reply:
        """What has come so far."""
        body = self._fold.body()
        if self._usage is not None:
            body["usage"] = self._usage
        return partial_reply(Answer(self._head.status, self._head.headers, b""), body, self._reading)

    @property
    def is_whole(self) -> bool:
        """All is there that an answer has: its finish reason and the count of its tokens."""
        return self._reader.is_answered and self._usage is not None

    def _events(self, item: Item) -> Iterator[ThinkingDelta | TextDelta]:
        if isinstance(item, Done):
            self.ended = True
        elif isinstance(item, Failed):
            self.ended = Broken(item.fault)
        elif isinstance(item, Chunk):
            self._fold.add(item.data)
            self._usage = item.usage or self._usage
            self.has_content = self.has_content or item.commits
            yield from self._deltas(item.data)

    def _deltas(self, data: JsonObject) -> Iterator[ThinkingDelta | TextDelta]:
        choice = as_object(next(iter(as_list(data.get("choices"))), None)) or {}
        delta = as_object(choice.get("delta")) or {}
        if thought := as_str(delta.get("reasoning_content")):
            yield ThinkingDelta(thought)
        if text := as_str(delta.get("content")):
            yield from self.opening()
            yield TextDelta(text)


def is_incomplete(fault: Fault) -> bool:
    """The stream ended without saying that the answer is whole."""
    return fault.kind is FaultKind.INCOMPLETE
