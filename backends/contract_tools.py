"""A request's lists of tools as a target takes them: in `tools` and in its system messages.

Schemas are written in the target's flavour, a tool that is declared twice alike is sent once, and what no
rewriting cures (a name, a kind, two different tools of one name) makes the target incapable. The same lists always
give the same bytes, and a list without a fault keeps the client's own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from backends.contract import Incapable
from backends.dialect import Dialect
from backends.json import decode, encode
from backends.schema import normalise_tools

Raw = msgspec.Raw
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class _Function(msgspec.Struct):
    name: str = ""
    parameters: Raw | Unset = UNSET


class _Tool(msgspec.Struct):
    type: str
    function: _Function


class _Root(msgspec.Struct):
    type: Raw | Unset = UNSET


_root = msgspec.json.Decoder(_Root)
_list = msgspec.json.Decoder(list[Raw])
_tool = msgspec.json.Decoder(_Tool)


@dataclass(slots=True)
class ToolLists:
    """The tools of one request for one target, list by list in the order in which the model sees them.

    `adjusted` are the changed paths, `count` is how many tools there are so far, `left_out` how many a named
    choice cost.
    """

    dialect: Dialect
    adjusted: list[str] = field(default_factory=list)
    count: int = 0
    left_out: int = 0
    _known: dict[str, tuple[str, Raw]] = field(default_factory=dict)

    def held(self, tools: Raw, path: str, *, only: str | None = None) -> Raw | None:
        """The list to send, None where no tool is left; `only` cuts it down to the one function of that name.

        Raises `Incapable` for a tool that this target refuses, or where `only` is not in the list.
        """
        made, changed = normalise_tools(tools, path=path) if self.dialect.schema_flavour else (tools, ())
        listed = _items(made)
        if listed is None:
            self.count += 1  # what it is, the target may say
            return made
        kept = [at for at, tool in enumerate(listed) if only is None or name_of(tool) == only]
        if only is not None:
            kept = kept[:1]
            self.left_out += len(listed) - len(kept)
            if not kept:
                raise Incapable("tool_choice", f"tool_choice names {only!r}, which is not among {path}")
        if self.dialect.contract.tool_name:
            kept = self._checked(listed, kept, path)
        self.count += len(kept)
        self.adjusted += [one for one in changed if _stays(one, path, kept)]
        if not kept and self.dialect.contract.tool_name:
            return None
        return made if len(kept) == len(listed) else Raw(encode([listed[at] for at in kept]))

    def _checked(self, listed: Sequence[Raw], kept: Sequence[int], path: str) -> list[int]:
        """The positions without those whose tool was declared alike before."""
        out: list[int] = []
        for at in kept:
            where = f"{path}[{at}]"
            if self._is_repeated(listed[at], where):
                self.adjusted.append(where)
            else:
                out.append(at)
        return out

    def _is_repeated(self, raw: Raw, where: str) -> bool:
        try:
            tool = _tool.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # no tool at all: whoever gets it says so
        self._check(tool, where)
        first = self._known.setdefault(tool.function.name, (where, raw))
        if first[0] == where:
            return False
        if decode(bytes(first[1])) == decode(bytes(raw)):
            return True
        path = f"{where}.function.name"
        raise Incapable(path, f"{path}: {tool.function.name!r} is the name of {first[0]} too; rename one of them")

    def _check(self, tool: _Tool, where: str) -> None:
        contract = self.dialect.contract
        if contract.tool_kinds and tool.type not in contract.tool_kinds:
            known = ", ".join(sorted(contract.tool_kinds))
            raise Incapable(f"{where}.type", f"{where}.type must be one of {known} here, not {tool.type[:40]!r}")
        name = tool.function.name
        builtin = tool.type != "function" and name.startswith("$")
        if not builtin and not re.fullmatch(contract.tool_name, name):
            path = f"{where}.function.name"
            raise Incapable(
                path,
                f"{path} {name[:80]!r} is not taken here: letters, digits, _ and -, the first a letter or _; "
                "rename the function",
            )
        if not _is_object(tool.function.parameters):
            path = f"{where}.function.parameters"
            raise Incapable(path, f'{path} must describe an object; set "type": "object" at its root')


def name_of(tool: Raw) -> str | None:
    """The name of the function of a tool, None where there is none."""
    try:
        return _tool.decode(tool).function.name
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _items(tools: Raw) -> list[Raw] | None:
    try:
        return _list.decode(tools)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_object(parameters: Raw | Unset) -> bool:
    """The root is of type object, or says nothing of its type; what is no schema at all is left to the target."""
    if isinstance(parameters, Unset):
        return True
    try:
        kind = _root.decode(parameters).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return isinstance(kind, Unset) or decode(bytes(kind)) in ("object", ["object"])


def _stays(changed: str, path: str, kept: Sequence[int]) -> bool:
    """The changed path lies in a tool that is sent."""
    position, bracket, _ = changed.removeprefix(f"{path}[").partition("]")
    return not bracket or int(position) in kept
