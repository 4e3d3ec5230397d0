"""What broke off is kept and continued; what was left is as if it had not been asked."""

import time
from typing import Any

import pytest

from kimi_sdk import (
    Chat,
    NothingToResume,
    Overloaded,
    StreamCut,
    TextDelta,
    ThinkingDelta,
    ToolResult,
    TooManyRounds,
)
from support.scripted import ScriptedUpstream
from support.sdk_places import KINDS, PLACES, Place, Talk, talk

KIND_IDS = ["sync", "async"]
CUT = '[[faults]]\nkind = "cut"\nphase = "{phase}"\ntimes = 1\n'
both = pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
everywhere = pytest.mark.parametrize("place", PLACES, indirect=True)
straight = pytest.mark.parametrize("place", ["moonshot"], indirect=True)


def roman(number: int) -> str:
    """The number in Roman numerals."""
    return "I" * number


@both
@everywhere
def test_an_answer_that_was_cut_is_continued_by_partial_mode(place: Place, kind: type[Talk]) -> None:
    place.misbehave(CUT.format(phase="text"))
    with talk(kind, effort="low", **place.arguments) as made:
        heard = made.stream("Tell me.")
        assert isinstance(heard.error, StreamCut)
        cut = heard.error.reply
        assert made.chat.messages == []
        reply = made.resume()
        kept = made.chat.messages

    assert cut.text
    assert (cut.text, cut.thinking) == (heard.joined(TextDelta), heard.joined(ThinkingDelta))
    assert reply.text.startswith(cut.text + " (synthetic continuation")
    assert (reply.thinking or "").startswith(cut.thinking or "-")
    assert [turn["role"] for turn in kept] == ["user", "assistant"]
    assert (kept[1]["content"], kept[1]["reasoning_content"]) == (reply.text, reply.thinking)
    sent = place.seen()[-1]["body"]["messages"][-1]
    assert (sent["role"], sent["content"]) == ("assistant", cut.text)
    assert cut.thinking in (sent.get("reasoning_content"), sent.get("reasoning"))


@both
@straight
def test_an_answer_cut_in_its_thinking_is_asked_for_anew(place: Place, kind: type[Talk]) -> None:
    place.misbehave(CUT.format(phase="thought"))
    with talk(kind, **place.arguments) as made:
        with pytest.raises(StreamCut) as caught:
            made.ask("Tell me.")
        reply = made.resume()

    assert (caught.value.reply.text, bool(caught.value.reply.thinking)) == ("", True)
    assert reply.text.count("Synthetic answer") == 1
    assert [one["body"]["messages"] for one in place.seen()] == [[{"role": "user", "content": "Tell me."}]] * 2


@both
@straight
def test_rounds_of_tools_that_were_done_are_not_done_again(place: Place, kind: type[Talk]) -> None:
    calls: list[int] = []

    def counted(number: int) -> str:
        """Counts."""
        calls.append(number)
        place.misbehave('[[faults]]\nkind = "overloaded"\ntimes = 1\n')
        return roman(number)

    with talk(kind, tools=[counted], max_retries=0, **place.arguments) as made:
        with pytest.raises(Overloaded):
            made.run("Call counted.")
        assert made.chat.messages == []
        reply = made.resume()
        roles = [turn["role"] for turn in made.chat.messages]

    assert len(calls) == 1
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert reply.finish_reason == "stop"


@both
def test_too_many_rounds_end_and_go_on_where_they_ended(kind: type[Talk]) -> None:
    call = {"id": "roman:0", "type": "function", "function": {"name": "roman", "arguments": '{"number": 2}'}}
    asking = scripted({"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]})
    with (
        ScriptedUpstream([asking, asking, scripted({"role": "assistant", "content": "II"})]) as upstream,
        talk(kind, tools=[roman], base_url=upstream.base_url) as made,
    ):
        with pytest.raises(TooManyRounds, match="after 1 rounds") as caught:
            made.run("Two?", max_rounds=1)
        assert made.chat.messages == []
        reply = made.resume()
        roles = [turn["role"] for turn in made.chat.messages]

    assert [each.name for each in caught.value.reply.tool_calls] == ["roman"]
    assert reply.text == "II"
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert len(upstream.requests) == 3


def scripted(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in message else "stop", "message": message}
    return {"status": 200, "json": {"id": "c-1", "model": "kimi-k3.1-pro", "choices": [choice]}}


@both
@straight
def test_a_stream_that_is_left_is_cancelled_at_once_and_was_never_asked(place: Place, kind: type[Talk]) -> None:
    place.misbehave('[[faults]]\nkind = "slow"\nbytes = 40\ngap_ms = 20\n')
    with talk(kind, **place.arguments) as made:
        before_s = time.monotonic()
        heard = made.stream("Tell me at length.", leave_after=2)
        took_s = time.monotonic() - before_s
        assert len(heard.events) == 2
        assert made.chat.messages == []
        assert made.chat.estimated_cost > 0
        left = ended(place)
        place.misbehave("")
        made.ask("And now?")
        roles = [turn["role"] for turn in made.chat.messages]

    assert took_s < 5
    assert left["disconnected"]
    assert roles == ["user", "assistant"]


def ended(place: Place) -> dict[str, Any]:
    """The last request, once its answer has ended."""
    until_s = time.monotonic() + 5
    while not (last := place.seen()[-1])["finished"] and time.monotonic() < until_s:
        time.sleep(0.01)
    return last


@both
@straight
def test_where_nothing_broke_off_nothing_is_resumed(place: Place, kind: type[Talk]) -> None:
    with talk(kind, **place.arguments) as made:
        with pytest.raises(NothingToResume):
            made.resume()
        place.misbehave(CUT.format(phase="text"))
        with pytest.raises(StreamCut):
            made.ask("Tell me.")
        made.ask("Something else.")
        with pytest.raises(NothingToResume):
            made.resume()


@straight
def test_a_resumed_answer_that_fails_may_be_resumed_again(place: Place) -> None:
    place.misbehave(CUT.format(phase="text") + '[[faults]]\nkind = "overloaded"\ntimes = 1\n')
    with Chat(max_retries=0, **place.arguments) as chat:
        with pytest.raises(StreamCut) as caught:
            chat.ask("Tell me.")
        with pytest.raises(Overloaded):
            chat.resume()
        assert chat.resume().text.startswith(caught.value.reply.text)


@straight
def test_results_of_tools_may_be_given_by_hand(place: Place) -> None:
    with Chat(tools=[roman], **place.arguments) as chat:
        asked = chat.ask("Call roman.")
        reply = chat.ask([ToolResult(call, "VII") for call in asked.tool_calls])

    assert "VII" in reply.text
    assert [turn["role"] for turn in chat.messages] == ["user", "assistant", "tool", "assistant"]
