"""Signs of broken engines: what they are called in words, and that each is said once."""

import json
from io import StringIO

import pytest

from backends.catalog import DIALECTS
from backends.dialect import Launch
from backends.sentinel import Sign
from kimi_gateway.core.signs import SAID_MAX, FirstSigns, explained, flags_against
from kimi_gateway.core.standing import Standings
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Target

VLLM = DIALECTS["vllm"]


@pytest.mark.parametrize("sign", list(Sign))
def test_every_sign_has_a_meaning_and_a_remedy(sign: Sign) -> None:
    told = explained(sign, Launch())
    assert told.what
    assert told.remedy
    assert told.line == f"{told.what}; {told.remedy}"
    assert "start it" not in told.remedy  # nothing is known to start it with


@pytest.mark.parametrize(
    ("sign", "flags"),
    [
        (Sign.TOOL_MARKUP, "--enable-auto-tool-choice --tool-call-parser kimi_k3"),
        (Sign.CALLS_MISSING, "--enable-auto-tool-choice --tool-call-parser kimi_k3"),
        (Sign.THINK_TAGS, "--reasoning-parser kimi_k3"),
        (Sign.TEMPLATE_MARKUP, "--reasoning-parser kimi_k3"),
        (Sign.CACHED_OVER_PROMPT, ""),
    ],
)
def test_a_remedy_names_the_engines_own_flags(sign: Sign, flags: str) -> None:
    assert flags_against(sign, VLLM.launch) == flags
    assert (f"start it with {flags}" in explained(sign, VLLM.launch).remedy) == bool(flags)


def test_think_tags_may_also_be_split_by_the_gateway() -> None:
    remedy = explained(Sign.THINK_TAGS, VLLM.launch).remedy
    assert remedy == "start it with --reasoning-parser kimi_k3, or set split_think_tags = true for the target"


class Events:
    """What was said, a line for each event."""

    def __init__(self) -> None:
        self._stream = StringIO()
        self.log = Log(LineWriter(self._stream, format="json"), wall=lambda: 0.0)

    def said(self) -> list[tuple[str, str, str | None]]:
        self.log.close()
        lines = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        assert all(line["level"] == "warning" for line in lines)
        return [(line["target"], line["sign"], line["version"]) for line in lines]


def target(name: str = "a") -> Target:
    return Target(name=name, dialect="vllm", base_url=f"http://{name}/v1", models={"k": "k"})


def test_a_sign_is_said_once_for_each_target_kind_and_version() -> None:
    events, standings = Events(), Standings()
    first = FirstSigns(events.log, standings)
    first.seen(target(), VLLM, {Sign.TOOL_MARKUP})
    first.seen(target(), VLLM, [])
    standings.runs("a", "http://a/v1", "0.32.0")
    for _ in range(3):
        first.seen(target(), VLLM, {Sign.TOOL_MARKUP, Sign.EMPTY_ANSWER})
        first.seen(target("b"), VLLM, {Sign.EMPTY_ANSWER})
    standings.runs("a", "http://a/v1", "0.33.0")
    first.seen(target(), VLLM, {Sign.EMPTY_ANSWER})
    assert events.said() == [
        ("a", "tool_markup", None),
        ("a", "empty_answer", "0.32.0"),
        ("a", "tool_markup", "0.32.0"),
        ("b", "empty_answer", None),
        ("a", "empty_answer", "0.33.0"),
    ]


def test_the_line_says_what_it_means_and_what_to_do() -> None:
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)
    standings = Standings()
    standings.runs("a", "http://a/v1", "0.32.0")
    FirstSigns(log, standings).seen(target(), VLLM, {Sign.TOOL_MARKUP})
    log.close()
    assert (
        "WARNING target a shows tool_markup for the first time: a tool call stands in the text, where no client "
        "sees it; start it with --enable-auto-tool-choice --tool-call-parser kimi_k3; if it was, its parser gave "
        "up: a newer version may cure it target=a sign=tool_markup version=0.32.0"
    ) in stream.getvalue()


def test_what_needs_nothing_done_is_no_warning() -> None:
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)
    FirstSigns(log, Standings()).seen(target(), VLLM, {Sign.CACHED_OVER_PROMPT})
    log.close()
    assert "WARNING" not in stream.getvalue()
    assert "the counts are clamped" in stream.getvalue()


def test_what_is_remembered_is_bounded() -> None:
    events, standings = Events(), Standings()
    first = FirstSigns(events.log, standings)
    for number in range(SAID_MAX + 5):
        first.seen(target(f"t{number}"), VLLM, {Sign.EMPTY_ANSWER})
    assert len(events.said()) == SAID_MAX
