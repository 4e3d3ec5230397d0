"""`kimi-gateway lint-tools`: what Moonshot would refuse in tools and schemas, and what the gateway repairs of it.

A file holds a list of tools, a request (its tools, dynamic tools in messages, response format), the tool list of
an MCP server, or one schema; JSON Lines are a list. Tools may be in the form of the chat API, of the Responses or
Messages API, or of MCP.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from backends.json import Json, JsonError, JsonObject, as_list, as_object, decode
from backends.schema import normalise_schema
from backends.schema_parts import Root, types_of
from backends.schema_rules import Violation, ignored, violations
from backends.tool_rules import BUILTIN, Tool, name_violations, read_tool
from kimi_gateway.checks.findings import Output
from pricing.render import plain, table, text

CLEAN: Final = 0
FOUND: Final = 1
STDIN: Final = "-"

_WIDTH: Final = 10_000  # off a terminal: one line a finding, for grep
_EXPECTED: Final = "expected a list of tools, an object with tools, or a JSON Schema"
_ROOT: Final = "(root)"
_NOT_ENFORCED: Final = "the model reads it, Moonshot does not enforce it"
_SCHEMA_NAMES: Final = ("parameters", "inputSchema", "input_schema")
"""Where a tool without `function` keeps its schema: Responses API, MCP, Messages API."""


class LintError(ValueError):
    """The file cannot be read as tools or schemas; the message says why and what is expected."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What Moonshot would refuse, and whether the gateway repairs it by itself (adjust mode, Moonshot targets)."""

    violation: Violation
    repaired: bool = False


@dataclass(slots=True)
class Lint:
    """What was found. `notes` are no findings: keywords that are taken and not enforced, and the like."""

    tools: int = 0
    schemas: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)  # place, what


@dataclass(slots=True)
class _Found:
    """The tools and schemas of a file, before they are looked at."""

    tools: list[Tool] = field(default_factory=list)
    schemas: list[tuple[Json, str, bool]] = field(default_factory=list)  # schema, place, is a response format
    wrong: list[Violation] = field(default_factory=list)


def run_lint(file: str, output: Output) -> int:
    """Lints the file (`-`: standard input), prints what was found, and gives back the exit code: 0 or 1.

    Raises `LintError` for what cannot be read.
    """
    found = lint(_read(file))
    if output is Output.JSON:
        sys.stdout.write(_as_json(found, file))
    else:
        _print_table(found)
    return FOUND if found.findings else CLEAN


def _read(file: str) -> Json:
    """The value of the file; of JSON Lines the list of them."""
    name = "standard input" if file == STDIN else file
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as err:
        raise LintError(f"{name}: {err.strerror or err}") from err
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return decode(data)
    except JsonError as err:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) > 1:
            try:
                return [decode(line) for line in lines]
            except JsonError:
                pass
        raise LintError(f"{name} is not JSON: {err}") from err


# --- what is in a file ----------------------------------------------------------------------------------------


def lint(value: Json) -> Lint:
    """What is wrong with the tools and schemas of a decoded file. Raises `LintError` where it holds neither."""
    found = _Found()
    if isinstance(value, list):
        _take_list(value, found)
    elif isinstance(value, dict):
        _take_object(value, found)
    else:
        raise LintError(_EXPECTED)
    made = Lint(tools=len(found.tools), schemas=len(found.schemas))
    made.findings += [Finding(violation) for violation in found.wrong]
    names = name_violations(found.tools)
    for tool in found.tools:
        made.findings += [Finding(violation) for violation in names if violation.path == tool.name_path]
        if tool.parameters is not None and tool.kind != BUILTIN:
            _look_at(tool.parameters, "object", tool.parameters_path, made)
    for schema, place, is_format in found.schemas:
        _look_at(schema, "any", place, made)
        node = as_object(schema)
        if node is not None and not is_format and types_of(node) != ("object",):
            made.notes.append((place or _ROOT, "the parameters of a tool need an object as their root"))
    return made


def _take_list(items: Sequence[Json], found: _Found) -> None:
    """Tools where one of the items is one, else schemas."""
    if not items or any(_is_tool(as_object(item) or {}) for item in items):
        _take_tools(items, "tools", found)
    elif any(isinstance(item, dict) for item in items):
        found.schemas += [(item, f"[{index}]", False) for index, item in enumerate(items)]
    else:
        raise LintError(_EXPECTED)


def _take_object(value: JsonObject, found: _Found) -> None:
    """A request, an MCP answer, one tool, a response format, or a schema."""
    inner = as_object(value.get("result", {})) or {}
    if isinstance(value.get("tools"), list):
        _take_tools(as_list(value["tools"]), "tools", found)
    elif isinstance(inner.get("tools"), list):
        _take_tools(as_list(inner["tools"]), "result.tools", found)
    elif _is_tool(value):
        _take_tool(value, "tool", found)
    elif value.get("type") == "json_schema":
        _take_format(value, "json_schema", found)
    elif not isinstance(value.get("messages"), list):
        found.schemas.append((value, "", False))
    for index, message in enumerate(as_list(value.get("messages"))):
        tools = (as_object(message) or {}).get("tools")
        _take_tools(as_list(tools), f"messages[{index}].tools", found)
    _take_format(as_object(value.get("response_format", {})) or {}, "response_format.json_schema", found)


def _take_tools(items: Sequence[Json], path: str, found: _Found) -> None:
    for index, item in enumerate(items):
        _take_tool(item, f"{path}[{index}]", found)


def _take_format(value: JsonObject, path: str, found: _Found) -> None:
    schema = (as_object(value.get("json_schema", {})) or {}).get("schema")
    if schema is not None:
        found.schemas.append((schema, f"{path}.schema", True))


def _is_tool(node: JsonObject) -> bool:
    """Whether an object is meant as a tool, though something may be missing."""
    if isinstance(node.get("function"), dict) or node.get("type") in ("function", BUILTIN):
        return True
    return isinstance(node.get("name"), str) and any(name in node for name in _SCHEMA_NAMES)


def _take_tool(item: Json, path: str, found: _Found) -> None:
    node = as_object(item) or {}
    if "function" not in node and isinstance(node.get("name"), str):
        where = next((name for name in _SCHEMA_NAMES if name in node), _SCHEMA_NAMES[0])
        tool = Tool("function", node["name"], node.get(where), path, f"{path}.name", f"{path}.{where}")
        found.tools.append(tool)
        return
    read = read_tool(item, path)
    if isinstance(read, Tool):
        found.tools.append(read)
    else:
        found.wrong.append(read)


# --- one schema -----------------------------------------------------------------------------------------------


def _look_at(schema: Json, root: Root, path: str, made: Lint) -> None:
    """The findings about one schema, each with whether it is gone after the gateway's own repairs."""
    before = violations(schema, root=root, path=path)
    node = as_object(schema)
    after: list[Violation] = before
    if before and node is not None:
        after = violations(normalise_schema(node, root=root, path=path).schema, root=root, path=path)
    left = {(one.path, one.rule) for one in after}
    moved = {rule for place, rule in left if (place, rule) not in {(one.path, one.rule) for one in before}}
    for one in before:
        made.findings.append(Finding(one, (one.path, one.rule) not in left and one.rule not in moved))
    # What only the repaired form would break, such as its size, is a finding as well.
    made.findings += [Finding(one) for one in after if one.rule in moved - {one.rule for one in before}]
    made.notes += [(place, _NOT_ENFORCED) for place in ignored(schema, path=path)]


# --- output ---------------------------------------------------------------------------------------------------


def _print_table(found: Lint) -> None:
    on_terminal = sys.stdout.isatty()
    page = sys.stdout if on_terminal else StringIO()
    # As wide as the terminal; elsewhere a line is never broken, and nothing has a colour.
    console = Console(file=page, width=_WIDTH, highlight=False, color_system="auto" if on_terminal else None)
    if found.findings:
        heads = ("where", "what", "remedy", "the gateway")
        grid = table([(head, False) for head in heads], width=None if on_terminal else _WIDTH)
        for finding in found.findings:
            one = finding.violation
            state = text("repairs it", "green") if finding.repaired else text("does not repair it", "red")
            grid.add_row(text(one.path or _ROOT), text(one.what), text(one.remedy), state)
        console.print(grid)
    for line in _note_lines(found.notes):
        console.print(text(line, "dim"), soft_wrap=True)
    console.print(text(_summary(found)), soft_wrap=True)
    if isinstance(page, StringIO):
        sys.stdout.writelines(line.rstrip() + "\n" for line in page.getvalue().splitlines())


def _note_lines(notes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each kind of note, with the first places."""
    by_what: dict[str, list[str]] = {}
    for place, what in notes:
        by_what.setdefault(what, []).append(place)
    for what, places in by_what.items():
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"note: {', '.join(places[:3])}{more}: {what}"


def _summary(found: Lint) -> str:
    counts = [(found.tools, "tool"), (found.schemas, "schema")]
    looked = " and ".join(_counted(count, name) for count, name in counts if count) or "no tools"
    if not found.findings:
        return f"{looked}: nothing that Moonshot would refuse."
    repaired = sum(finding.repaired for finding in found.findings)
    return f"{looked}: {_counted(len(found.findings), 'finding')}, of which the gateway repairs {repaired}."


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _as_json(found: Lint, file: str) -> str:
    whole = {
        "ok": not found.findings,
        "source": file,
        "tools": found.tools,
        "schemas": found.schemas,
        "findings": [
            {
                "path": finding.violation.path,
                "rule": finding.violation.rule,
                "what": plain(finding.violation.what),
                "remedy": plain(finding.violation.remedy),
                "repaired": finding.repaired,
            }
            for finding in found.findings
        ],
        "notes": [{"path": place, "what": what} for place, what in found.notes],
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"
