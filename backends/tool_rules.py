"""What Moonshot refuses in a list of tools: names, kinds, repeated names, and schemas.

Names: `^[a-zA-Z_][a-zA-Z0-9-_]{2,63}$` (platform.kimi.ai/docs/api/chat, August 2026; a September copy takes 1 to
128 characters, which the strict reading satisfies too). Names with `$` in front belong to built-in functions. A
name that two tools have is answered with 400 `function name … is duplicated`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from backends.json import Json, as_list, as_object, as_str
from backends.schema_rules import Violation, violations

NAME_PATTERN: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{2,63}")
BUILTIN: Final = "builtin_function"


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: `parameters` None where it takes none. The paths say where name and parameters stand."""

    kind: str
    name: Json
    parameters: Json
    path: str
    name_path: str
    parameters_path: str


def read_tool(value: Json, path: str) -> Tool | Violation:
    """A tool in the form of the chat API, or what keeps it from being one."""
    tool = as_object(value)
    if tool is None:
        return Violation(path, "tool", "a tool is an object", "write type and function")
    kind = as_str(tool.get("type"))
    if kind not in ("function", BUILTIN):
        return Violation(
            path, "kind", "the type of a tool is function or builtin_function", 'set "type": "function"'
        )
    function = as_object(tool.get("function"))
    if function is None:
        return Violation(path, "tool", "a tool has a function", "write name and parameters into function")
    held = f"{path}.function"
    parameters = function.get("parameters")
    if "parameters" in function and parameters is None:
        return Violation(f"{held}.parameters", "root", "parameters are null", "leave them out")
    return Tool(kind, function.get("name"), parameters, path, f"{held}.name", f"{held}.parameters")


def tool_violations(tools: Json, *, path: str = "tools") -> list[Violation]:
    """What Moonshot would refuse in a request's tools, in their order; empty for a list it takes."""
    read = [read_tool(tool, f"{path}[{index}]") for index, tool in enumerate(as_list(tools))]
    found: list[Violation] = [one for one in read if isinstance(one, Violation)]
    held = [one for one in read if isinstance(one, Tool)]
    found += name_violations(held)
    for tool in held:
        if tool.parameters is not None and tool.kind != BUILTIN:
            found += violations(tool.parameters, path=tool.parameters_path)
    return found


def name_violations(tools: Iterable[Tool]) -> list[Violation]:
    """What is wrong with the names of tools that are sent together."""
    found: list[Violation] = []
    first: dict[str, str] = {}
    for tool in tools:
        name = as_str(tool.name)
        if name is None:
            found.append(
                Violation(tool.name_path, "name", "a function has a name", "write one of 3 to 64 letters")
            )
            continue
        problem = _name_problem(name, tool.kind)
        if problem:
            found.append(Violation(tool.name_path, *problem))
        if name in first:
            what = f"the name {name} is that of {first[name]} too"
            found.append(Violation(tool.name_path, "duplicate", what, "rename one of them"))
        first.setdefault(name, tool.path)
    return found


def _name_problem(name: str, kind: str) -> tuple[str, str, str] | None:
    """Rule, what is wrong and what to do; None for a name that is taken."""
    reserved = name.startswith("$")
    if reserved and kind != BUILTIN:
        return "reserved", f"names with $ in front, such as {name}, belong to built-in functions", "rename it"
    if reserved or NAME_PATTERN.fullmatch(name):
        return None
    return (
        "name",
        f"the name {name!r} is not taken: {_name_fault(name)}",
        "use 3 to 64 letters, digits, _ and -, the first a letter or _",
    )


def _name_fault(name: str) -> str:
    if len(name) < 3:
        return "too short"
    if len(name) > 64:
        return f"{len(name)} characters long"
    if not re.match(r"[a-zA-Z_]", name):
        return "it must start with a letter or _"
    strange = next(char for char in name if not re.match(r"[a-zA-Z0-9_-]", char))
    return f"{strange!r} must not be in it"
