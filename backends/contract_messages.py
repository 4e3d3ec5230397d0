"""What a target refuses in the messages of a request: every place, found in one pass over slices.

Nothing is decoded but lists of content parts and past calls, and those only as far as their members' bounds; a
string of a megabyte costs nothing. Sources of the rules: platform.kimi.ai/docs/api/chat (roles, parts, tools in a
system message, results by `tool_call_id`), and public reports of refused histories: blank parts beside calls,
turns that an interruption left empty, arguments that a chat template cannot decode, calls without a result.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from backends.contract import Contract, Finding
from backends.messages import MessageHead, is_true
from backends.pieces import whole
from backends.tool_history import call_ids, is_blank_text, is_sound, mended_calls, read_calls
from backends.tool_pairs import Pairer, Pairing

Raw = msgspec.Raw
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET

_SPEAKERS: Final = frozenset({"system", "developer", "user", "assistant"})
_NOTHING: Final = frozenset({b"null", b'""', b"[]", b"{}", b"false"})
_LIST: Final = ord("[")
_MESSAGES_A_PIECE: Final = 256
_SHORT_BYTES: Final = 64  # what is longer is not null, "" or []


class _Part(msgspec.Struct):
    """A content part, as far as rules look at it."""

    type: str = ""
    text: Raw | Unset = UNSET
    image_url: Raw | Unset = UNSET
    video_url: Raw | Unset = UNSET
    prompt_cache_breakpoint: Raw | Unset = UNSET


_parts: Final = msgspec.json.Decoder(list[_Part])
_text: Final = msgspec.json.Decoder(str)


@dataclass(slots=True)
class Look:
    """What one pass over the messages found. `has_media`: there are pictures or videos to look at, or parts that
    are no parts; `declares_tools`: a message declares tools."""

    found: list[Finding] = field(default_factory=list)
    has_media: bool = False
    declares_tools: bool = False


def look_at(heads: Sequence[MessageHead], contract: Contract) -> Look:
    """What these messages hold and what a target with this contract refuses of it, in their order."""
    return whole(look_steps(heads, contract))


def look_steps(heads: Sequence[MessageHead], contract: Contract) -> Generator[None, None, Look]:
    """The same in pieces of a millisecond or so."""
    scan = _Scan(contract)
    for index, head in enumerate(heads):
        if index % _MESSAGES_A_PIECE == _MESSAGES_A_PIECE - 1:
            yield
        scan.message(index, head)
    if contract.pairs_calls:
        scan.look.found += _of_pairs(scan.pairer.pairing())
        scan.look.found.sort(key=lambda one: one.index)
    return scan.look


def holds(raw: Raw | Unset) -> bool:
    """The member is there and not null, "", [], {} or false."""
    if isinstance(raw, Unset):
        return False
    return len(raw) > _SHORT_BYTES or bytes(raw).translate(None, b" \t\r\n") not in _NOTHING


def is_list(content: Raw | Unset) -> bool:
    """The content is a list of parts; a long string is not copied to find out."""
    return isinstance(content, Raw) and len(content) > 1 and memoryview(content)[0] == _LIST


def says_nothing(content: Raw | Unset) -> bool:
    """The content is absent, null, "", or a list without any part that is more than white space."""
    if not is_list(content):
        return not holds(content)
    parts = read_parts(content)
    return parts is not None and all(map(is_blank, parts))


def read_parts(content: Raw | Unset) -> list[_Part] | None:
    """The parts of a list; None where one of them is no object."""
    try:
        return _parts.decode(content) if isinstance(content, Raw) else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_blank(part: _Part) -> bool:
    """A part that holds text and no more than white space."""
    return part.type in ("text", "") and isinstance(part.text, Raw) and is_blank_text(part.text)


def result_id(head: MessageHead) -> str:
    """The id that a tool message answers, "" where it names none."""
    try:
        return _text.decode(head.tool_call_id) if isinstance(head.tool_call_id, Raw) else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Scan:
    """One pass over the messages."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.look = Look()
        self.pairer = Pairer()

    def message(self, index: int, head: MessageHead) -> None:
        """Everything about one message but what hangs on its neighbours."""
        contract = self._contract
        if contract.roles and head.role not in contract.roles:
            self._role(index, head.role)
        calls = head.role == "assistant" and self._assistant(index, head)
        if contract.pairs_calls and head.role != "assistant":
            self._neighbour(index, head)
        declares = isinstance(head.tools, Raw) and holds(head.tools)
        if declares and contract.declared_tools:
            self._declared(index, head)
        if not (contract.breakpoints or isinstance(head.prompt_cache_breakpoint, Unset)):
            self._breakpoint(index, -1)
        content = head.content
        if isinstance(content, Raw) and len(content) > _SHORT_BYTES and memoryview(content)[0] != _LIST:
            return  # text
        if self._is_nothing(index, content) and not (calls or declares or is_true(head.partial)):
            self._empty(index, head)

    def _is_nothing(self, index: int, content: Raw | Unset) -> bool:
        """Looks at the parts, where the content has any; whether it says nothing where that is refused."""
        blank = self._parts(index, content) if is_list(content) else not holds(content)
        return blank and self._contract.refuses_empty

    def _assistant(self, index: int, head: MessageHead) -> bool:
        """Looks at the calls of the model's message; whether it has any."""
        calls = isinstance(head.tool_calls, Raw) and holds(head.tool_calls)
        ids = self._arguments(index, head.tool_calls) if calls and isinstance(head.tool_calls, Raw) else []
        if self._contract.pairs_calls:
            self.pairer.assistant(index, ids)
        return calls

    def _neighbour(self, index: int, head: MessageHead) -> None:
        """A message after one with calls: a result, or the end of the results."""
        if head.role == "tool":
            self.pairer.result(index, result_id(head))
        elif head.role not in ("system", "developer"):
            self.pairer.other()

    def _add(
        self,
        rule: str,
        path: str,
        what: str,
        remedy: str,
        *,
        index: int,
        at: int = -1,
        fatal: bool = False,
    ) -> None:
        self.look.found.append(Finding(rule, path, what, remedy, index, at, is_fatal=fatal))

    def _role(self, index: int, role: str) -> None:
        known = role == "developer"
        remedy = "send it as system" if known else f"use {', '.join(sorted(self._contract.roles))}"
        self._add(
            "role",
            f"messages[{index}].role",
            f"role {role[:40]!r} is not taken",
            remedy,
            index=index,
            fatal=not known,
        )

    def _arguments(self, index: int, tool_calls: Raw) -> list[str]:
        """Looks at the arguments of a turn's calls; gives the calls' ids."""
        calls = read_calls(tool_calls)
        if calls is not None:
            paths = [f"tool_calls[{at}].function.arguments" for at, one in enumerate(calls) if not is_sound(one)]
            ids = [call.id or "" for call in calls]
        else:
            mended = mended_calls(tool_calls)
            paths = [*mended.paths] if mended is not None else []
            ids = call_ids(tool_calls)
        if self._contract.decodes_arguments:
            what, remedy = "the arguments are no JSON object", "send the text of an object, such as {}"
            for path in paths:
                self._add("arguments", f"messages[{index}].{path}", what, remedy, index=index)
        return ids

    def _declared(self, index: int, head: MessageHead) -> None:
        self.look.declares_tools = True
        if head.role not in ("system", "developer"):
            what = f"tools are declared in a message of role {head.role[:40]!r}"
            remedy = "declare them in a system message, or in tools"
            self._add("tools_role", f"messages[{index}].tools", what, remedy, index=index, fatal=True)
        elif not says_nothing(head.content):
            what, remedy = "a message that declares tools has no content", "send two messages"
            self._add("tools_beside", f"messages[{index}].content", what, remedy, index=index)

    def _breakpoint(self, index: int, at: int) -> None:
        place = f"messages[{index}]" + (f".content[{at}]" if at >= 0 else "")
        what = "there are no explicit cache breakpoints: caching is implicit"
        path = f"{place}.prompt_cache_breakpoint"
        self._add("breakpoint", path, what, "leave it out", index=index, at=at)

    def _parts(self, index: int, content: Raw | Unset) -> bool:
        """Looks at the parts of a list; whether they say nothing."""
        contract, parts = self._contract, read_parts(content)
        if parts is None:
            self.look.has_media = True
            return False
        blank: list[int] = []
        for at, part in enumerate(parts):
            if is_blank(part):
                blank.append(at)
            if isinstance(part.image_url, Raw) or isinstance(part.video_url, Raw):
                self.look.has_media = True
            if contract.part_types and part.type not in contract.part_types:
                self._part_type(index, at, part.type)
            if isinstance(part.prompt_cache_breakpoint, Raw) and not contract.breakpoints:
                self._breakpoint(index, at)
        if contract.refuses_empty and not parts:
            path = f"messages[{index}].content"
            self._add("blank_part", path, "the list has no part", "leave it out, or write text", index=index)
        if contract.refuses_empty:
            for at in blank:
                path = f"messages[{index}].content[{at}]"
                self._add("blank_part", path, "the text is blank", "leave the part out", index=index, at=at)
        return len(blank) == len(parts)

    def _part_type(self, index: int, at: int, kind: str) -> None:
        known = ", ".join(sorted(self._contract.part_types))
        what = f"a part of type {kind[:40]!r} is not taken"
        path = f"messages[{index}].content[{at}]"
        self._add("part_type", path, what, f"send {known}", index=index, at=at, fatal=True)

    def _empty(self, index: int, head: MessageHead) -> None:
        if head.role not in _SPEAKERS:
            return
        found = self.look.found
        while found and (found[-1].index, found[-1].rule) == (index, "blank_part"):
            found.pop()  # said by what follows
        other = next((name for name in ("refusal", "function_call", "audio") if holds(getattr(head, name))), "")
        what = "the message has no content" + (" and no tool_calls" if head.role == "assistant" else "")
        remedy = f"say in content or tool_calls what {other} says" if other else "leave the message out"
        self._add("empty", f"messages[{index}]", what, remedy, index=index, fatal=bool(other))


def _of_pairs(pairing: Pairing) -> list[Finding]:
    """Results without a call, calls without a result."""
    found: list[Finding] = []
    for index, id in pairing.renamed:
        path = f"messages[{index}].tool_call_id"
        what, remedy = "no call of the turn before has this id", f"send {id!r}"
        found.append(Finding("result_id", path, what, remedy, index, repair=id))
    for index in pairing.strays:
        path = f"messages[{index}].tool_call_id"
        what = "no call of the turn before has this id"
        remedy = "send the assistant message with the call ahead of it, or leave it out"
        found.append(Finding("stray_result", path, what, remedy, index, is_fatal=True))
    for index, at, is_last in pairing.unanswered:
        path = f"messages[{index}].tool_calls[{at}]"
        what, remedy = "the call has no result", "send a tool message with its id before the next turn"
        found.append(Finding("open_call" if is_last else "unanswered", path, what, remedy, index, at))
    return found
