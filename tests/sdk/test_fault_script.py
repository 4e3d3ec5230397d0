"""Every fault of the emulator, straight and through the gateway, sync and async, asked and streamed: the right
typed error or a recovery, never a doubled word, and never a second bill.

All cases of a place run at once: a rule of the fault file is chosen by a word in the question.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pytest

from kimi_sdk import AsyncChat, Chat, Done, KimiError, Reply, StreamCut, TextDelta, ThinkingDelta
from support.processes import gateway_process
from support.sdk_places import BEHIND, Place

WAYS: Final = ("stream", "async-ask")
PRICES: Final = {"input": "2.00", "cache_read": "0.20", "write_5m": "2.00", "write_1h": "4.00", "output": "10.00"}


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and what is to come of it: `ok`, or an error's class and, where it is a cut one, that of its cause.
    `requests` is how many the emulator gets from a client that asks it straight."""

    fault: str
    straight: str
    gateway: str
    requests: int = 1


CASES: Final = {
    "fine": Case("", "ok", "ok"),
    "slow": Case('kind = "slow"\nbytes = 400\ngap_ms = 2', "ok", "ok"),
    "split": Case('kind = "split"\nat = "character"\ngap_ms = 0.1', "ok", "ok"),
    "no-done": Case('kind = "no_done"', "ok", "ok"),
    "cut-text": Case('kind = "cut"\nphase = "text"', "StreamCut<ConnectionFailed", "StreamCut<ServerFailed"),
    "cut-thought": Case('kind = "cut"\nphase = "thought"', "StreamCut<ConnectionFailed", "StreamCut<ServerFailed"),
    "reset-text": Case('kind = "reset"\nphase = "text"', "StreamCut<ConnectionFailed", "StreamCut<ServerFailed"),
    "reset-start": Case('kind = "reset"\nphase = "start"', "ConnectionFailed", "ServerFailed"),
    "overloaded-once": Case('kind = "overloaded"\ntimes = 1', "ok", "Overloaded", 2),
    "overloaded": Case('kind = "overloaded"', "Overloaded", "Overloaded", 3),
    "rate": Case('kind = "rate_limited"', "RateLimited", "RateLimited", 3),
    "rate-long": Case('kind = "rate_limited"\nretry_after_s = 100', "RateLimited", "RateLimited"),
    "quota": Case('kind = "quota"', "QuotaExhausted", "QuotaExhausted"),
    "filter": Case('kind = "content_filter"', "ContentFiltered", "ContentFiltered"),
    "context": Case('kind = "context"', "ContextTooLong", "ContextTooLong"),
    "key": Case('kind = "unauthorized"', "AuthenticationFailed", "ServerFailed"),
    "forbidden": Case('kind = "forbidden"', "PermissionRefused", "ServerFailed"),
    "500-once": Case('kind = "http_error"\ntimes = 1', "ok", "ServerFailed", 2),
    "500": Case('kind = "http_error"', "ServerFailed", "ServerFailed", 3),
    "504": Case('kind = "http_error"\nstatus = 504', "ServerFailed", "ServerFailed"),
    "html": Case('kind = "html"', "ServerFailed", "ServerFailed", 3),
    "error-200": Case('kind = "error_200"', "Overloaded", "ServerFailed", 3),
    "queue": Case('kind = "queue_full"', "Overloaded", "ServerFailed", 3),
    "event": Case('kind = "error_event"\nphase = "text"', "StreamCut<ServerFailed", "StreamCut<ServerFailed"),
    "malformed": Case('kind = "malformed"', "StreamCut<ServerFailed", "StreamCut<ServerFailed"),
    "no-finish": Case('kind = "no_finish"', "StreamCut<ConnectionFailed", "StreamCut<ServerFailed"),
    "silence": Case('kind = "silence"\nphase = "text"', "StreamCut<NoAnswerInTime", "StreamCut<ServerFailed"),
    "silence-start": Case('kind = "silence"\nphase = "start"', "NoAnswerInTime", "ServerFailed"),
    "no-usage": Case('kind = "usage"', "ok", "ok"),
}


def fault_file() -> str:
    pairs = [(case, question(name, way)) for name, case in CASES.items() for way in WAYS if case.fault]
    return "\n".join(f'[[faults]]\ncontains = "{asked}"\n{case.fault}' for case, asked in pairs)


@dataclass(slots=True)
class Outcome:
    """What the application saw of one case."""

    text: str = ""
    thinking: str = ""
    reply: Reply[Any] | None = None
    error: KimiError | None = None
    chat: Chat | AsyncChat | None = None

    @property
    def said(self) -> str:
        if self.error is None:
            return "ok"
        cause = self.error.__cause__ if isinstance(self.error, StreamCut) else None
        return type(self.error).__name__ + ("" if cause is None else f"<{type(cause).__name__}")

    def take(self, event: object) -> None:
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, ThinkingDelta):
            self.thinking += event.text
        elif isinstance(event, Done):
            self.reply = event.reply


def arguments(place: Place, name: str, way: str) -> dict[str, Any]:
    """Behind the gateway each case has a model, and a target, of its own, because one fault takes a target out for
    other requests."""
    if place.name == "gateway":
        return {**place.arguments, "effort": "low", "timeout_s": 20, "model": f"{name}-{way}", "prices": PRICES}
    return {**place.arguments, "effort": "low", "timeout_s": 1.0 if name.startswith("silence") else 20}


def question(name: str, way: str) -> str:
    return f"<{name}> by <{way}>"


def streamed(place: Place, name: str) -> Outcome:
    outcome = Outcome()
    with Chat(**arguments(place, name, "stream")) as chat:
        outcome.chat = chat
        try:
            for event in chat.stream(question(name, "stream")):
                outcome.take(event)
        except KimiError as err:
            outcome.error = err
    return outcome


async def awaited(place: Place, name: str) -> Outcome:
    outcome = Outcome()
    async with AsyncChat(**arguments(place, name, "async-ask")) as chat:
        outcome.chat = chat
        try:
            outcome.reply = await chat.ask(question(name, "async-ask"))
        except KimiError as err:
            outcome.error = err
    return outcome


@dataclass(slots=True)
class Run:
    """All cases at one place."""

    place: Place
    outcomes: dict[tuple[str, str], Outcome]
    requests: list[dict[str, Any]]
    charged: dict[str, Decimal]

    def sent(self, name: str, way: str) -> list[dict[str, Any]]:
        return [one for one in self.requests if question(name, way) in json.dumps(one["body"])]


def run_all(place: Place) -> Run:
    place.reset()
    place.misbehave(fault_file())
    names = sorted(CASES, key=lambda name: not name.startswith("silence"))  # those that wait begin first

    async def all_awaited() -> list[Outcome]:
        return await asyncio.gather(*(awaited(place, name) for name in names))

    with ThreadPoolExecutor(max_workers=24) as pool:
        waiting = pool.submit(asyncio.run, all_awaited())
        heard = list(pool.map(lambda name: streamed(place, name), names))
        outcomes = {(name, "stream"): outcome for name, outcome in zip(names, heard, strict=True)}
        outcomes |= {(name, "async-ask"): each for name, each in zip(names, waiting.result(), strict=True)}
    requests, lines = place.seen(), place.invoice()["lines"]
    place.reset()
    return Run(place, outcomes, requests, {line["id"]: Decimal(line["usd"]) for line in lines})


def variable(name: str, way: str) -> str:
    return f"LAB_KEY_{name}_{way}".upper().replace("-", "_")


def configuration(emulator: str) -> str:
    """A gateway with a target for each case, with a key of its own, all at one emulator."""
    targets = [
        f'''
[[targets]]
name = "{name}-{way}"
dialect = "moonshot"
base_url = "{emulator}/v1"
api_key_env = "{variable(name, way)}"
models = {{ "{name}-{way}" = "kimi-k3.1-pro" }}
first_byte_timeout_s = 1
idle_timeout_s = 1
'''
        for name in CASES
        for way in WAYS
    ]
    return "[server]\ndrain_grace_s = 0\n[retry]\nmax_retries = 0\n[timing]\nusage_grace_s = 0.2\n" + "".join(
        targets
    )


@pytest.fixture(scope="module")
def straight(emulated: Mapping[str, Place]) -> Run:
    return run_all(emulated["moonshot"])


@pytest.fixture(scope="module")
def through(emulated: Mapping[str, Place]) -> Iterator[Run]:
    emulator = emulated[BEHIND].emulator
    keys = {variable(name, way): f"sk-{name}-{way}" for name in CASES for way in WAYS}
    with gateway_process(configuration(emulator), keys) as gateway:
        yield run_all(Place("gateway", {"base_url": gateway.base_url}, emulator))


def check(run: Run, name: str, way: str) -> None:
    """What holds at every place: the history, the words that were given out, and the money."""
    outcome, chat = run.outcomes[name, way], run.outcomes[name, way].chat
    assert chat is not None
    requests = run.sent(name, way)
    bills = [charge for one in requests if (charge := run.charged.get(one["id"], Decimal(0)))]
    assert len(bills) <= 1, "billed twice"
    if outcome.reply is not None:
        assert [turn["role"] for turn in chat.messages] == ["user", "assistant"]
        assert chat.messages[1]["content"] == outcome.reply.text
        if name != "no-usage":
            assert chat.cost == sum(bills)
    else:
        assert chat.messages == []
        assert chat.cost == 0
    cut = outcome.error.reply if isinstance(outcome.error, StreamCut) else None
    reply = outcome.reply or cut
    if reply is not None and way == "stream":
        assert (outcome.text, outcome.thinking) == (reply.text, reply.thinking or "")
        assert reply.text.count("Synthetic answer") <= 1
        assert outcome.thinking.count("Synthetic thought") == 1
    if cut is not None:
        assert (cut.finish_reason, cut.cost_source) == ("", "estimate")
        assert cut.cost == chat.estimated_cost
        assert cut.cost is not None
        assert cut.cost > 0
    if bills and outcome.reply is None:
        assert chat.estimated_cost > 0, "it was billed, and the chat knows nothing of it"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_the_server_itself_is_the_right_error_or_none(straight: Run, name: str, way: str) -> None:
    assert straight.outcomes[name, way].said == CASES[name].straight
    assert len(straight.sent(name, way)) == CASES[name].requests
    check(straight, name, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_fault_behind_the_gateway_is_the_right_error_or_none(through: Run, name: str, way: str) -> None:
    assert through.outcomes[name, way].said == CASES[name].gateway
    check(through, name, way)
