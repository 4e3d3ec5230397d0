"""Answers of upstreams made up for tests of the reader: events, and what comes out of them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.faults import Fault
from backends.fold import Fold
from backends.json import encode
from backends.reader import Chunk, ChunkReader, Failed, Item, read_complete
from backends.sentinel import Sign
from backends.sse import encode_event


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader made of an answer. `message` is that of choice 0."""

    items: list[Item]
    body: Any
    signs: frozenset[Sign]

    @property
    def message(self) -> Any:
        return self.body["choices"][0]["message"]

    @property
    def said(self) -> tuple[Any, Any]:
        """Thought (None where there is none) and content of choice 0."""
        return self.message.get("reasoning_content"), self.message["content"]

    @property
    def chunks(self) -> list[Chunk]:
        return [item for item in self.items if isinstance(item, Chunk)]

    @property
    def has_failed(self) -> bool:
        return isinstance(self.items[-1], Failed)


def event(delta: Any, finish: str | None = None, index: int = 0) -> bytes:
    """One chunk of one choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return encode_event(encode({"id": "c-1", "model": "m", "created": 7, "choices": [choice]}))


def read(*events: bytes, dialect: str | Dialect = "sglang", **how: Any) -> Read:
    """A stream of these events; `how` are the reader's keywords."""
    reader = ChunkReader(DIALECTS[dialect] if isinstance(dialect, str) else dialect, **how)
    items = [item for each in events for item in reader.feed(each)] + reader.finish()
    fold = Fold()
    for item in items:
        if isinstance(item, Chunk):
            fold.add(item.data)
    return Read(items, fold.body(), reader.signs)


def whole(message: Any, finish: str = "stop", dialect: str = "sglang", **how: Any) -> Read:
    """The same of a JSON body with this message."""
    signs: set[Sign] = set()
    data = encode({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})
    found = read_complete(data, DIALECTS[dialect], signs=signs, **how)
    assert not isinstance(found, Fault)
    return Read([], found[0], frozenset(signs))


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    """The text cut at these places; those beyond its end count for nothing."""
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def streamed(parts: Sequence[str], finish: str = "stop", *, rides: bool = False, **how: Any) -> Read:
    """Content in these pieces; `rides`: the finish reason comes with the last of them."""
    events = [event({"content": part}) for part in parts]
    if rides:
        events[-1] = event({"content": parts[-1]}, finish)
    else:
        events.append(event({}, finish))
    return read(*events, **how)
