"""Messages mended for one target: what it would refuse is left out or set right, and said by its path.

A request that ends with calls is sent as it is: whether their results are still to come, only the client knows.
What is done depends on a message and those of its own turn, so a shared history always gives the same bytes and
the upstream's prefix cache survives. A message without a finding is not touched.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from backends.contract import Finding, Incapable
from backends.contract_messages import Look, holds, result_id, says_nothing
from backends.contract_tools import ToolLists
from backends.json import JsonError, as_str, decode, encode
from backends.messages import Mending, MessageHead, is_true
from backends.tool_history import items_of, mended_calls
from backends.tool_ids import ToolIdError, ToolIds

Raw = msgspec.Raw
UNSET = msgspec.UNSET

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_BLANK: Final = Raw(b'""')


def mend(
    messages: Sequence[Raw],
    heads: Sequence[MessageHead],
    look: Look,
    tools: ToolLists,
    ids: ToolIds | None = None,
) -> Mending:
    """What to change in the messages that were looked at; `ids` where the target takes only some ids.

    Raises `Incapable` for what cannot be mended.
    """
    work = _Work(messages, heads, tools)
    for index, found in groupby(look.found, key=lambda one: one.index):
        work.mend(index, list(found))
    if look.declares_tools:
        work.declared()
    if ids is not None:
        work.renamed(ids)
    if len(work.left_out) == len(heads):
        raise Incapable("messages", "messages hold nothing that can be sent here; write some content")
    return Mending(work.changes, frozenset(work.left_out), work.before, tuple(work.paths))


class _Work:
    """The changes so far, by message."""

    def __init__(self, messages: Sequence[Raw], heads: Sequence[MessageHead], tools: ToolLists) -> None:
        self._messages = messages
        self._heads = heads
        self._tools = tools
        self.changes: dict[int, dict[str, object]] = {}
        self.left_out: set[int] = set()
        self.before: dict[int, Raw] = {}
        self.paths: dict[str, None] = {}

    def mend(self, index: int, found: Sequence[Finding]) -> None:
        """Puts right what was found in one message."""
        fatal = next((one for one in found if one.is_fatal), None)
        if fatal is not None:
            raise Incapable(fatal.path, f"{fatal.path}: {fatal.what}; {fatal.remedy}")
        by_rule = {rule: [one for one in found if one.rule == rule] for rule in {one.rule for one in found}}
        if "empty" in by_rule:
            self._leave_out(index)
            return
        changes = self.changes.setdefault(index, {})
        head = self._heads[index]
        if "arguments" in by_rule or "unanswered" in by_rule:
            self._calls(index, head, by_rule)
            if index in self.left_out:
                return
        if "result_id" in by_rule:
            changes["tool_call_id"] = by_rule["result_id"][0].repair
            self.paths[f"messages[{index}].tool_call_id"] = None
        marks = by_rule.get("breakpoint", [])
        if any(one.at < 0 for one in marks):
            changes["prompt_cache_breakpoint"] = UNSET
        self.paths |= dict.fromkeys(one.path for one in marks)
        self._content(index, head, by_rule)
        if not changes:
            del self.changes[index]

    def _leave_out(self, index: int) -> None:
        self.changes.pop(index, None)
        self.left_out.add(index)
        self.paths[f"messages[{index}]"] = None

    def _calls(self, index: int, head: MessageHead, by_rule: Mapping[str, Sequence[Finding]]) -> None:
        """The calls with sound arguments and without those that have no result; a turn that says nothing else is
        left out."""
        assert isinstance(head.tool_calls, Raw)
        mended = mended_calls(head.tool_calls) if "arguments" in by_rule else None
        calls = mended.calls if mended is not None else items_of(head.tool_calls)
        gone = {one.at for one in by_rule.get("unanswered", ())}
        kept = [call for at, call in enumerate(calls) if at not in gone]
        if not kept and says_nothing(head.content):
            self._leave_out(index)
            return
        self.changes[index]["tool_calls"] = kept or UNSET
        for one in (*by_rule.get("arguments", ()), *by_rule.get("unanswered", ())):
            self.paths[one.path] = None

    def _content(self, index: int, head: MessageHead, by_rule: Mapping[str, Sequence[Finding]]) -> None:
        """The content without blank parts and breakpoints, and in a message of its own where it stands beside
        tools."""
        blank = {one.at for one in by_rule.get("blank_part", ())}
        marked = {one.at for one in by_rule.get("breakpoint", ()) if one.at >= 0}
        changes = self.changes[index]
        if blank or marked:
            assert isinstance(head.content, Raw)
            parts = enumerate(items_of(head.content))
            kept = [_unmarked(part) if at in marked else part for at, part in parts if at not in blank]
            changes["content"] = Raw(encode(kept)) if kept else self._no_content(index, head)
            if blank:
                self.paths[f"messages[{index}].content"] = None
        if "tools_beside" in by_rule:
            members = _members.decode(self._messages[index])
            del members["tools"]
            content = changes.pop("content", head.content)
            self.before[index] = Raw(encode({**members, "role": "system", "content": content}))
            changes["content"] = UNSET
            self.paths[f"messages[{index}].content"] = None

    def _no_content(self, index: int, head: MessageHead) -> object:
        """Beside calls or tools content is left out; a tool's result and a prefix must have some."""
        calls = self.changes[index].get("tool_calls", head.tool_calls)
        beside_calls = head.role == "assistant" and calls is not UNSET and not is_true(head.partial)
        return UNSET if beside_calls or holds(head.tools) else _BLANK

    def declared(self) -> None:
        """The tools that messages declare, as the target takes them."""
        for index, head in enumerate(self._heads):
            if index in self.left_out or not isinstance(head.tools, Raw) or not holds(head.tools):
                continue
            path = f"messages[{index}].tools"
            held = self._tools.held(head.tools, path)
            if held is None:
                self._leave_out(index)
            elif held is not head.tools:
                self.changes.setdefault(index, {})["tools"] = held

    def renamed(self, ids: ToolIds) -> None:
        """Calls and results with ids that the target takes: mere spelling, so no path says so."""
        for index, head in enumerate(self._heads):
            if index in self.left_out:
                continue
            try:
                if head.role == "tool":
                    self._rename_result(index, head, ids)
                elif head.role == "assistant" and isinstance(head.tool_calls, Raw) and holds(head.tool_calls):
                    self._rename_calls(index, head.tool_calls, ids)
            except ToolIdError as err:
                raise Incapable(f"messages[{index}]", f"messages[{index}]: {err}") from err

    def _rename_result(self, index: int, head: MessageHead, ids: ToolIds) -> None:
        held = self.changes.get(index, {}).get("tool_call_id")
        stated = held if isinstance(held, str) else result_id(head)
        made = ids.to_target(stated) if stated else stated
        if made != stated:
            self.changes.setdefault(index, {})["tool_call_id"] = made

    def _rename_calls(self, index: int, tool_calls: Raw, ids: ToolIds) -> None:
        held = self.changes.get(index, {}).get("tool_calls", tool_calls)
        calls = items_of(held) if isinstance(held, Raw) else held
        if not isinstance(calls, list):
            return  # none of them is sent
        made = [_renamed(call, ids) for call in calls]
        if any(one is not call for one, call in zip(made, calls, strict=True)):
            self.changes.setdefault(index, {})["tool_calls"] = made


def _unmarked(part: Raw) -> Raw:
    """The part without its cache breakpoint, every other byte as it was."""
    members = _members.decode(part)
    return Raw(encode({name: raw for name, raw in members.items() if name != "prompt_cache_breakpoint"}))


def _renamed(call: Raw, ids: ToolIds) -> Raw:
    """The call with an id that the target takes; the same slice where it has one, or none at all."""
    try:
        members = _members.decode(call)
        stated = as_str(decode(bytes(members["id"])))
    except (msgspec.DecodeError, JsonError, KeyError):
        return call
    made = ids.to_target(stated) if stated else stated
    return call if made == stated else Raw(encode({**members, "id": made}))
