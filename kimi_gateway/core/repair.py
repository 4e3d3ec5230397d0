"""Thinking repair: which message of a history gets which thought back, and how it is put there.

In three steps, so that the store may be in memory or elsewhere: `wanted` says what to look up, `plan_repair`
turns what was found into a plan, `RepairPlan.towards` fits it to one target. `spliced` carries it out.

A thought that the client sent is never touched, an empty one ("") included; null and absent carry none. Nothing
is invented: where a tool-call turn has no thought and none is found, its family's placeholder stands there, and
the turn is disclosed as missing.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from backends.family import family_of
from backends.json import JsonError, as_str, decode, encode
from backends.messages import MessageHead, is_null, is_true
from backends.pieces import whole
from kimi_gateway.core.digest import History, TurnKeys
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import Found

Raw = msgspec.Raw
UNSET = msgspec.UNSET

_CHANGES_A_PIECE: Final = 128
_EMPTY: Final = b'""'

_members = msgspec.json.Decoder(dict[str, Raw])


class Want(msgspec.Struct, frozen=True, gc=False):
    """One turn to look up: its message index and its keys."""

    index: int
    keys: TurnKeys


class Lookup(Protocol):
    """A store that answers at once."""

    def find(self, owner: Owner, wanted: Sequence[TurnKeys], now_s: float) -> list[Found | None]: ...


class Repair(msgspec.Struct, frozen=True, gc=False):
    """A thought for one message. `text`: the message has none at all; else it has the text and lacks only the
    details. `calls`: it is a tool-call turn."""

    index: int
    thought: Thought
    text: bool
    calls: bool

    @property
    def has_text(self) -> bool:
        """It puts a text into the message, which every target takes."""
        return self.text and self.thought.text is not None


class RepairPlan(msgspec.Struct, frozen=True, gc=False):
    """What is put where, oldest first. `bare` are the tool-call turns that stay without a thought; `conversation`
    is the one that the history continues, b"" where it is not known."""

    turns: int = 0
    repairs: tuple[Repair, ...] = ()
    bare: tuple[int, ...] = ()
    missing: int = 0
    trimmed: int = 0
    conversation: bytes = b""

    def towards(
        self,
        *,
        keeps_details: bool,
        room_tokens: int | None = None,
        tokens_of: Callable[[bytes], int] = len,
        step_tokens: int = 0,
    ) -> "RepairPlan":
        """The plan for one target: what it cannot take left out, and of the rest the oldest, until the thoughts
        fit into `room_tokens` (None: no limit).

        `tokens_of` counts a JSON text; by default a token per byte, which is never too few. More than needed is
        left out, up to the next multiple of `step_tokens`, so that the same turns stay out while a history grows
        and its prefix stays cached.
        """
        taken = [item for item in self.repairs if keeps_details or item.has_text]
        lost = [item for item in self.repairs if item.text and not (keeps_details or item.has_text)]
        cut = _oldest(taken, room_tokens, tokens_of, step_tokens) if room_tokens is not None else []
        gone = {item.index for item in cut}
        return replace(
            self,
            repairs=tuple(item for item in taken if item.index not in gone),
            bare=tuple(sorted((*self.bare, *(item.index for item in (*lost, *cut) if item.calls)))),
            missing=self.missing + len(lost),
            trimmed=self.trimmed + len(cut),
        )

    @property
    def text_bytes(self) -> int:
        """How much is put into the prompt that was not there, as JSON."""
        return sum(len(item.thought.text or item.thought.details or b"") for item in self.repairs if item.text)

    @property
    def disclosure(self) -> str:
        """The value of `x-kimi-thinking`; "" without an assistant turn."""
        if not self.turns:
            return ""
        counts = {"repaired": len(self.repairs), "missing": self.missing, "trimmed": self.trimmed}
        return ",".join(f"{name}={count}" for name, count in counts.items() if count) or "intact"


def _oldest(
    repairs: Sequence[Repair], room_tokens: int, tokens_of: Callable[[bytes], int], step_tokens: int
) -> list[Repair]:
    """The oldest repairs that must go for the others to fit."""
    sized = [(item, tokens_of(item.thought.text or item.thought.details or b"")) for item in repairs if item.text]
    excess = sum(size for _, size in sized) - room_tokens
    if excess > 0 and step_tokens > 0:
        excess = -(-excess // step_tokens) * step_tokens
    cut: list[Repair] = []
    for item, size in sized:
        if excess <= 0:
            break
        cut.append(item)
        excess -= size
    return cut


def wanted(history: History, heads: Sequence[MessageHead], *, details: bool = False) -> list[Want]:
    """The turns to look up: those without a thought, where `details` counts also those without their
    `reasoning_details`, and the newest, because any use of a conversation renews it."""
    newest = next(reversed(history.keys), -1)
    return [
        Want(index, keys)
        for index, keys in history.keys.items()
        if index == newest
        or not has_thought(heads[index])
        or (details and not _has_details(heads[index].reasoning_details))
    ]


def plan_repair(heads: Sequence[MessageHead], wants: Sequence[Want], found: Sequence[Found | None]) -> RepairPlan:
    """The plan for a history, from what was found for its wants, each in its place."""
    repairs: list[Repair] = []
    bare: list[int] = []
    missing = 0
    conversation = b""
    for want, hit in zip(wants, found, strict=True):
        head = heads[want.index]
        if hit is not None and hit.by == "chain":
            conversation = hit.conversation
        if has_thought(head):
            if hit is not None and _lacks_details(head, hit.thought):
                repairs.append(Repair(want.index, hit.thought, text=False, calls=has_calls(head)))
        elif hit is not None:
            repairs.append(Repair(want.index, hit.thought, text=True, calls=has_calls(head)))
        elif head.partial is UNSET or not is_true(
            head.partial
        ):  # a prefix that the client wrote is no turn of the model's
            missing += 1
            if has_calls(head):
                bare.append(want.index)
    turns = [head.role for head in heads].count("assistant")
    return RepairPlan(turns, tuple(repairs), tuple(bare), missing, conversation=conversation)


def repair(
    history: History,
    heads: Sequence[MessageHead],
    owner: Owner,
    store: Lookup,
    now_s: float,
    *,
    details: bool = False,
) -> RepairPlan:
    """The plan for a history with a store that answers at once."""
    wants = wanted(history, heads, details=details)
    return plan_repair(heads, wants, store.find(owner, [want.keys for want in wants], now_s))


def placeholder_for(model: str) -> bytes:
    """The JSON text that stands for a lost thought of a tool-call turn, by the model's name at the target."""
    return family_of(model).placeholder


def with_empty_thoughts(plan: RepairPlan, heads: Sequence[MessageHead], placeholder: bytes) -> RepairPlan:
    """The plan for a family that refuses "" as the thought of a tool-call turn, which its placeholder shows: such
    turns get the placeholder and count as missing. For any other family the plan comes back."""
    if placeholder == _EMPTY:
        return plan
    empty = [index for index, head in enumerate(heads) if head.role == "assistant" and _has_empty_thought(head)]
    repaired = {item.index for item in plan.repairs if item.text}
    empty = [index for index in empty if has_calls(heads[index]) and index not in repaired]
    bare = tuple(sorted({*plan.bare, *empty}))
    return replace(plan, bare=bare, missing=plan.missing + len(empty))


def spliced(
    messages: Sequence[Raw],
    heads: Sequence[MessageHead],
    plan: RepairPlan,
    *,
    placeholder: bytes,
    keeps_details: bool,
) -> tuple[Sequence[Raw], Sequence[MessageHead]]:
    """The messages and heads with the thoughts in place, for `backends.encode` to spell in the target's way.

    Untouched messages are the very slices that came in; a touched one keeps the order and bytes of its other
    members. With nothing to do the arguments come back. `plan` is one that `towards` gave for this target.
    """
    steps = spliced_steps(messages, heads, plan, placeholder=placeholder, keeps_details=keeps_details)
    return whole(steps)


def spliced_steps(
    messages: Sequence[Raw],
    heads: Sequence[MessageHead],
    plan: RepairPlan,
    *,
    placeholder: bytes,
    keeps_details: bool,
) -> Generator[None, None, tuple[Sequence[Raw], Sequence[MessageHead]]]:
    """The same in pieces of a millisecond or so."""
    if not plan.repairs and not plan.bare:
        return messages, heads
    out, out_heads = list(messages), list(heads)
    changes: dict[int, dict[str, bytes]] = {index: {"reasoning_content": placeholder} for index in plan.bare}
    for item in plan.repairs:
        members = changes[item.index] = {}
        if item.text and item.thought.text is not None:
            members["reasoning_content"] = item.thought.text
        if keeps_details and item.thought.details is not None:
            members["reasoning_details"] = item.thought.details
    for number, (index, members) in enumerate(changes.items()):
        if number % _CHANGES_A_PIECE == _CHANGES_A_PIECE - 1:
            yield
        out[index] = _with_members(messages[index], heads[index], members)
        raw = {name: Raw(value) for name, value in members.items()}
        out_heads[index] = msgspec.structs.replace(heads[index], **raw)
    return out, out_heads


def _with_members(message: Raw, head: MessageHead, members: dict[str, bytes]) -> Raw:
    """The object with these members: at its end, or in the place of one that is there (null or empty)."""
    if any(isinstance(getattr(head, name), Raw) for name in members):
        return Raw(encode({**_members.decode(message), **{name: Raw(value) for name, value in members.items()}}))
    added = b"".join([b',"%b":%b' % (name.encode(), value) for name, value in members.items()])
    # The slice of an object ends with its brace, and one with a role is not empty.
    return Raw(b"".join((memoryview(message)[:-1], added, b"}")))


def has_thought(head: MessageHead) -> bool:
    """The message carries a thought, an empty one included."""
    if head.reasoning_content is UNSET and head.reasoning is UNSET and head.reasoning_details is UNSET:
        return False  # whose client loses them has none anywhere: 0.3 µs less for each
    return _stated(head.reasoning_content) or _stated(head.reasoning) or _has_details(head.reasoning_details)


def has_calls(head: MessageHead) -> bool:
    """The message calls tools."""
    return head.tool_calls is not UNSET and _stated(head.tool_calls) and not _is_empty(head.tool_calls)


def _has_empty_thought(head: MessageHead) -> bool:
    """The client sent "" as the thought of the turn, and nothing beside it."""
    stated = [raw for raw in (head.reasoning_content, head.reasoning) if isinstance(raw, Raw) and not is_null(raw)]
    is_empty = all(len(raw) == len(_EMPTY) and bytes(raw) == _EMPTY for raw in stated)
    return bool(stated) and is_empty and not _has_details(head.reasoning_details)


def _has_details(raw: Raw | msgspec.UnsetType) -> bool:
    return _stated(raw) and not _is_empty(raw)


def _stated(raw: Raw | msgspec.UnsetType) -> bool:
    return isinstance(raw, Raw) and not is_null(raw)


def _is_empty(raw: Raw | msgspec.UnsetType) -> bool:
    """The slice is an empty array; one of more than a few bytes is not looked into."""
    return isinstance(raw, Raw) and len(raw) < 64 and bytes(raw).translate(None, b" \t\r\n") == b"[]"


def _lacks_details(head: MessageHead, thought: Thought) -> bool:
    """The message has the very text of the thought and not its details."""
    if thought.details is None or thought.text is None or _has_details(head.reasoning_details):
        return False
    plain = head.reasoning_content if _stated(head.reasoning_content) else head.reasoning
    return isinstance(plain, Raw) and _text(bytes(plain)) == _text(thought.text)


def _text(data: bytes) -> str | None:
    try:
        return as_str(decode(data))
    except JsonError:
        return None
