"""History messages on their way to an upstream: slices that pass as they are unless a rule applies to them.

A rule states one difference between what clients send and what one dialect takes. A message that no rule
touches leaves with the client's own bytes; a touched one keeps the order and bytes of its other members. The
result depends on the message and the dialect alone, so a shared history always encodes to the same bytes and
the upstream's prefix cache survives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from backends.dialect import Dialect
from backends.json import decode, encode
from backends.reasoning import details_text

Raw = msgspec.Raw
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class MessageHead(msgspec.Struct, gc=False):
    """The members that rules look at; a member that is there but null is a `Raw` null, not unset."""

    role: str
    content: Raw | Unset = UNSET
    reasoning_content: Raw | Unset = UNSET
    reasoning: Raw | Unset = UNSET
    reasoning_details: Raw | Unset = UNSET
    tool_calls: Raw | Unset = UNSET
    tool_call_id: Raw | Unset = UNSET
    tools: Raw | Unset = UNSET
    partial: Raw | Unset = UNSET
    refusal: Raw | Unset = UNSET
    function_call: Raw | Unset = UNSET
    audio: Raw | Unset = UNSET
    prompt_cache_breakpoint: Raw | Unset = UNSET


_heads = msgspec.json.Decoder(list[MessageHead])
_members = msgspec.json.Decoder(dict[str, Raw])
_THOUGHTS = ("reasoning_content", "reasoning")


class MessageError(ValueError):
    """A message has the wrong shape; `path` is such as `messages[3].role`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


@dataclass(frozen=True, slots=True)
class Mending:
    """What has to change in messages before a target takes them, by message index; nothing by default.

    `changes` are new values of members (`UNSET`: taken out), `left_out` messages that are not sent, `before`
    messages that are sent ahead of the one at that index. `paths` name what was changed in meaning.
    """

    changes: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    before: Mapping[int, Raw] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


NOTHING: Final = Mending()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Messages for one dialect; `adjusted` names what was changed in meaning, not in mere spelling."""

    messages: Sequence[Raw]
    adjusted: tuple[str, ...]
    continues: bool  # the last message is a prefix to be continued


def read_heads(messages: Raw) -> list[MessageHead]:
    """The heads of a JSON array of messages, in one scan. Raises `MessageError` with the path of the fault."""
    try:
        return _heads.decode(messages)
    except msgspec.ValidationError as err:
        text, _, where = str(err).partition(" - at `$")
        raise MessageError("messages" + where.rstrip("`"), text) from err


def thought_state(heads: Sequence[MessageHead]) -> tuple[int, int]:
    """How many assistant messages there are, and how many of them carry no thought at all."""
    turns = [head for head in heads if head.role == "assistant"]
    return len(turns), sum(1 for head in turns if not _has_thought(head))


def _has_thought(head: MessageHead) -> bool:
    thoughts = (head.reasoning_content, head.reasoning, head.reasoning_details)
    return any(isinstance(thought, Raw) and not is_null(thought) for thought in thoughts)


def is_null(raw: Raw) -> bool:
    """The slice is JSON's null; long ones are not copied to find out."""
    return len(raw) == 4 and bytes(raw) == b"null"


def encode_messages(
    messages: Sequence[Raw], heads: Sequence[MessageHead], dialect: Dialect, mending: Mending = NOTHING
) -> Encoded:
    """The messages as this dialect takes them, with what `backends.contract_mending` says of them carried out."""
    out: list[Raw] = []
    continues = False
    last = len(messages) - 1
    mended, left_out, before = mending.changes, mending.left_out, mending.before
    for index, (raw, head) in enumerate(zip(messages, heads, strict=True)):
        if index in before:
            out.append(before[index])
        if index in left_out:
            continue
        changes: dict[str, object] = dict(mended[index]) if index in mended else {}
        if head.role == "developer":
            changes["role"] = "system"
        if head.role == "assistant":
            changes |= _thought_changes(head, dialect)
            if index == last and is_true(head.partial) and dialect.partial == "continue_final_message":
                changes["partial"] = UNSET
                continues = True
        if isinstance(head.reasoning_details, Raw) and not dialect.keeps_thought_details:
            changes["reasoning_details"] = UNSET
        out.append(_spliced(raw, changes) if changes else raw)
    return Encoded(out, mending.paths, continues)


def is_true(raw: Raw | Unset) -> bool:
    """The slice is JSON's true."""
    return isinstance(raw, Raw) and len(raw) == 4 and bytes(raw) == b"true"


def _thought_changes(head: MessageHead, dialect: Dialect) -> dict[str, object]:
    """Puts the thought under each name the dialect reads; text, "" and null stay three things."""
    thought: object = _stated_thought(head, details=not dialect.keeps_thought_details)
    if isinstance(thought, Unset):
        return {}
    changes: dict[str, object] = {name: thought for name in dialect.thought_in if not _same(head, name, thought)}
    for name in _THOUGHTS:
        if name not in dialect.thought_in and isinstance(getattr(head, name), Raw):
            changes[name] = UNSET
    return changes


def _stated_thought(head: MessageHead, *, details: bool) -> object:
    """The thought under whichever name the client used, as a raw value; UNSET where there is none.

    With `details` their text is taken where nothing else is; a dialect that keeps them whole needs no copy.
    """
    for name in _THOUGHTS:
        raw = getattr(head, name)
        if isinstance(raw, Raw) and not is_null(raw):
            return raw
    if details and isinstance(head.reasoning_details, Raw):
        text, _ = details_text(decode(bytes(head.reasoning_details)))
        if text:
            return text
    for name in _THOUGHTS:
        raw = getattr(head, name)
        if isinstance(raw, Raw):
            return raw
    return UNSET


def _same(head: MessageHead, name: str, thought: object) -> bool:
    raw = getattr(head, name)
    if not (isinstance(raw, Raw) and isinstance(thought, Raw)):
        return False
    return raw is thought or (len(raw) == len(thought) and bytes(raw) == bytes(thought))


def _spliced(raw: Raw, changes: dict[str, object]) -> Raw:
    """The message with members replaced, added at the end, or (UNSET) taken out."""
    members: dict[str, object] = dict(_members.decode(raw))
    for name, value in changes.items():
        if isinstance(value, Unset):
            members.pop(name, None)
        else:
            members[name] = value
    return Raw(encode(members))
