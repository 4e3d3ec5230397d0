"""How many tokens a request will come to, before anybody counts them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from backends.json import encode
from pricing.estimate import Estimate, TextSize, estimate_prompt, text_size

_NONE: Final = Estimate(0, 0, 0)
_MEDIA: Final[Mapping[str, Estimate]] = {
    "image_url": Estimate(1_024, 0, 16_384),
    "video_url": Estimate(16_384, 0, 131_072),
}
"""Likely: a picture's tokens on an older vision model of the vendor's (kimi.com help, API model selection), and 16
pictures of a video. At most: stated margins, not proofs, because what media cost on K3.1 is not published. They go
by the kind of a part alone: bytes behind an address are not seen here, and few bytes may be a large picture."""

_KINDS: Final = tuple(kind.encode() for kind in _MEDIA)
_turn: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted: a prompt of so many messages and the answer to it come to `tokens`."""

    messages: int
    tokens: int


def prompt_estimate(
    messages: Sequence[bytes], tools: bytes, counted: Counted | None, *, form: bytes = b""
) -> Estimate:
    """The tokens of a prompt: JSON of its messages, of the tool declarations and of the `response_format` (b""
    without).

    What the server has counted already is taken as it is, and only what was added since is estimated. Whether it
    had counted a form is not known, so that is added each time.
    """
    base = _NONE
    added = messages
    if counted is not None and counted.messages <= len(messages):
        base = Estimate(counted.tokens, counted.tokens, counted.tokens)
        added, tools = messages[counted.messages :], b""
    size = text_size(tools) + text_size(form)
    for message in added:
        text, media = _apart(message)
        size += text_size(text)
        base += media
    return base + estimate_prompt(size, messages=len(added), tools=bool(tools or form))


def most_written(text_bytes: int) -> Estimate:
    """The tokens of an answer of which so many bytes came; a token has a byte at least, and a few frame it."""
    return TextSize(text_bytes).estimate() + Estimate(0, 0, 64 if text_bytes else 0)


def _apart(message: bytes) -> tuple[bytes, Estimate]:
    """What of a turn is read as text, and the tokens of its pictures and videos. Only the addresses in parts of a
    kind that holds media are taken out: base64 in a text is text."""
    if not any(kind in message for kind in _KINDS):
        return message, _NONE
    fields = _turn.decode(message)
    content = bytes(fields.get("content", b""))
    if not content.startswith(b"["):
        return message, _NONE
    media = _NONE
    texts: list[object] = []
    for raw in _parts.decode(content):
        part = _turn.decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else {}
        found = [kind for kind in _MEDIA if kind in part]
        for kind in found:
            media += _MEDIA[kind]
            del part[kind]
        texts.append(part if found else raw)
    return encode({**fields, "content": texts}), media
