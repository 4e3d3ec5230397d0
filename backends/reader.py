"""An upstream's answer in Moonshot's spelling, from the bytes of a stream or of a whole body, for every dialect.

`ChunkReader` turns stream bytes into items: a `Chunk` to pass on, `Life` (a comment), `Done` (the clean end) or
`Failed`; on request also a `PlainChunk` where nothing has to be changed. After `Done` or `Failed` it is deaf (vLLM
sends `[DONE]` after an error). A stream that ends before every choice has its finish reason is incomplete, whether
`[DONE]` came or not: half an answer must never pass for a whole one.

What is changed in a chunk: the thought is spelled `reasoning_content`, every tool call has a stable `index` and
its id and name once, usage is taken out, a `finish_reason` known to be wrong is set right, and text is moved or
cut where `backends.think_tags` and `backends.markers` say so. All else passes as it came, an engine's own fields
too (vLLM: `stop_reason`, `token_ids`, `prompt_token_ids`, `kv_transfer_params`; SGLang: `matched_stop`,
`metadata`; llama.cpp: `timings`; OpenRouter: `provider`, `native_finish_reason`). In every recording they are
small or null, no recorded client stumbles over them, and the long ones come only to a request that asked for them
(`return_token_ids`): taking them out would break a wish without a word.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from backends.choice import Choice, Rules, Tally, rules
from backends.dialect import Dialect
from backends.faults import Fault, FaultKind, fault_from_error_object
from backends.json import Json, JsonError, JsonObject, as_count, as_list, as_object, as_str, decode, decode_answer
from backends.plain import PlainChunk, read_plain
from backends.sentinel import Sign
from backends.sse import DONE, MAX_EVENT_BYTES, Comment, Frame, SseDecoder, SseTooLarge
from backends.stream_faults import breaks_off, broken_off, unreadable

_HEAD_FIELDS: Final = ("id", "object", "created", "model")
"""What tells which answer a chunk belongs to."""

_INCOMPLETE: Final = Fault(
    FaultKind.INCOMPLETE, "the upstream's stream ended before the answer was finished (no finish_reason came)"
)


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One `chat.completion.chunk`, normalised, without usage.

    `commits`: it carries content or thought text, a tool call, a refusal or a finish reason. `finished` are the
    indexes of the choices that end in it. Byte counts are UTF-8: `text_bytes` of content, refusal, and names and
    arguments of calls, `thought_bytes` of the thought; both over all choices. `usage` is the upstream's raw
    report, cumulative where it comes on every chunk: the last one counts.
    """

    data: JsonObject
    commits: bool
    finished: tuple[int, ...] = ()
    usage: JsonObject | None = None
    model: str | None = None
    id: str | None = None
    text_bytes: int = 0
    thought_bytes: int = 0


class Life(msgspec.Struct, frozen=True, gc=False):
    """A comment or an empty event: the upstream lives, and has said nothing."""


class Done(msgspec.Struct, frozen=True, gc=False):
    """The clean end: every choice has its finish reason."""


class Failed(msgspec.Struct, frozen=True):
    """The stream broke off with this fault."""

    fault: Fault


Item: TypeAlias = Chunk | PlainChunk | Life | Done | Failed

_LIFE: Final = Life()


class ChunkReader:
    """Stream bytes of one answer in, items out; any split of the bytes gives the same items.

    `named_tool`: the request's tool choice named one function. `calls_wanted`: it offered tools and did not forbid
    calls. `split_think_tags`: the target's setting. Nothing here raises: what cannot be read is `Failed`.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        named_tool: bool = False,
        calls_wanted: bool = True,
        split_think_tags: bool = False,
        max_event_bytes: int = MAX_EVENT_BYTES,
        gives_plain: bool = False,
    ) -> None:
        self._decoder = SseDecoder(max_event_bytes)
        self._rules = rules(
            dialect, named_tool=named_tool, calls_wanted=calls_wanted, split_think_tags=split_think_tags
        )
        self._holds = self._rules.may_hold_text
        self._gives_plain = gives_plain and not self._holds
        self._choices: dict[int, Choice] = {}
        self._head: JsonObject = {}  # of the last chunk, where text may be held back
        self._has_committed = False  # likewise
        self._is_over = False

    @property
    def is_answered(self) -> bool:
        """Every choice that has begun has its finish reason, and at least one has begun."""
        return bool(self._choices) and all(choice.is_finished for choice in self._choices.values())

    @property
    def signs(self) -> frozenset[Sign]:
        """What the answer has shown of the engine behind it; whole at its end."""
        return frozenset().union(*(choice.signs() for choice in self._choices.values()))

    def plain(self, data: bytes) -> PlainChunk | None:
        """The one plain chunk that these bytes are, as nine of ten reads of a stream; None, and nothing taken,
        where `feed` has to look. 6 µs of a chunk less than by it."""
        if self._is_over or not self._gives_plain:
            return None
        choice = self._choices.get(0)
        if choice is None or choice.is_finished or (only := self._decoder.only_event(data)) is None:
            return None
        plain = read_plain(only)
        if plain is not None:
            choice.read_plain(plain.content, plain.thought)
        return plain

    def feed(self, data: bytes) -> list[Item]:
        """The items that these bytes complete."""
        items: list[Item] = []
        if self._is_over:
            return items
        try:
            frames = self._decoder.feed(data)
        except SseTooLarge as err:
            self._fail(Fault(FaultKind.SERVER, str(err)), items)
            return items
        self._take(frames, items)
        return items

    def finish(self) -> list[Item]:
        """What is left at the clean end of the body, closed by `Done` or `Failed`; empty after either.

        A last event that was cut is dropped: the missing end of the stream says what there is to say.
        """
        items: list[Item] = []
        if self._is_over:
            return items
        try:
            frames = self._decoder.finish()
        except SseTooLarge as err:
            self._fail(Fault(FaultKind.SERVER, str(err)), items)
            return items
        self._take([frame for frame in frames if isinstance(frame, Comment) or _is_whole(frame.data)], items)
        self._end(items)
        return items

    def _take(self, frames: Iterable[Frame], items: list[Item]) -> None:
        for frame in frames:
            if self._is_over:
                return
            self._frame(frame, items)

    def _frame(self, frame: Frame, items: list[Item]) -> None:
        if isinstance(frame, Comment):
            items.append(_LIFE)
            return
        data = frame.data
        if self._gives_plain and not frame.event and self._is_plain(data, items):
            return
        if data.startswith(DONE) and data.rstrip() == DONE:
            self._end(items)
            return
        try:
            value = decode_answer(data)
        except JsonError as err:
            if data.strip():
                text = data.decode("utf-8", "replace")
                self._fail(unreadable(text, frame.event, f"that is not JSON: {err}"), items)
            else:
                items.append(_LIFE)
            return
        if isinstance(value, dict):
            self._object(value, frame.event, items)
        else:
            self._fail(unreadable(value, frame.event, "that is not an object"), items)

    def _is_plain(self, data: bytes, items: list[Item]) -> bool:
        """Takes a chunk that needs no change; the first chunk of a choice always takes the long way."""
        choice = self._choices.get(0)
        if choice is None or choice.is_finished or (plain := read_plain(data)) is None:
            return False
        items.append(plain)
        choice.read_plain(plain.content, plain.thought)
        return True

    def _object(self, value: JsonObject, event: str, items: list[Item]) -> None:
        error = None
        if event == "error" or value.get("error") is not None or value.get("object") == "error":
            error = fault_from_error_object(value)
            value.pop("error", None)
        chunk, broken = self._chunk(value)
        fault = error or broken
        if fault is None:
            items.append(_LIFE if chunk is None else chunk)
            return
        # What an error chunk carries besides is the last that comes of the answer; its usage may be billed.
        if chunk is not None and (chunk.commits or chunk.usage is not None):
            items.append(chunk)
        self._fail(fault, items)

    def _fail(self, fault: Fault, items: list[Item]) -> None:
        self._is_over = True
        self._release(items)
        items.append(Failed(fault))

    def _end(self, items: list[Item]) -> None:
        if self._is_over:
            return
        if self.is_answered:
            self._is_over = True
            items.append(Done())
        else:
            self._fail(_INCOMPLETE, items)

    def _release(self, items: list[Item]) -> None:
        """The text that is still held back when the answer breaks off; an answer that had not begun has none, and
        may be asked for again."""
        if not self._has_committed:
            return
        held: list[Json] = []
        tally = Tally()
        for index, choice in self._choices.items():
            if delta := choice.held(tally):
                held.append({"index": index, "delta": delta, "finish_reason": None})
        if held:
            data: JsonObject = {**self._head, "choices": held}
            size, thought_size = tally.text_bytes, tally.thought_bytes
            items.append(Chunk(data, commits=True, text_bytes=size, thought_bytes=thought_size))

    def _chunk(self, value: JsonObject) -> tuple[Chunk | None, Fault | None]:
        """The chunk in `value`, None where it is none; and the fault where a choice says that it broke off."""
        usage = _take_usage(value) if "usage" in value else None
        choices = value.get("choices")
        if not isinstance(choices, list):
            if usage is None:
                return None, None
            value["choices"] = choices = []
        tally = Tally()
        for choice in choices:
            if isinstance(choice, dict):
                if "usage" in choice:
                    own = _take_usage(choice)
                    usage = own if usage is None else usage  # the top level first, as in Moonshot's own client
                self._choice(choice, tally)
        if self._holds:
            self._has_committed = self._has_committed or tally.commits
            self._head = {name: value for name, value in value.items() if name in _HEAD_FIELDS}
        model, answer_id = value.get("model"), value.get("id")
        chunk = Chunk(
            value,
            tally.commits,
            tally.finished,
            usage,
            model if isinstance(model, str) else None,
            answer_id if isinstance(answer_id, str) else None,
            tally.text_bytes,
            tally.thought_bytes,
        )
        return chunk, broken_off(tally.broken) if tally.broken else None

    def _choice(self, choice: JsonObject, tally: Tally) -> None:
        index = choice.get("index")
        if type(index) is not int:
            choice["index"] = index = as_count(index) or 0
        state = self._choices.get(index)
        if state is None:
            state = self._choices[index] = Choice(self._rules)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            choice["delta"] = delta = {}
        reason = choice.get("finish_reason")
        if reason is None:
            state.read_delta(delta, tally, is_last=False)
            return
        is_broken = reason == "" or breaks_off(reason)
        state.read_delta(delta, tally, is_last=not is_broken)
        if is_broken:
            choice["finish_reason"] = None
            tally.broken = tally.broken or as_str(reason) or ""
            return
        told = state.finish(str(reason))
        if isinstance(reason, str):
            choice["finish_reason"] = told
        tally.finished += (index,)
        tally.commits = True


def expanded(plain: PlainChunk) -> Chunk:
    """A plain chunk as `ChunkReader` would have given it."""
    data = as_object(decode_answer(plain.raw)) or {}
    _take_usage(data)
    for choice in as_list(data.get("choices")):
        if isinstance(choice, dict):
            choice.setdefault("index", 0)
    return Chunk(
        data,
        commits=True,
        model=plain.model,
        id=plain.id,
        text_bytes=plain.text_bytes,
        thought_bytes=plain.thought_bytes,
    )


def read_complete(
    body: bytes,
    dialect: Dialect,
    *,
    named_tool: bool = False,
    calls_wanted: bool = True,
    split_think_tags: bool = False,
    signs: set[Sign] | None = None,
) -> tuple[JsonObject, JsonObject | None] | Fault:
    """A JSON answer, normalised and without usage, beside its raw usage report (None without one); or the fault.

    The keywords mean what they mean to `ChunkReader`; what the answer shows of its engine is added to `signs`.
    White space before the JSON is a keep-alive. A body that is empty, cut, HTML or without choices is the
    upstream's fault whatever its status; an error object inside a 200 is what it says.
    """
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        return Fault(FaultKind.SERVER, "the upstream's answer is empty")
    if text.startswith(b"<"):
        return Fault(FaultKind.SERVER, "the upstream answered with an HTML page instead of JSON")
    try:
        value = decode_answer(text)
    except JsonError as err:
        return Fault(FaultKind.SERVER, f"the upstream's answer is not JSON, or was cut: {err}")
    answer = as_object(value)
    choices = as_list(answer.get("choices")) if answer is not None else []
    if answer is None or answer.get("error") is not None or not choices:
        return _fault_in_answer(value)
    how = rules(dialect, named_tool=named_tool, calls_wanted=calls_wanted, split_think_tags=split_think_tags)
    return _normalised(answer, choices, how, signs if signs is not None else set())


def _fault_in_answer(value: Json) -> Fault:
    answer = as_object(value)
    if answer is not None and (answer.get("error") is not None or answer.get("object") == "error"):
        return fault_from_error_object(value)
    return Fault(FaultKind.SERVER, "the upstream's answer has no choices")


def _normalised(
    answer: JsonObject, choices: list[Json], how: Rules, signs: set[Sign]
) -> tuple[JsonObject, JsonObject | None] | Fault:
    usage = _take_usage(answer)
    for choice in choices:
        if not isinstance(choice, dict):
            return Fault(FaultKind.SERVER, "the upstream's answer has a choice that is not an object")
        own = _take_usage(choice)
        usage = own if usage is None else usage
        if choice.get("error") is not None:
            return fault_from_error_object(choice)
        reason = choice.get("finish_reason")
        if breaks_off(reason):
            return broken_off(str(reason))
        message = as_object(choice.get("message"))
        if message is None:
            return Fault(FaultKind.SERVER, "the upstream's answer has a choice without a message")
        state = Choice(how)
        state.read_message(message)
        if isinstance(reason, str) and reason:
            choice["finish_reason"] = state.finish(reason)
        signs |= state.signs()
    answer.setdefault("object", "chat.completion")
    return answer, usage


def _take_usage(holder: JsonObject) -> JsonObject | None:
    """Takes `usage` out of a chunk, choice or body; None where it is absent, null or empty."""
    usage = holder.pop("usage", None)
    return usage if isinstance(usage, dict) and usage else None


def _is_whole(data: bytes) -> bool:
    """The data of a last event can be read: it was not cut."""
    if data.strip() in (b"", DONE):
        return True
    try:
        decode(data)
    except JsonError:
        return False
    return True
