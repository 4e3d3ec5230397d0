"""Signs of an engine that is set up wrong or has a known fault, gathered from its answers at nearly no cost.

A sign changes nothing for the client. It is counted per target, so that an operator sees a parser that fails on
five answers of a hundred, which no single answer shows. One sign in many answers may be the model's own choice of
words (somebody asked it about its template); a rate that does not go away is the engine.
"""

import re
from enum import StrEnum
from typing import Final

from backends.usage import Measured


class Sign(StrEnum):
    """What an answer may show. The values are stable names, for metrics and reports."""

    TOOL_MARKUP = "tool_markup"
    """The model's own text of a tool call in the content: a call that no client can see. The engine runs without
    its tool parser (vLLM: `--enable-auto-tool-choice --tool-call-parser kimi_k3`; SGLang: `--tool-call-parser
    kimi_k3`), or the parser gave up (vllm-project/vllm#51355, #50768). SGLang does not run it at all where the
    request forbids calls or offers no tools (recorded, 0.5.23; sgl-project/sglang#39583, #35393)."""

    TOOL_MARKUP_IN_THOUGHT = "tool_markup_in_thought"
    """The same in the thought: the model left its thought without the closing mark, and the reasoning parser has
    swallowed the call (vllm-project/vllm#53246, #54273: about 5 % of tool turns; sgl-project/sglang#34881)."""

    TEMPLATE_MARKUP = "template_markup"
    """Other marks of the chat template in the content, such as `<|close|>message<|sep|>`: no call is lost, the
    text is untidy. No reasoning parser, or one that misses an end (vllm-project/vllm#51412), or a caller's
    `ignore_eos` (recorded, SGLang 0.5.23). Not reported beside `TOOL_MARKUP`, which implies it."""

    MARKUP_STRIPPED = "markup_stripped"
    """A leaked call was cut off, as the dialect says (`Dialect.leaked_call_opening`)."""

    CALLS_MISSING = "calls_missing"
    """`finish_reason` is `tool_calls`, and there are none: the engine's tool parser lost them."""

    STOP_WITH_CALLS = "stop_with_calls"
    """Calls, and `finish_reason` is `stop`: agents take the turn for done. vLLM does so after a tool choice that
    names a function (recorded, 0.32.0), which is set right; after other choices it is passed as it came."""

    EMPTY_ANSWER = "empty_answer"
    """`stop` with neither text nor call: the parser lost the answer, or left all of it in the thought (127 of 700
    answers in one report, sgl-project/sglang#33995; vllm-project/vllm#53246)."""

    THINK_TAGS = "think_tags"
    """The content begins with `<think>`, or has a `</think>` that it never opened: a thought in the answer. The
    engine runs without `--reasoning-parser`, or with that of another model. `split_think_tags` on the target
    splits the first kind; the second only the engine can (see `backends.think_tags`)."""

    USAGE_MISSING = "usage_missing"
    """No usage, or one without both totals: what the answer cost is an estimate. An engine that ignores
    `stream_options.include_usage`, or a proxy before it that drops the last chunk."""

    CACHED_OVER_PROMPT = "cached_over_prompt"
    """More cached tokens than prompt tokens. SGLang leaves the opening of the thought out of the prompt's count
    (recorded, 0.5.23: 952 of 950). The numbers are clamped."""


_FULL: Final = (
    "<think>",
    "</think>",
    "<|open|>tools",
    "<|open|>call",
    "<|close|>",
    "<|sep|>",
    "<|end_of_msg|>",
    "<|tool_call",
    "<|im_end|>",
    "<|im_middle|>",
)
"""K3's marks (from the recorded leaks) and, by `<|tool_call` and `<|im_`, K2's. Each has one `<`, its first
character: so a text can end inside at most one of them."""

_MARK: Final = re.compile("|".join(re.escape(mark) for mark in (*_FULL, "<|open|>")))
_MAY_BE_MARK: Final = re.compile(r"<(?:\||/?think>|/?(?:t(?:h(?:i(?:nk?)?)?)?)?\Z)")
"""A mark, or what may become one: cheap, because text with `<` is mostly code."""


class Watch:
    """Looks for marks in one text that comes in pieces. How it is cut changes nothing."""

    __slots__ = ("_found", "_has_begun", "_is_opened", "_open_end", "is_idle")

    def __init__(self) -> None:
        self.is_idle = False  # a piece without `<` need not be seen
        self._open_end = ""  # the end of the text so far, where a mark may have begun there
        self._has_begun = False  # something but white space stands before that
        self._is_opened = False  # a <think> has come
        self._found: set[Sign] = set()

    @property
    def found(self) -> frozenset[Sign]:
        """TOOL_MARKUP, TEMPLATE_MARKUP or THINK_TAGS, as far as the text has shown them."""
        if Sign.TOOL_MARKUP in self._found:
            return frozenset(self._found - {Sign.TEMPLATE_MARKUP})
        return frozenset(self._found)

    def see(self, piece: str) -> None:
        """Takes the next piece; one without `<` may be left out while `is_idle`."""
        text = self._open_end + piece
        self._open_end = ""
        if _MAY_BE_MARK.search(text):
            for mark in _MARK.finditer(text):
                self._note(mark[0], is_leading=not self._has_begun and not text[: mark.start()].strip())
            rest = text[text.rfind("<") :]
            self._open_end = rest if _is_begun(rest) else ""
        if not self._has_begun:
            self._has_begun = bool(text[: len(text) - len(self._open_end)].strip())
        self.is_idle = self._has_begun and not self._open_end

    def _note(self, mark: str, *, is_leading: bool) -> None:
        if mark == "<think>":
            self._is_opened = True
            if is_leading:
                self._found.add(Sign.THINK_TAGS)
        elif mark == "</think>":
            if not self._is_opened:
                self._found.add(Sign.THINK_TAGS)
        elif mark in ("<|open|>tools", "<|open|>call", "<|tool_call"):
            self._found.add(Sign.TOOL_MARKUP)
        else:
            self._found.add(Sign.TEMPLATE_MARKUP)


def _is_begun(text: str) -> bool:
    """The text is the beginning of a mark, and not yet the whole."""
    return any(mark != text and mark.startswith(text) for mark in _FULL)


def end_signs(finish_reason: str, *, has_text: bool, has_calls: bool) -> frozenset[Sign]:
    """What the end of one choice shows, by the reason as the upstream gave it. A refusal is text."""
    if finish_reason == "tool_calls" and not has_calls:
        return frozenset({Sign.CALLS_MISSING})
    if finish_reason == "stop" and has_calls:
        return frozenset({Sign.STOP_WITH_CALLS})
    if finish_reason == "stop" and not has_text:
        return frozenset({Sign.EMPTY_ANSWER})
    return frozenset()


def usage_signs(measured: Measured | None) -> frozenset[Sign]:
    """What the usage of a complete answer shows; None is an answer without a report."""
    found = set()
    if measured is None or not measured.is_complete:
        found.add(Sign.USAGE_MISSING)
    if measured is not None and "cache_exceeds_prompt" in measured.anomaly:
        found.add(Sign.CACHED_OVER_PROMPT)
    return frozenset(found)
