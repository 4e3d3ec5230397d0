"""The prompt as the model would see it: one byte string, four bytes a token, that grows only at its end.

Order (Moonshot's own encoder for K3, in our words): tool declarations with sorted keys, effort (only if given),
conversation, tool choice, response format, and the opening of the answer. So an appended turn extends the prefix,
and another effort, tool list or earlier message breaks it there. Text is padded to whole tokens; control tokens
and padding start with bytes that UTF-8 never has, so no text can look like them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from backends.emulator.profile import Profile
from backends.emulator.request import Call, ChatRequest, Media, Message, Part, Tool
from backends.emulator.tokens import BYTES_PER_TOKEN
from backends.json import JsonError, decode

_OPEN: Final = b"\xffOPN"
_CLOSE: Final = b"\xffCLS"
_SEP: Final = b"\xffSEP"
_END: Final = b"\xffEND"
_MEDIA: Final = b"\xffMED"
_PAD: Final = b"\xfe"
_DIGEST_BYTES: Final = 16
_sorted_json = msgspec.json.Encoder(decimal_format="number", order="sorted")


@dataclass(frozen=True, slots=True)
class Prompt:
    """An encoded prompt. `data` is a whole number of tokens."""

    data: bytes

    @property
    def tokens(self) -> int:
        """Its length in tokens."""
        return len(self.data) // BYTES_PER_TOKEN

    def digest(self) -> bytes:
        """16 bytes that stand for the whole prompt: what its answer is made from."""
        return _digest(self.data)

    def chain(self, owner: str, block_tokens: int) -> list[bytes]:
        """For each full block the digest of everything up to its end, for one owner of a cache."""
        block_bytes = block_tokens * BYTES_PER_TOKEN
        link = _digest(owner.encode("utf-8", "surrogatepass"))
        links: list[bytes] = []
        for end in range(block_bytes, len(self.data) + 1, block_bytes):
            link = _digest(link + self.data[end - block_bytes : end])
            links.append(link)
        return links


def encode_prompt(request: ChatRequest, profile: Profile) -> Prompt:
    """The prompt of a chat request."""
    out: list[bytes] = []
    for tool in request.tools:
        out += _declared(tool)
    if request.effort in profile.efforts:
        out += (_OPEN, _name("system"), _SEP, _text(f"thinking effort: {request.effort}"), _END)
    _conversation(out, request.messages, profile, thinks=request.thinks)
    if request.tool_choice in ("required", "none"):
        out += (_OPEN, _name("system"), _SEP, _text(f"tool choice: {request.tool_choice}"), _END)
    if request.format.kind != "text":
        wanted = {"type": request.format.kind, "name": request.format.name, "schema": request.format.schema}
        out += (_OPEN, _name("system"), _SEP, _piece(_sorted_json.encode(wanted)), _END)
    _opening(out, request.messages[-1], profile, thinks=request.thinks)
    return Prompt(b"".join(out))


def encode_messages(messages: Sequence[Message], profile: Profile, tools: Sequence[Tool] = ()) -> Prompt:
    """The prompt of messages and tools alone: what a token estimate counts."""
    out: list[bytes] = []
    for tool in tools:
        out += _declared(tool)
    _conversation(out, messages, profile, thinks=True)
    _opening(out, messages[-1], profile, thinks=True)
    return Prompt(b"".join(out))


def encode_text(text: str) -> Prompt:
    """A text alone, without any frame."""
    return Prompt(_text(text))


def _declared(tool: Tool) -> tuple[bytes, ...]:
    return (_OPEN, _name("tool"), _SEP, _piece(_sorted_json.encode(tool.declared)), _END)


def _conversation(out: list[bytes], messages: Sequence[Message], profile: Profile, *, thinks: bool) -> None:
    for message, index in _in_call_order(messages):
        if message.partial and message is messages[-1]:
            continue  # the opening continues it
        out += (_OPEN, _name(message.role), _SEP)
        if message.name:
            out += (_text(message.name), _SEP)
        if message.role == "assistant":
            _assistant(out, message, profile, thinks=thinks)
        elif message.role == "tool":
            out += (_text(str(index)), _SEP)
            _contents(out, message.parts, profile)
        else:
            for tool in message.tools:
                out.append(_piece(_sorted_json.encode(tool.declared)))
            _contents(out, message.parts, profile)
        out.append(_END)


def _assistant(out: list[bytes], message: Message, profile: Profile, *, thinks: bool) -> None:
    """Thought (a channel in any case where the model thinks, empty where it is absent or blank), answer, then the
    calls."""
    thought = message.thought or ""
    if thinks:
        out += (_OPEN, _name("think"), _SEP, _text(thought if thought.strip() else ""), _CLOSE)
    out += (_OPEN, _name("response"), _SEP)
    _contents(out, message.parts, profile)
    out.append(_CLOSE)
    for index, call in enumerate(message.calls, 1):
        out += (_OPEN, _name("call"), _text(call.name), _text(str(index)), _SEP, _arguments(call), _CLOSE)


def _opening(out: list[bytes], last: Message, profile: Profile, *, thinks: bool) -> None:
    """What the model continues: an open thought (an open answer where it does not think), or the open answer of a
    partial message."""
    out += (_OPEN, _name("assistant"), _SEP)
    if last.partial:
        if last.name:
            out += (_text(last.name), _SEP)
        out += (_OPEN, _name("response"), _SEP)
        _contents(out, last.parts, profile)
    if thinks:
        out += (_OPEN, _name("think"), _SEP)
    elif not last.partial:
        out += (_OPEN, _name("response"), _SEP)


def _contents(out: list[bytes], parts: Sequence[Part], profile: Profile) -> None:
    """Neighbouring text parts count as one text, so a string and its parts are the same prompt."""
    run: list[str] = []
    for part in parts:
        if isinstance(part, Media):
            out += (_text("".join(run)), _media(part, profile.image_tokens))
            run = []
        else:
            run.append(part)
    out.append(_text("".join(run)))


def _media(part: Media, tokens: int) -> bytes:
    """A flat count for a picture, filled from its digest: the length of its base64 does not matter."""
    data = part.url.encode("utf-8", "surrogatepass")
    return _MEDIA + hashlib.shake_128(data).digest((tokens - 1) * BYTES_PER_TOKEN)


def _arguments(call: Call) -> bytes:
    """Sorted compact JSON for an object, the text itself for anything else."""
    raw = call.arguments.encode("utf-8", "surrogatepass")
    try:
        value = decode(raw)
    except JsonError:
        return _piece(raw)
    return _piece(_sorted_json.encode(value)) if isinstance(value, dict) else _piece(raw)


def _in_call_order(messages: Sequence[Message]) -> Iterator[tuple[Message, int]]:
    """Messages with the number of the call they answer (0 for others); results in the order of their calls."""
    order: dict[str, int] = {}
    results: list[tuple[Message, int]] = []
    for message in messages:
        if message.role == "tool":
            results.append((message, order.get(message.call_id or "", 0)))
            continue
        yield from sorted(results, key=lambda result: result[1])
        results = []
        if message.role == "assistant":
            order = {call.id: index for index, call in enumerate(message.calls, 1)}
        yield message, 0
    yield from sorted(results, key=lambda result: result[1])


def _text(text: str) -> bytes:
    return _piece(text.encode("utf-8", "surrogatepass"))


def _piece(data: bytes) -> bytes:
    return data + _PAD * (-len(data) % BYTES_PER_TOKEN)


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    return _text(name)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
