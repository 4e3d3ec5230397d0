"""Strict mode: everything in a request that breaks Moonshot's contract, found at once, whatever the target.

Where *adjust* repairs for one attempt what one target would refuse, *strict* says it all to the client before
anything is planned, so that what passes here passes at api.moonshot.ai too. The rules for messages are those that
adjust mode mends by (`backends.contract_messages`), those for tools and schemas are those of `kimi-gateway
lint-tools`: of two published rules the stricter one.

Fields that nobody knows pass: the platform ignores them without a word.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from backends.catalog import foreign_fields
from backends.contract_fields import stop_problem
from backends.contract_messages import holds, look_at
from backends.dialect import EFFORTS
from backends.dialects.moonshot import DIALECT as MOONSHOT
from backends.json import Json, JsonError, as_count, as_list, as_object, as_str, decode
from backends.media import media_fault
from backends.schema_rules import Violation
from backends.schema_rules import violations as schema_violations
from backends.tool_rules import Tool, read_tool, tool_violations
from kimi_gateway.core.view import Raw, RequestView
from kimi_gateway.errors import InvalidRequest

WINDOW_TOKENS: Final = 1_048_576
LISTED_MAX: Final = 100
"""Violations in one message; further ones are counted."""

_FOREIGN: Final = foreign_fields(MOONSHOT)
_RULES_OF: Final = MOONSHOT.contract
_LEAVE_OUT: Final = "leave it out"


def violations(view: RequestView) -> list[Violation]:
    """Every violation, in the order of the request's fields; empty for a request that Moonshot takes.

    Takes some milliseconds for a history of 4 MB and about 0.2 ms for each KiB of schema: with large tools it
    belongs in a thread.
    """
    found: list[Violation] = []
    for name, raw in view.fields.items():
        if name in _FOREIGN:
            what = f"{name} is a field of another kind of upstream"
            found.append(Violation(name, "foreign", what, _LEAVE_OUT))
            continue
        rule = _fixed if name in MOONSHOT.fixed else _RULES.get(name)
        if rule is None:
            continue
        try:
            found += rule(view, name, raw)
        except JsonError as err:
            found.append(Violation(name, "json", f"no usable JSON ({err})", "send a value that can be read"))
    return found


def refusal(found: Sequence[Violation]) -> InvalidRequest:
    """The 400 that lists these violations; `param` is the first one's path."""
    listed = ". ".join(f"{one.path}: {one.what}; {one.remedy}" for one in found[:LISTED_MAX])
    more = f". And {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    count = f"{len(found)} parts of the request break" if len(found) > 1 else "the request breaks"
    return InvalidRequest(
        f"{count} Moonshot's contract, which is enforced here (contract mode strict). {listed}{more}",
        code="contract_violation",
        param=found[0].path,
    )


_Found: TypeAlias = Iterator[Violation]
_Rule: TypeAlias = Callable[[RequestView, str, Raw], _Found]


# --- fields ---------------------------------------------------------------------------------------------------


def _fixed(view: RequestView, name: str, raw: Raw) -> _Found:
    value, allowed = decode(bytes(raw)), MOONSHOT.fixed[name]
    if value is None or (_is_number(value) and Decimal(str(value)) == Decimal(str(allowed))):
        return
    yield Violation(name, "fixed", f"only {allowed} is taken", _LEAVE_OUT)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _effort(view: RequestView, name: str, raw: Raw) -> _Found:
    word = view.effort.reasoning_effort
    if word is not None and word not in EFFORTS:
        what = "the model always thinks" if word == "none" else f"{word[:40]!r} is not a word it knows"
        yield Violation(name, "effort", what, f"send {', '.join(EFFORTS)}, or leave it out (it runs as max then)")


def _thinking(view: RequestView, name: str, raw: Raw) -> _Found:
    """Thinking off, and an effort that there is not. The object itself passes: the vendor's own clients and its
    verifier send it to K3 models, some of them the effort nowhere else."""
    word = view.effort.thinking_effort
    if view.effort.thinking_type == "disabled":
        yield Violation(name, "thinking", "the model always thinks", "leave it out, and send reasoning_effort low")
    if word is not None and word not in EFFORTS:
        what = f"{word!r} is not an effort; it is one of {', '.join(EFFORTS)}"
        yield Violation(f"{name}.effort", "effort", what, "send one of them")


def _tool_choice(view: RequestView, name: str, raw: Raw) -> _Found:
    choice = decode(bytes(raw))
    if isinstance(choice, dict):
        remedy = "send required with that one tool, or auto"
        yield Violation(name, "choice", "one function cannot be named while the model thinks", remedy)
    elif choice not in ("auto", "none", "required", None):
        shown = str(choice)[:40]
        yield Violation(name, "choice", f"{shown!r} is not a word it knows", "send auto, none or required")
    elif choice == "required" and not _has_tools(view):
        yield Violation(name, "choice", "required needs tools", "send some, or leave it out")


def _has_tools(view: RequestView) -> bool:
    return holds(view.fields.get("tools", Raw(b"null"))) or any(holds(head.tools) for head in view.heads)


def _tools(view: RequestView, name: str, raw: Raw) -> _Found:
    value = decode(bytes(raw))
    if value is not None and not isinstance(value, list):
        yield Violation(name, "tools", "tools is a list", "write a list of tools")
    yield from tool_violations(value, path=name)


def _response_format(view: RequestView, name: str, raw: Raw) -> _Found:
    value = decode(bytes(raw))
    wanted = as_object(value)
    if value is None or (wanted is not None and wanted.get("type") in ("text", "json_object")):
        return
    if wanted is None or wanted.get("type") != "json_schema":
        known = ", ".join(sorted(_RULES_OF.formats))
        yield Violation(f"{name}.type", "format", "not a type it knows", f"send one of {known}")
        return
    path = f"{name}.json_schema"
    held = as_object(wanted.get("json_schema")) or {}
    if not as_str(held.get("name")):
        yield Violation(f"{path}.name", "format", "a schema has a name", "write one")
    if held.get("strict") is not None and not isinstance(held["strict"], bool):
        yield Violation(f"{path}.strict", "format", "strict is true or false", _LEAVE_OUT)
    if held.get("schema") is None:
        yield Violation(f"{path}.schema", "format", "there is no schema", "write it, or ask for json_object")
    else:
        yield from schema_violations(held["schema"], root="any", path=f"{path}.schema")


def _stop(view: RequestView, name: str, raw: Raw) -> _Found:
    value = decode(bytes(raw))
    words: list[Json] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(word, str) and word for word in words):
        yield Violation(name, "stop", "stop is a string or a list of strings, none of them empty", "write such")
        return
    problem = stop_problem(words, _RULES_OF)
    if problem:
        what, _, remedy = problem.partition("; ")
        yield Violation(name, "stop", what, remedy)


def _top_logprobs(view: RequestView, name: str, raw: Raw) -> _Found:
    value, most = decode(bytes(raw)), _RULES_OF.max_top_logprobs
    count = as_count(value)
    if value is not None and (count is None or not 0 <= count <= most):
        yield Violation(name, "logprobs", f"a number from 0 to {most}", "ask for as many")


def _logprobs(view: RequestView, name: str, raw: Raw) -> _Found:
    value = decode(bytes(raw))
    if value is not None and not isinstance(value, bool):
        yield Violation(name, "logprobs", "logprobs is true or false", "say how many in top_logprobs")


def _limit(view: RequestView, name: str, raw: Raw) -> _Found:
    count = as_count(decode(bytes(raw)))
    if count is not None and count > WINDOW_TOKENS:
        what = f"{count:,} tokens are more than the window of {WINDOW_TOKENS:,}"
        yield Violation(name, "limit", what, "ask for fewer; the prompt needs room too")


def _breakpoint(view: RequestView, name: str, raw: Raw) -> _Found:
    if decode(bytes(raw)) is not None:
        what = "there are no explicit cache breakpoints: caching is implicit"
        yield Violation(name, "breakpoint", what, f"{_LEAVE_OUT}, or send prompt_cache_options")


# --- messages -------------------------------------------------------------------------------------------------


def _messages(view: RequestView, name: str, raw: Raw) -> _Found:
    """Message by message: its own rules, its media, its tools."""
    look = look_at(view.heads, _RULES_OF)
    found = [(one.index, Violation(one.path, one.rule, one.what, one.remedy)) for one in look.found]
    if look.has_media:
        found += _of_media(view)
    if look.declares_tools:
        found += _of_declared_tools(view)
    found.sort(key=lambda one: one[0])
    for _, violation in found:
        yield violation


def _of_media(view: RequestView) -> Iterator[tuple[int, Violation]]:
    """The first picture or video in each message that is not taken."""
    for index, head in enumerate(view.heads):
        fault = media_fault((head,), MOONSHOT)
        if fault is not None:
            path = fault.path.replace("messages[0]", f"messages[{index}]", 1)
            what, _, remedy = fault.problem.removeprefix(fault.path).strip().partition("; ")
            yield index, Violation(path, "media", what, remedy or "send another")


def _of_declared_tools(view: RequestView) -> Iterator[tuple[int, Violation]]:
    """Tools in messages, each list by itself, and their names among all tools of the request."""
    stated = _readable(decode(bytes(view.fields["tools"])), "tools") if "tools" in view.fields else []
    known = {name: tool.path for tool in reversed(stated) if (name := as_str(tool.name)) is not None}
    for index, head in enumerate(view.heads):
        if not isinstance(head.tools, Raw) or not holds(head.tools):
            continue
        path = f"messages[{index}].tools"
        listed = decode(bytes(head.tools))
        own = _readable(listed, path)
        for violation in tool_violations(listed, path=path):
            yield index, violation
        for tool in own:
            name = as_str(tool.name)
            if name is not None and name in known:
                what = f"the name {name} is that of {known[name]} too"
                yield index, Violation(tool.name_path, "duplicate", what, "rename one of them")
        for tool in own:
            if (name := as_str(tool.name)) is not None:
                known.setdefault(name, tool.path)


def _readable(tools: Json, path: str) -> list[Tool]:
    read = [read_tool(tool, f"{path}[{at}]") for at, tool in enumerate(as_list(tools))]
    return [tool for tool in read if isinstance(tool, Tool)]


_RULES: Final[Mapping[str, _Rule]] = {
    "logprobs": _logprobs,
    "max_completion_tokens": _limit,
    "max_tokens": _limit,
    "messages": _messages,
    "prompt_cache_breakpoint": _breakpoint,
    "reasoning_effort": _effort,
    "response_format": _response_format,
    "stop": _stop,
    "thinking": _thinking,
    "tool_choice": _tool_choice,
    "tools": _tools,
    "top_logprobs": _top_logprobs,
}
