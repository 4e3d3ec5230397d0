"""What an engine was started without, judged by its answer to a probe. Pure.

Only self-hosted targets are judged: a service's operator cannot be told to start it otherwise.
"""

from collections.abc import Sequence
from typing import Final

from backends.dialect import Dialect
from backends.faults import Fault
from backends.sentinel import Sign
from kimi_gateway.checks.findings import Mistake, Sight
from kimi_gateway.core.signs import explained, flags_against

OFFERED_TOOL: Final = "get_time"
"""The tool that a probe asks an engine to call."""

_THOUGHT_MARKS: Final = ("<|open|>think", "<|close|>think", "<think>", "</think>", "◁think▷")
_CALL_MARKS: Final = ("<|open|>tools", "<|open|>call", "<|tool_calls_section_begin|>", "<|tool_call_begin|>")
"""How K3 (channels) and K2 write thoughts and calls; in a text they were left by a parser that is not there."""


def is_self_hosted(dialect: Dialect) -> bool:
    """Whether targets of this kind are started by whoever runs the gateway."""
    return not dialect.base_url


def launch_mistakes(where: str, dialect: Dialect, sight: Sight, refused_tools: Fault | None) -> list[Mistake]:
    """What a whole answer of a self-hosted target shows to be missing, a mistake per flag; [] for a service.

    `refused_tools` is how the target refused the same probe with a tool, None where it did not.
    """
    if not is_self_hosted(dialect):
        return []
    launch = dialect.launch
    found: list[Mistake] = []
    if sight.measured is not None and not sight.has_cached_count:
        what = "its usage has no count of cached tokens, so every prompt token is booked as fresh"
        found.append(Mistake(where, what, _start(launch.cached_counts, "its report of cached tokens")))
    thought = _thought_problem(sight)
    if thought:
        found.append(Mistake(where, thought, _start(launch.thoughts, "its reasoning parser")))
    tools = _tools_problem(sight, refused_tools)
    if tools:
        found.append(Mistake(where, tools, _start(launch.tools, "its tool-call parser")))
    if launch.request_ids and not sight.has_request_id:
        what = "its answers carry no X-Request-Id, so a ledger row cannot be found in its log"
        found.append(Mistake(where, what, _start(launch.request_ids, "")))
    return found


def unseen_flags(dialect: Dialect, sight: Sight) -> str:
    """What an answer without a mistake leaves open about a self-hosted target's flags; "" where nothing."""
    if sight.calls or not is_self_hosted(dialect):
        return ""
    if not sight.tools:
        return "its tool-call parser (no tool could be offered)"
    why = "the tool was not called"
    if OFFERED_TOOL in sight.text:
        why = "the tool was not called, but its name stands in the text"
    elif sight.finish_reason == "length":
        why = "the answer was cut before the tool was called"
    wanted = f"; it is there if it was started with {dialect.launch.tools}" if dialect.launch.tools else ""
    return f"its tool-call parser ({why}){wanted}"


def sign_lines(dialect: Dialect, sight: Sight, mistakes: Sequence[Mistake]) -> list[str]:
    """The signs of an answer in words, each with its remedy, without those that a mistake says already."""
    said = " ".join(mistake.remedy for mistake in mistakes)
    lines = []
    for sign in sight.signs:
        flags = flags_against(sign, dialect.launch)
        if sign is not Sign.USAGE_MISSING and not (flags and flags in said):
            lines.append(f"{sign}: {explained(sign, dialect.launch).line}")
    return lines


def _thought_problem(sight: Sight) -> str:
    """K3.1 always thinks, so a text without a thought, or with its marks in it, has lost one."""
    mark = _first(_THOUGHT_MARKS, sight.text)
    if mark:
        return f'the thought stands in the text (it holds "{mark}")'
    if not (sight.thought_names or sight.thought_bytes) and (sight.text or sight.calls):
        return "no thought came back beside the text, so none can be kept for the next turn"
    return ""


def _tools_problem(sight: Sight, refused_tools: Fault | None) -> str:
    if refused_tools is not None:
        return f"it refuses requests with tools ({refused_tools.status}: {refused_tools.message})"
    mark = _first(_CALL_MARKS, sight.text)
    return f'a tool call stands in the text (it holds "{mark}")' if mark else ""


def _first(marks: tuple[str, ...], text: str) -> str:
    return next((mark for mark in marks if mark in text), "")


def _start(flags: str, otherwise: str) -> str:
    return f"start it with {flags}" if flags else f"start it with {otherwise}"
