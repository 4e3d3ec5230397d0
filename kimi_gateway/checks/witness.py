"""What the answer to a probe shows, twice over: as the target spells it, and as the gateway reads it.

The reader of the relay takes usage out and respells thoughts, and so hides what a check wants to see; here the
same bytes are looked at before it touches them.
"""

from collections.abc import Mapping
from typing import Final

from backends.dialect import Dialect
from backends.faults import Fault
from backends.fold import Fold
from backends.json import Json, JsonError, JsonObject, as_count, as_list, as_object, as_str, decode
from backends.reader import Chunk, ChunkReader, Done, Failed, Item, read_complete
from backends.sentinel import Sign, usage_signs
from backends.sse import Event, SseDecoder, SseTooLarge
from backends.usage import Measured, read_usage
from kimi_gateway.checks.findings import Sight

_THOUGHTS: Final = ("reasoning_content", "reasoning", "reasoning_details")
_REQUEST_ID: Final = "x-request-id"

IN_CHOICE: Final = "choices[0].usage"
IN_FINISHING: Final = "the finishing chunk"
IN_EXTRA: Final = "an extra chunk without choices"
IN_EARLIER: Final = "chunks before the end"
IN_BODY: Final = "the body"


class Witness:
    """Sees one answer as its bytes come. Times are milliseconds since the request was sent.

    `tools`: a tool was offered. `split_think_tags` is the target's setting, for the same reading as the relay's.
    """

    def __init__(
        self,
        dialect: Dialect,
        status: int,
        headers: Mapping[str, str],
        *,
        tools: bool,
        split_think_tags: bool = False,
    ) -> None:
        self._dialect = dialect
        self._status = status
        self._headers = headers
        self._tools = tools
        self._events = SseDecoder()
        self._split_think_tags = split_think_tags
        self._reader = ChunkReader(dialect, calls_wanted=tools, split_think_tags=split_think_tags)
        self._signs: set[Sign] = set()  # of an answer that is one body
        self._fold = Fold()
        self._thought_names: dict[str, None] = {}
        self._usage_places: dict[str, None] = {}
        self._usage: JsonObject | None = None
        self._model = ""
        self._thought_bytes = 0
        self._first_token_ms: int | None = None
        self._fault: Fault | None = None

    def feed(self, data: bytes, at_ms: int) -> bool:
        """Sees the next bytes of a stream (`b""`: its end); says whether the answer is over."""
        try:
            frames = self._events.feed(data) if data else self._events.finish()
        except SseTooLarge:
            frames = []  # the reader says so in its own words
        for frame in frames:
            if isinstance(frame, Event):
                self._look(frame.data)
        return self._take(self._reader.feed(data) if data else self._reader.finish(), at_ms)

    def whole(self, body: bytes, at_ms: int) -> None:
        """Sees an answer that is one JSON body instead of a stream."""
        self._look(body, place=IN_BODY)
        found = read_complete(
            body,
            self._dialect,
            calls_wanted=self._tools,
            split_think_tags=self._split_think_tags,
            signs=self._signs,
        )
        if isinstance(found, Fault):
            self._fault = found
            return
        answer, self._usage = found
        self._model = as_str(answer.get("model")) or ""
        for item in as_list(answer.get("choices")):
            choice = as_object(item) or {}
            message = as_object(choice.get("message")) or {}
            self._thought_bytes += len((as_str(message.get("reasoning_content")) or "").encode())
            piece = {"index": choice.get("index"), "finish_reason": choice.get("finish_reason"), "delta": message}
            self._fold.add({"choices": [piece]})
        self._first_token_ms = at_ms

    def failed(self, fault: Fault) -> None:
        """The answer broke off, or was none."""
        self._fault = self._fault or fault

    def sight(self, at_ms: int) -> Sight:
        """What was seen until now, at the end of the answer."""
        choice = as_object(next(iter(as_list(self._fold.body().get("choices"))), None)) or {}
        message = as_object(choice.get("message")) or {}
        calls = [as_object((as_object(call) or {}).get("function")) for call in as_list(message.get("tool_calls"))]
        measured = None
        if self._usage is not None:
            measured = read_usage(self._usage, dialect=self._dialect, headers=self._headers, ttl="")
        return Sight(
            status=self._status,
            model=self._model,
            thought_names=tuple(self._thought_names),
            thought_bytes=self._thought_bytes,
            text=as_str(message.get("content")) or "",
            calls=tuple(as_str(call.get("name")) or "" for call in calls if call is not None),
            finish_reason=as_str(choice.get("finish_reason")) or "",
            usage_places=tuple(self._usage_places),
            measured=measured,
            has_cached_count=_has_cached_count(self._usage),
            has_request_id=_REQUEST_ID in self._headers,
            first_token_ms=self._first_token_ms,
            whole_ms=at_ms,
            tools=self._tools,
            signs=() if self._fault is not None else tuple(sorted(self._all_signs(measured))),
            fault=self._fault,
        )

    def _all_signs(self, measured: Measured | None) -> frozenset[Sign]:
        return self._reader.signs | self._signs | usage_signs(measured)

    def _take(self, items: list[Item], at_ms: int) -> bool:
        for item in items:
            match item:
                case Chunk():
                    self._chunk(item, at_ms)
                case Failed(fault=fault):
                    self._fault = fault
                    return True
                case Done():
                    return True
                case _:
                    pass  # a sign of life
        return False

    def _chunk(self, chunk: Chunk, at_ms: int) -> None:
        self._fold.add(chunk.data)
        self._model = self._model or chunk.model or ""
        self._usage = chunk.usage or self._usage
        self._thought_bytes += chunk.thought_bytes
        if chunk.commits and self._first_token_ms is None:
            self._first_token_ms = at_ms

    def _look(self, data: bytes, *, place: str = "") -> None:
        """Notes in the target's own spelling where thoughts and usage stand; `place` is set for a whole body."""
        try:
            value = as_object(decode(data.strip()))
        except JsonError:
            return
        if value is None:
            return
        choices = [choice for item in as_list(value.get("choices")) if (choice := as_object(item)) is not None]
        for choice in choices:
            part = as_object(choice.get("message" if place else "delta")) or {}
            self._thought_names |= dict.fromkeys(name for name in _THOUGHTS if part.get(name))
            if choice.get("usage"):
                self._usage_places[IN_CHOICE] = None
        if value.get("usage"):
            self._usage_places[place or _place(choices)] = None


def _place(choices: list[JsonObject]) -> str:
    if not choices:
        return IN_EXTRA
    return IN_FINISHING if any(choice.get("finish_reason") for choice in choices) else IN_EARLIER


def _has_cached_count(usage: JsonObject | None) -> bool:
    """Whether a usage report says how much of the prompt came from the cache; 0 is a count, null is none."""
    report = usage or {}
    details = as_object(report.get("prompt_tokens_details")) or {}
    counts: tuple[Json, ...] = (details.get("cached_tokens"), report.get("cached_tokens"))
    return any(as_count(count) is not None for count in counts)
