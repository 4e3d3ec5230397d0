"""A stream put together into one `chat.completion`, and a whole answer taken apart into chunks.

Texts (content, thought, refusal, arguments) are joined, lists of log probabilities appended, pieces of
`reasoning_details` joined by index and type; of everything else the last value that is not null counts. How a text
is split over chunks changes nothing, and the time is linear in it. "", null and absent stay three things.
"""

from collections import Counter
from dataclasses import dataclass
from io import StringIO
from typing import Final, TypeAlias

from msgspec import UNSET

from backends.json import Json, JsonObject, as_count, as_list, as_object, as_str
from backends.plain import Piece

_STREAM_FIELDS: Final = ("id", "created", "model", "service_tier", "system_fingerprint")
"""What every chunk of a stream repeats."""

_THOUGHT_FIELDS: Final = ("role", "reasoning_content", "reasoning_details")
"""What `as_chunks` sends first: in Moonshot's streams the thought precedes the content."""

_TEXTS: Final = frozenset({"content", "reasoning_content", "refusal"})
_DETAIL_TEXTS: Final = frozenset({"text", "summary", "data"})
_FUNCTION_TEXTS: Final = frozenset({"name", "arguments"})

_DetailKey: TypeAlias = tuple[str | None, int | None]  # type and index


@dataclass(frozen=True, slots=True)
class Delivered:
    """UTF-8 bytes of one choice's output so far."""

    text_bytes: int = 0
    thought_bytes: int = 0
    argument_bytes: int = 0


_PIECES_MAX: Final = 64


class _Text:
    """A text in pieces. Null counts only where no piece came; a value that is no text replaces all.

    Pieces are joined when there are many, for as objects they take several times their text: to put one away
    costs 0.13 µs, where writing each to a buffer cost 0.19.
    """

    __slots__ = ("_buffer", "_other", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._buffer: StringIO | None = None
        self._other: Json = None

    def add(self, piece: Json) -> None:
        if isinstance(piece, str):
            self._pieces.append(piece)
            if len(self._pieces) > _PIECES_MAX:
                self._joined()
        elif piece is not None:
            self._other = piece

    def _joined(self) -> StringIO:
        if self._buffer is None:
            self._buffer = StringIO(newline="")
        self._buffer.write("".join(self._pieces))
        self._pieces.clear()
        return self._buffer

    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces) if self._buffer is None else self._joined().getvalue()

    def value(self) -> Json:
        if self._other is not None or (self._buffer is None and not self._pieces):
            return self._other
        return self.text()


class _Parts:
    """The fields of an object that comes in pieces: some are texts, of the others the last non-null counts."""

    __slots__ = ("_texts", "fields", "texts")

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self.texts: dict[str, _Text] = {}
        self.fields: JsonObject = {}

    def add(self, name: str, value: Json) -> None:
        if name in self._texts:
            self.add_text(name, value)
        elif value is not None or name not in self.fields:
            self.fields[name] = value

    def add_text(self, name: str, value: Json) -> None:
        """The same for one of the texts."""
        text = self.texts.get(name)
        if text is None:
            text = self.texts[name] = _Text()
        text.add(value)

    def value(self) -> JsonObject:
        whole = self.fields.copy()
        for name, text in self.texts.items():
            whole[name] = text.value()
        return whole

    def size_bytes(self, name: str) -> int:
        text = self.texts.get(name)
        return 0 if text is None else len(text.text().encode())


class _Call:
    """One tool call in pieces."""

    def __init__(self) -> None:
        self.function: _Parts | None = None
        self.fields: JsonObject = {}

    def add(self, piece: JsonObject) -> None:
        for name, value in piece.items():
            if name == "function" and isinstance(value, dict):
                if self.function is None:
                    self.function = _Parts(_FUNCTION_TEXTS)
                for key, item in value.items():
                    self.function.add(key, item)
            elif name != "index" and (value is not None or name not in self.fields):
                self.fields[name] = value

    def value(self) -> JsonObject:
        call = self.fields.copy()
        if self.function is not None:
            call["function"] = self.function.value()
        return call


class _Details:
    """`reasoning_details`. Items of one delta are different items; those of later deltas continue the one with
    their type and index or, where they have no index, the last one if it is of their type. An item with another
    `id` is another item: two sealed thoughts must not be welded into one that nobody can open."""

    def __init__(self) -> None:
        self._items: list[_Parts | Json] = []
        self._by_key: dict[_DetailKey, list[_Parts]] = {}
        self._last_key: _DetailKey | None = None

    def add(self, items: list[Json]) -> None:
        keys = Counter(_detail_key(item) for item in items if isinstance(item, dict))
        taken: list[_Parts] = []
        for item in items:
            if not isinstance(item, dict):
                self._items.append(item)
                continue
            key = _detail_key(item)
            parts = self._known(key, item.get("id"), taken, alone=keys[key] == 1) or self._new(key)
            taken.append(parts)
            for name, value in item.items():
                parts.add(name, value)

    def _known(self, key: _DetailKey, item_id: Json, taken: list[_Parts], *, alone: bool) -> _Parts | None:
        """The item that this piece continues: of several with its type and index the newest, or, where the delta
        has several such pieces, each in its turn."""
        known = self._by_key.get(key, [])
        if key[1] is None:
            known = known[-1:] if key == self._last_key and not taken else []
        for parts in reversed(known) if alone else known:
            its_id = parts.fields.get("id")
            if parts not in taken and (item_id is None or its_id is None or item_id == its_id):
                return parts
        return None

    def _new(self, key: _DetailKey) -> _Parts:
        parts = _Parts(_DETAIL_TEXTS)
        self._items.append(parts)
        self._by_key.setdefault(key, []).append(parts)
        self._last_key = key
        return parts

    def value(self) -> list[Json]:
        return [item.value() if isinstance(item, _Parts) else item for item in self._items]


def _detail_key(item: JsonObject) -> _DetailKey:
    return as_str(item.get("type")), as_count(item.get("index"))


class _Choice:
    """One choice in pieces."""

    __slots__ = ("calls", "details", "fields", "index", "logprobs", "message")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fields: JsonObject = {}
        self.message = _Parts(_TEXTS)
        self.calls: dict[int, _Call] = {}
        self.details: _Details | None = None
        self.logprobs: JsonObject | None = None

    def add(self, choice: JsonObject) -> None:
        fields = self.fields
        for name, value in choice.items():
            if name == "delta":
                if isinstance(value, dict):
                    for key, item in value.items():
                        self._add_delta(key, item)
            elif name == "logprobs" and isinstance(value, dict):
                self._add_logprobs(value)
            elif name != "index" and (value is not None or name not in fields):
                fields[name] = value

    def _add_delta(self, name: str, value: Json) -> None:
        if name == "tool_calls" and isinstance(value, list):
            self._add_calls(value)
        elif name == "reasoning_details" and isinstance(value, list):
            if self.details is None:
                self.details = _Details()
            self.details.add(value)
        else:
            self.message.add(name, value)

    def _add_calls(self, calls: list[Json]) -> None:
        self.message.fields["tool_calls"] = []  # an empty list is not an absent one
        for position, piece in enumerate(calls):
            if isinstance(piece, dict):
                index = as_count(piece.get("index"))
                call = self.calls.setdefault(position if index is None else index, _Call())
                call.add(piece)

    def _add_logprobs(self, logprobs: JsonObject) -> None:
        if self.logprobs is None:
            self.logprobs = {}
        for name, value in logprobs.items():
            known = self.logprobs.get(name)
            if isinstance(value, list):
                if isinstance(known, list):
                    known.extend(value)
                else:
                    self.logprobs[name] = list(value)
            elif value is not None or name not in self.logprobs:
                self.logprobs[name] = value

    def value(self) -> JsonObject:
        message: JsonObject = {"role": None, "content": None} | self.message.value()
        message["role"] = message["role"] or "assistant"
        if self.details is not None:
            message["reasoning_details"] = self.details.value()
        if "tool_calls" in message and self.calls:
            message["tool_calls"] = [self.calls[index].value() for index in sorted(self.calls)]
        choice: JsonObject = {"index": self.index, "message": message, "finish_reason": None, **self.fields}
        if self.logprobs is not None:
            choice["logprobs"] = self.logprobs
        return choice

    @property
    def delivered(self) -> Delivered:
        functions = [call.function for call in self.calls.values() if call.function is not None]
        return Delivered(
            text_bytes=self.message.size_bytes("content") + self.message.size_bytes("refusal"),
            thought_bytes=self.message.size_bytes("reasoning_content"),
            argument_bytes=sum(part.size_bytes("name") + part.size_bytes("arguments") for part in functions),
        )


class Fold:
    """Chunks of one answer, as `ChunkReader` gives them, put together."""

    def __init__(self) -> None:
        self._fields: JsonObject = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, data: JsonObject) -> None:
        """Takes the data of the next chunk. Nothing of it is changed or kept beyond its texts and values."""
        fields = self._fields
        for name, value in data.items():
            if name == "choices":
                if isinstance(value, list):
                    self._add_choices(value)
            elif name != "object" and (value is not None or name not in fields):
                fields[name] = value

    def add_plain(self, content: Piece, thought: Piece) -> None:
        """Takes the text and the thought of a plain chunk of choice 0, which has begun."""
        message = self._choices[0].message
        if content is not UNSET:
            message.add_text("content", content)
        if thought is not UNSET:
            message.add_text("reasoning_content", thought)

    def _add_choices(self, choices: list[Json]) -> None:
        for item in choices:
            if isinstance(item, dict):
                index = as_count(item.get("index")) or 0
                choice = self._choices.get(index)
                if choice is None:
                    choice = self._choices[index] = _Choice(index)
                choice.add(item)

    def body(self) -> JsonObject:
        """The whole answer so far, choices by index, without usage. A message that never named its role is the
        assistant's, one without content has null, as OpenAI's schema wants it."""
        choices: list[Json] = [self._choices[index].value() for index in sorted(self._choices)]
        return {**self._fields, "object": "chat.completion", "choices": choices}

    @property
    def delivered(self) -> dict[int, Delivered]:
        """Output bytes by choice index."""
        return {index: choice.delivered for index, choice in self._choices.items()}


def as_chunks(body: JsonObject) -> list[JsonObject]:
    """A complete answer as the chunks of a stream: per choice the thought, the content, the calls, the finish.

    `Fold` puts them together to `body` again. Fields that no stream repeats stand in the first chunk only.
    """
    base: JsonObject = {name: body[name] for name in _STREAM_FIELDS if name in body}
    base["object"] = "chat.completion.chunk"
    chunks: list[JsonObject] = []
    for position, item in enumerate(as_list(body.get("choices"))):
        choice = as_object(item) or {}
        index = as_count(choice.get("index"))
        for part in _choice_parts(choice):
            chunks.append({**base, "choices": [{"index": position if index is None else index, **part}]})
    if not chunks:
        chunks.append({**base, "choices": []})
    others = {name: value for name, value in body.items() if name not in base and name != "choices"}
    chunks[0] = {**others, **chunks[0]}
    return chunks


def _choice_parts(choice: JsonObject) -> list[JsonObject]:
    """One choice as what `choices[0]` of successive chunks holds beside the index."""
    message = as_object(choice.get("message")) or {}
    thought: JsonObject = {name: message[name] for name in _THOUGHT_FIELDS if name in message}
    rest = {name: value for name, value in message.items() if name not in (*_THOUGHT_FIELDS, "tool_calls")}
    parts: list[JsonObject] = [{"delta": thought, "finish_reason": None}] if thought else []
    spoken: JsonObject = {"delta": rest, "finish_reason": None}
    if choice.get("logprobs") is not None:
        spoken["logprobs"] = choice["logprobs"]
    if rest or "logprobs" in spoken:
        parts.append(spoken)
    if "tool_calls" in message:
        parts.append({"delta": {"tool_calls": _indexed(message["tool_calls"])}, "finish_reason": None})
    last = {name: value for name, value in choice.items() if name not in ("index", "message")}
    if "logprobs" in spoken:
        del last["logprobs"]
    parts.append({"delta": {}, "finish_reason": None, **last})
    return parts


def _indexed(calls: Json) -> Json:
    if not isinstance(calls, list):
        return calls
    return [{"index": place, **call} if isinstance(call, dict) else call for place, call in enumerate(calls)]
