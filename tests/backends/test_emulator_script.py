"""Answers as scripts: wherever one is parted or joined, no byte and no token is lost."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.exchange import Exchange
from backends.emulator.fault_options import Options, Value
from backends.emulator.faults import KINDS
from backends.emulator.moonshot import MOONSHOT
from backends.emulator.player import Departure, NoConnectionError, Script, Step, joined, play
from backends.emulator.script_parts import PHASES, broken, changed_events, is_stream, parted
from backends.emulator.shape import Part
from backends.emulator.wire import done_step, event
from backends.json import JsonObject, encode

PARTS: tuple[Part, ...] = ("thought", "text", "call")


@st.composite
def streams(draw: st.DrawFn) -> Script:
    """A stream with some of each part, in their order; its tokens never fall."""
    parts: list[Part] = ["role"]
    for part in PARTS:
        parts += [part] * draw(st.integers(0, 4))
    parts.append("finish")
    if draw(st.booleans()):
        parts.append("usage")
    tokens, steps = 0, []
    for number, part in enumerate(parts):
        tokens += draw(st.integers(0, 5)) if part in PARTS else 0
        chunk: JsonObject = {"number": number, "said": draw(st.text(max_size=8)), "choices": []}
        delay_s = draw(st.sampled_from([0.0, 0.0, 0.5]))
        steps.append(Step(event(encode(chunk)), delay_s, tokens, part))
    return Script(200, (), (*steps, done_step(tokens)), billed=True)


def whole(steps: tuple[Step, ...]) -> bytes:
    return b"".join(step.data for step in steps)


def pause_s(script: Script) -> float:
    return sum(step.delay_s for step in script.steps)


@settings(max_examples=150, deadline=None)
@given(script=streams(), phase=st.sampled_from(PHASES))
def test_the_two_parts_of_an_answer_are_the_answer(script: Script, phase: str) -> None:
    before, after = parted(script, phase)
    assert whole(before) + whole(after) == whole(script.steps)
    places = [len(whole(parted(script, name)[0])) for name in PHASES]
    assert places == sorted(places)
    assert broken(script, before).billed is (bool(before) and before[-1].tokens > 0)


@settings(max_examples=100, deadline=None)
@given(body=st.binary(min_size=1, max_size=50), phase=st.sampled_from(PHASES))
def test_an_unstreamed_answer_is_parted_too(body: bytes, phase: str) -> None:
    script = Script(200, (), (Step(body, 1.0, 7),), billed=True)
    assert not is_stream(script)
    before, after = parted(script, phase)
    assert whole(before) + whole(after) == body
    assert sum(step.delay_s for step in (*before, *after)) == 1.0


@settings(max_examples=150, deadline=None)
@given(script=streams(), each=st.integers(1, 40))
def test_joined_writes_are_the_same_answer_at_the_same_pace(script: Script, each: int) -> None:
    made = joined(script, each)
    assert whole(made.steps) == whole(script.steps)
    assert pause_s(made) == pause_s(script)
    assert made.steps[-1].tokens == script.steps[-1].tokens
    assert len(made.steps) <= len(script.steps)
    ends = {len(whole(script.steps[: at + 1])): step.tokens for at, step in enumerate(script.steps)}
    for at, step in enumerate(made.steps):
        assert ends[len(whole(made.steps[: at + 1]))] == step.tokens


@settings(max_examples=100, deadline=None)
@given(
    script=streams(),
    kind=st.sampled_from(["slow", "split"]),
    size=st.integers(1, 30),
    at=st.sampled_from(["character", "line_end", "byte"]),
)
def test_a_slow_or_split_answer_has_all_its_bytes(script: Script, kind: str, size: int, at: str) -> None:
    known = KINDS[kind].options
    options: dict[str, Value] = {"bytes": size, "at": at}
    given = {name: value for name, value in options.items() if name in known}
    exchange = Exchange(1, "/v1/chat/completions", {}, MOONSHOT, stream=True)
    made = KINDS[kind].apply(exchange, script, Options(known, given))
    assert made is not None
    assert whole(made.steps) == whole(script.steps)
    assert made.steps[-1].tokens == script.steps[-1].tokens
    assert all(step.data for step in made.steps)


@settings(max_examples=50, deadline=None)
@given(script=streams())
def test_events_that_nobody_changes_stay_as_they_are(script: Script) -> None:
    assert changed_events(script, lambda held, step: None) == script


# --- playing --------------------------------------------------------------------------------------------------


class Hold:
    """A connection that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.gone = asyncio.Event()

    def close(self) -> None:
        self.done.append("close")
        self.gone.set()

    def reset(self) -> None:
        self.done.append("reset")
        self.gone.set()

    def refuse(self, seconds: float) -> None:
        self.done.append(seconds)


def played(script: Script, *, holds: bool = True) -> tuple[list[Any], list[Any], list[Any]]:
    """What was sent (types, and bytes), what was done to the connection, and what was settled."""
    sent: list[Any] = []
    settled: list[Any] = []

    async def run() -> list[Any]:
        hold = Hold()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message.get("body", message["type"]))

        async def receive() -> MutableMapping[str, Any]:
            await hold.gone.wait()
            return {"type": "http.disconnect"}

        departure = Departure(receive)
        try:
            await play(
                script,
                send=send,
                departure=departure,
                settle=lambda tokens, left: settled.append((tokens, left)),
                connection=hold if holds else None,
            )
        finally:
            await departure.stop()
        return hold.done

    return sent, asyncio.run(run()), settled


STEPS = (Step(b"a", tokens=1), Step(b"b", tokens=2))


@pytest.mark.parametrize(
    ("script", "sent", "done"),
    [
        (Script(200, (), STEPS), ["http.response.start", b"a", b"b"], []),
        (Script(200, (), STEPS, ending="cut"), ["http.response.start", b"a", b"b"], ["close"]),
        (Script(200, (), STEPS, ending="reset"), ["http.response.start", b"a", b"b"], ["reset"]),
        (Script(200, (), (), ending="reset", refuse_s=2), [], [2, "reset"]),
        (Script(200, (), (), ending="cut"), [], ["close"]),
        (Script(200, (), STEPS, refuse_s=1), ["http.response.start", b"a", b"b"], [1]),
    ],
)
def test_a_script_is_played_to_its_end_and_settled_once(script: Script, sent: list[Any], done: list[Any]) -> None:
    told, happened, settled = played(script)
    assert (told, happened) == (sent, done)
    assert settled == [(script.steps[-1].tokens if script.steps else 0, False)]


@pytest.mark.parametrize(
    "script",
    [
        Script(200, (), STEPS, ending="reset", fault="reset"),
        Script(200, (), (), ending="cut", fault="cut"),
        Script(200, (), STEPS, refuse_s=1, fault="refuse"),
    ],
)
def test_what_needs_a_hold_on_the_connection_is_not_played_without_one(script: Script) -> None:
    with pytest.raises(NoConnectionError, match=f"the fault {script.fault} needs the server"):
        played(script, holds=False)


def test_an_answer_that_began_can_be_cut_without_a_hold() -> None:
    sent, done, settled = played(Script(200, (), STEPS, ending="cut"), holds=False)
    assert (sent[-1], done, settled) == (b"b", [], [(2, False)])
