"""Through any upstreams in any order, thought, calls and content of a history that needs no repair stay the same.

One step is a whole round: an upstream answers in its own spelling, as a body or as a stream cut anywhere; the
client sends what it got back; and the history is written for the next upstream, which reads it in its own way.
"""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.json import encode
from backends.messages import encode_messages, read_heads
from support.answers import event, read, whole

ANSWERS_IN: Final = {
    "moonshot": "reasoning_content",
    "openrouter": "reasoning",
    "vllm": "reasoning",
    "sglang": "reasoning_content",
    "llamacpp": "reasoning_content",
}
"""The field in which each of them answers (recorded, but for Moonshot and OpenRouter: documented)."""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
QUESTION = {"role": "user", "content": "Weather in Paris?"}
TEXT = st.text(st.sampled_from('a <>\n\u2028价🌙"\\'), max_size=8)
CALL = st.builds(
    lambda name, at, arguments: {
        "id": f"{name}:{at}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    st.sampled_from(["get_weather", "search"]),
    st.integers(0, 2),
    st.sampled_from(["{}", '{"city": "Paris"}', '{"q":"价\\n"}']),
)


def sealed(index: int, extra: dict[str, Any]) -> dict[str, Any]:
    return {"type": "reasoning.encrypted", "index": index, "format": "unknown", **extra}


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """An assistant message as a client holds it. Where there are details with text, it is that of the thought."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | TEXT)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(st.none() | TEXT)
    if calls := draw(st.lists(CALL, max_size=2)):
        message["tool_calls"] = calls
    details: list[Any] = []
    if thought := message.get("reasoning_content"):
        cut = draw(st.integers(0, len(thought)))
        parts = [part for part in (thought[:cut], thought[cut:]) if part]
        base = {"type": "reasoning.text", "format": "unknown"}
        details = [{**base, "index": place, "text": part} for place, part in enumerate(parts)]
        if draw(st.booleans()):
            details[-1]["signature"] = "sig=="
    if draw(st.booleans()):
        details.insert(0, sealed(7, {"id": "r-7", "data": "AAAA"}))
    if draw(st.booleans()) and details:
        message["reasoning_details"] = details
    return message


def spelled(message: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The message as this upstream says it."""
    said = {name: value for name, value in message.items() if name not in THOUGHT_FIELDS}
    if "reasoning_content" in message:
        said[ANSWERS_IN[dialect.name]] = message["reasoning_content"]
    if dialect.keeps_thought_details and "reasoning_details" in message:
        said["reasoning_details"] = message["reasoning_details"]
    return said


def halves(value: Any, draw: Any) -> list[Any]:
    """A text in two pieces, anything else whole."""
    if not isinstance(value, str):
        return [value]
    cut = draw(st.integers(0, len(value)))
    return [value[:cut], value[cut:]]


def deltas(said: dict[str, Any], draw: Any) -> list[dict[str, Any]]:
    """The message in pieces: the thought before, between or after the text, each text cut once."""
    runs: list[list[dict[str, Any]]] = []
    for name in ("content", "reasoning_content", "reasoning"):
        if name in said:
            runs.append([{name: part} for part in halves(said[name], draw)])
    if "reasoning_details" in said:
        runs.append(
            [{"reasoning_details": [piece]} for item in said["reasoning_details"] for piece in torn(item, draw)]
        )
        for delta in runs[-1]:
            # As OpenRouter sends it: beside the piece of text that it repeats.
            text = delta["reasoning_details"][0].get("text")
            if text is not None:
                delta["reasoning"] = text
        runs = [
            run for run in runs if "reasoning" not in run[0] or "reasoning_details" in run[0] or not has_text(said)
        ]
    for index, call in enumerate(said.get("tool_calls", [])):
        first, second = halves(call["function"]["arguments"], draw)
        head = {**call, "index": index, "function": {**call["function"], "arguments": first}}
        runs.append(
            [{"tool_calls": [head]}, {"tool_calls": [{"index": index, "function": {"arguments": second}}]}]
        )
    out = [{"role": "assistant"}]
    while any(runs):
        out.append(draw(st.sampled_from([run for run in runs if run])).pop(0))
    return out


def has_text(said: dict[str, Any]) -> bool:
    return any("text" in item for item in said["reasoning_details"])


def torn(item: dict[str, Any], draw: Any) -> list[dict[str, Any]]:
    """One item in pieces: its text or data cut, its signature last and without text."""
    field = "text" if "text" in item else "data"
    base = {name: item[name] for name in ("type", "index", "format")}
    first, second = halves(item[field], draw)
    pieces = [{**item, field: first}, {**base, field: second}]
    if "signature" in item:
        pieces[0].pop("signature")
        pieces.append({**base, "signature": item["signature"]})
    return pieces


def answered(message: dict[str, Any], dialect: Dialect, draw: Any) -> dict[str, Any]:
    """What a client gets when this upstream says the message."""
    said = spelled(message, dialect)
    finish = "tool_calls" if "tool_calls" in said else "stop"
    if draw(st.booleans()):
        found: dict[str, Any] = whole(said, finish, dialect.name).message
        return found
    events = [event(delta) for delta in deltas(said, draw)]
    streamed: dict[str, Any] = read(*events, event({}, finish), dialect=dialect.name).message
    return streamed


def written(history: list[dict[str, Any]], dialect: Dialect) -> list[Any]:
    """The history as this upstream gets it."""
    raw = msgspec.Raw(encode(history))
    slices = msgspec.json.decode(raw, type=list[msgspec.Raw])
    encoded = encode_messages(slices, read_heads(raw), dialect)
    sent: list[Any] = msgspec.json.decode(encode(encoded.messages))
    return sent


def understood(sent: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The message as this upstream reads it. Every name it is sent under holds the same, and no other is sent."""
    names = dialect.thought_in
    assert not (set(sent) & set(THOUGHT_FIELDS)) - {*names, "reasoning_details"}
    assert all((name in sent, sent.get(name)) == (names[0] in sent, sent.get(names[0])) for name in names)
    message = {name: value for name, value in sent.items() if name not in ("reasoning", "reasoning_content")}
    if names[0] in sent:
        message["reasoning_content"] = sent[names[0]]
    return message


def without_details(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_details"}


NAMES = st.lists(st.sampled_from(sorted(DIALECTS)), min_size=1, max_size=4)


@given(messages(), NAMES, st.data())
@settings(max_examples=100)
def test_thought_calls_and_content_survive_any_sequence_of_upstreams(
    message: dict[str, Any], names: list[str], data: st.DataObject
) -> None:
    now, keeps = dict(message), True
    for name in names:
        dialect = DIALECTS[name]
        user, sent = written([QUESTION, now], dialect)
        keeps = keeps and dialect.keeps_thought_details
        assert user == QUESTION
        now = understood(sent, dialect)
        assert without_details(now) == without_details(message)
        assert now.get("reasoning_details") == (message.get("reasoning_details") if keeps else None)
        now = answered(now, dialect, data.draw)
        assert without_details(now) == without_details(message)
        assert now.get("reasoning_details") == (message.get("reasoning_details") if keeps else None)


@given(messages(), NAMES)
def test_while_the_client_holds_the_details_they_come_back_whole(
    message: dict[str, Any], names: list[str]
) -> None:
    """The client keeps its copy, whoever is asked in between."""
    for name in [*names, "openrouter"]:
        dialect = DIALECTS[name]
        _, sent = written([QUESTION, message], dialect)
        kept = message.get("reasoning_details") if dialect.keeps_thought_details else None
        assert sent.get("reasoning_details") == kept


@given(st.lists(messages(), min_size=1, max_size=3), st.sampled_from(sorted(DIALECTS)))
def test_every_turn_keeps_its_own_thought_and_its_place(turns: list[dict[str, Any]], name: str) -> None:
    history = [each for turn in turns for each in (QUESTION, turn)]
    dialect = DIALECTS[name]
    sent = written(history, dialect)
    assert [without_details(understood(each, dialect)) for each in sent[1::2]] == [
        without_details(t) for t in turns
    ]
    assert sent[::2] == [QUESTION] * len(turns)
    assert written(history, dialect) == sent


@pytest.mark.parametrize("name", sorted(DIALECTS))
@pytest.mark.parametrize("thought", [None, ""])
@pytest.mark.parametrize("as_stream", [True, False])
def test_an_empty_thought_and_null_stay_apart_from_no_thought(name: str, thought: Any, as_stream: bool) -> None:
    said = {"role": "assistant", "content": "Hi.", ANSWERS_IN[name]: thought}
    message = (read(event(said, "stop"), dialect=name) if as_stream else whole(said, dialect=name)).message
    assert message == {"role": "assistant", "content": "Hi.", "reasoning_content": thought}
    del said[ANSWERS_IN[name]]
    bare = (read(event(said, "stop"), dialect=name) if as_stream else whole(said, dialect=name)).message
    assert bare == {"role": "assistant", "content": "Hi."}


@pytest.mark.parametrize("name", sorted(DIALECTS))
@pytest.mark.parametrize("order", ["thought first", "thought last", "between", "thought only"])
def test_a_thought_may_come_before_between_or_after_the_text(name: str, order: str) -> None:
    field = ANSWERS_IN[name]
    runs: dict[str, list[dict[str, Any]]] = {
        "thought first": [{field: "H"}, {field: "m."}, {"content": "Par"}, {"content": "is."}],
        "thought last": [{"content": "Par"}, {"content": "is.", field: "Hm."}],
        "between": [{"content": "Par"}, {field: "Hm."}, {"content": "is."}],
        "thought only": [{field: "Hm."}, {"content": ""}],
    }
    *parts, last = runs[order]
    found = read(*map(event, parts), event(last, "stop"), dialect=name)
    assert found.said == ("Hm.", "" if order == "thought only" else "Paris.")
    # Told on in the upstream's order, each piece as it came.
    told = [chunk.data["choices"][0]["delta"] for chunk in found.chunks]  # type: ignore[index,call-overload]
    expected = [
        {"reasoning_content" if key == field else key: value for key, value in part.items()}
        for part in runs[order]
    ]
    assert told == expected
