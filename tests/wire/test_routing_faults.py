"""Every kind of fault in every phase under every policy: who serves, and what client and ledger are told.

Two targets; the one that is asked first fails. Before content the other serves, unless the request itself is at
fault; after it nobody does, and no cut answer ends cleanly. All cases that leave a target as it was run at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pricing.ledger.row import LedgerRow
from support.exchange import Exchange
from support.fleet import (
    CHEAP,
    DONE,
    PRO,
    ROLE,
    Fleet,
    after,
    chunk,
    fleet,
    hi,
    nothing,
    route,
    said,
    target,
    together,
)
from support.lab import Heard
from support.scripted import Answer, dead_port, play

POLICIES = ("order", "cost", "fastest", "least-busy")
KEEPALIVE_S = 0.1
SILENT_S = 3.6 * KEEPALIVE_S  # the head is committed by then, by two comments
FIRST_BYTE_S = 0.8
IDLE_S = 0.6
GOOD = {"status": 200, "sse_text": said("the second's")}
REMEMBERED = ("overload", "rate", "quota", "auth")
"""Faults after which a target is left alone."""


def refused(status: int, kind: str, message: str = "no", **headers: str) -> dict[str, Any]:
    """An error answer with this type."""
    error = {"message": message, "type": kind}
    return {"status": status, "headers": headers, "json": {"error": error}}


def event(kind: str) -> str:
    """An error event of a stream."""
    return f'data: {{"error":{{"message":"no more","type":"{kind}"}}}}\n\n'


@dataclass(frozen=True)
class Kind:
    """A way to fail before content: the answer and the fault that it is. `error`: status and code of what the
    client hears; None: another target serves."""

    answer: Answer
    fault: str
    error: tuple[int, str] | None = None
    maybe_billed: bool = False


KINDS: Mapping[str, Kind] = {
    "500": Kind(refused(500, "server_error"), "server"),
    "a page": Kind({"status": 502, "headers": {"content-type": "text/html"}, "text": "<html>no</html>"}, "server"),
    "an error in a 200": Kind({"status": 200, "json": {"error": {"message": "no", "code": 502}}}, "server"),
    "half a body": Kind({"status": 200, "headers": {"content-type": "application/json"}, "text": '{"a'}, "server"),
    "an error event": Kind({"status": 200, "sse_text": ROLE + event("server_error")}, "server"),
    "overload for long": Kind(refused(429, "engine_overloaded_error", **{"retry-after": "60"}), "overload"),
    "rate for long": Kind(refused(429, "rate_limit_reached_error", **{"retry-after": "60"}), "rate"),
    "rate for long in words": Kind(
        refused(429, "rate_limit_reached_error", "max RPM: 3, please try again after 60 seconds"), "rate"
    ),
    "quota": Kind(refused(429, "exceeded_current_quota_error"), "quota"),
    "402": Kind(refused(402, "payment"), "quota"),
    "401": Kind(refused(401, "invalid_authentication_error"), "auth"),
    "403": Kind(refused(403, "permission_denied_error"), "auth"),
    "reset": Kind({"then": "reset"}, "reset", maybe_billed=True),
    "closed in a body": Kind({"status": 200, "sse_text": ROLE, "then": "close"}, "reset", maybe_billed=True),
    "504": Kind(refused(504, "timeout"), "timeout", maybe_billed=True),
    "silence": Kind(nothing, "timeout", maybe_billed=True),
    "an empty stream": Kind({"status": 200, "sse_text": ROLE}, "incomplete", maybe_billed=True),
    "only an end mark": Kind({"status": 200, "sse_text": ROLE + DONE}, "incomplete", maybe_billed=True),
    "context": Kind(
        refused(400, "invalid_request_error", "Your request exceeded model token limit: 1048576"),
        "context",
        (400, "context_length_exceeded"),
    ),
    "filter": Kind(refused(400, "content_filter"), "filter", (400, "content_filter")),
    "400": Kind(refused(400, "invalid_request_error", "temperature must be 1"), "request", (400, "")),
    "422": Kind(refused(422, "unprocessable"), "request", (422, "")),
}

CUTS: Mapping[str, tuple[Mapping[str, Any], str, tuple[int, str]]] = {
    "reset": ({"then": "reset"}, "reset", (502, "bad_gateway")),
    "closed": ({"then": "close"}, "reset", (502, "bad_gateway")),
    "ended without a finish": ({}, "incomplete", (502, "bad_gateway")),
    "end mark without a finish": ({"text": DONE}, "incomplete", (502, "bad_gateway")),
    "silence": ({"then": "hold"}, "timeout", (504, "upstream_timeout")),
    "server": ({"text": event("server_error")}, "server", (502, "bad_gateway")),
    "overload": ({"text": event("service_unavailable")}, "overload", (502, "bad_gateway")),
    "rate": ({"text": event("rate_limit_reached_error")}, "rate", (429, "rate_limit_exceeded")),
    "quota": ({"text": event("exceeded_current_quota_error")}, "quota", (402, "exceeded_current_quota_error")),
    "filter": ({"text": event("content_filter")}, "filter", (400, "content_filter")),
    "no JSON": ({"text": "data: {oh\n\n" + chunk({}, "stop") + DONE}, "server", (502, "bad_gateway")),
}
"""Ends after content: how the stream goes on, the fault, and status and code of the error."""


@dataclass(frozen=True, eq=False)
class Case:
    """One request: what its first target does (None: it refuses to be connected), and how the client asks."""

    phase: str
    name: str
    policy: str
    stream: bool
    answer: Answer | None
    fault: str

    @property
    def text(self) -> str:
        """What the request says, by which its targets know it."""
        return f"{self.phase}, {self.name}, {self.stream}"

    @property
    def model(self) -> str:
        """The model, which has a route of the case's policy."""
        return f"{'alone' if self.phase == 'alone' else 'dead' if self.answer is None else 'm'}-{self.policy}"


def cases() -> Iterator[Case]:
    """All of them."""
    for policy in POLICIES:
        for stream in (True, False):
            yield Case("connect", "refused", policy, stream, None, "connect")
        for name, kind in KINDS.items():
            late = kind.answer if callable(kind.answer) else after(SILENT_S, kind.answer)
            yield Case("before the head", name, policy, False, kind.answer, kind.fault)
            yield Case("before content", name, policy, True, late, kind.fault)
        for name, (rest, fault, _) in CUTS.items():
            cut = after(0.05, rest, begin=ROLE + chunk({"content": "the first's"}))
            for stream in (True, False):
                yield Case("after content", name, policy, stream, cut, fault)
        broken = after(SILENT_S, {"then": "close"}, begin=": \n\n")
        yield Case("before content", "comments, then closed", policy, True, broken, "reset")
        yield Case("alone", "reset", policy, True, after(SILENT_S, {"then": "reset"}), "reset")


@dataclass
class Side:
    """The script of a target: whoever of a pair is asked first does what the case says, the other serves."""

    wanted: Mapping[str, Answer]
    asked: list[str]  # the targets that were asked, and for which case; one list for all
    name: str

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request."""
        messages: Any = exchange.received.json["messages"]
        text = str(messages[-1]["content"])
        policy = self.name[:-2]
        is_first = not any(one.endswith(f"|{text}") and one.startswith(policy) for one in self.asked)
        self.asked.append(f"{self.name}|{text}")
        answer = self.wanted[text] if is_first and text in self.wanted else GOOD
        await (answer(exchange) if callable(answer) else play(answer, exchange))


@dataclass(frozen=True)
class Outcome:
    """What became of a case: which targets were asked, what was heard, the row."""

    case: Case
    heard: Heard
    asked: tuple[str, ...]
    row: LedgerRow


def routes(port: int) -> str:
    """A route for each policy, with models of its own and two targets that nobody else uses, and a dead one."""
    made = []
    for policy in POLICIES:
        names = [f"{policy}-1", f"{policy}-2"]
        url = f"http://127.0.0.1:{port}/v1"
        made.append(target(f"{policy}-0", url, {"models": {f"dead-{policy}": PRO}, "prices": CHEAP}))
        # Where neither order nor price decides, all but one of a million conversations go to the dead one.
        weights = {"weights": {f"{policy}-0": 1_000_000}} if policy in ("fastest", "least-busy") else {}
        made.append(route(f"dead-{policy}", [f"{policy}-0", names[1]], **{"policy": policy, **weights}))
        made.append(route(f"m-{policy}", names, policy=policy))
        made.append(route(f"alone-{policy}", names[:1], policy=policy))
    return "".join(made)


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Mapping[tuple[str, str, bool], Sequence[Outcome]]]:
    """By phase, name and whether it is a stream: what became of it under each policy."""
    every = list(cases())
    wanted = {case.text: case.answer for case in every if case.answer is not None}
    asked: list[str] = []
    targets = {
        f"{policy}-{number}": {
            "models": {f"{kind}-{policy}": PRO for kind in ("m", "alone", "dead")},
            "first_byte_timeout_s": FIRST_BYTE_S,
            "idle_timeout_s": IDLE_S,
        }
        for policy in POLICIES
        for number in (1, 2)
    }
    with (
        dead_port() as port,
        fleet(
            targets,
            routes(port),
            head="[retry]\nglobal_ratio = 1\nbreaker_failures = 1000000\n",
            server=f"keepalive_interval_s = {KEEPALIVE_S}",
            scripts={name: Side(wanted, asked, name) for name in targets},
        ) as made,
    ):
        yield played(made, every, asked)


def played(
    made: Fleet, every: Sequence[Case], asked: Sequence[str]
) -> Mapping[tuple[str, str, bool], Sequence[Outcome]]:
    """Plays all cases: those that leave a trace one after the other, under all policies at once."""

    def ask(case: Case) -> Heard:
        return made.ask(hi(case.text, case.model, stream=case.stream), {"x-kimi-meta": "1"})

    heard: dict[Case, Heard] = {}
    batches: dict[str, list[Case]] = {}
    for case in every:
        is_alone = case.fault in REMEMBERED or case.phase == "connect"
        batches.setdefault(case.text if is_alone else "", []).append(case)
    for text, batch in batches.items():
        heard |= zip(batch, together(ask, batch, most=24), strict=True)
        if text:
            made.heal()
    rows = made.rows(*[heard[case] for case in every])
    found: dict[tuple[str, str, bool], list[Outcome]] = {}
    for case, row in zip(every, rows, strict=True):
        who = (one.partition("|") for one in asked)
        names = tuple(name for name, _, text in who if text == case.text and name.startswith(case.policy))
        outcome = Outcome(case, heard[case], names, row)
        found.setdefault((case.phase, case.name, case.stream), []).append(outcome)
    return found


def check_served(outcome: Outcome, *, maybe_billed: bool) -> None:
    """The other target's whole answer, two attempts, and nothing of the first."""
    heard, row, case = outcome.heard, outcome.row, outcome.case
    assert (heard.status, heard.error) == (200, None), heard.raw
    if case.stream:
        assert (heard.joined("content"), heard.finish_reason(), heard.done) == ("the second's", "stop", True)
        kimi = heard.chunks[-1]["kimi"]
    else:
        assert heard.json["choices"][0]["message"]["content"] == "the second's"
        kimi = heard.json["kimi"]
    tried = [one.target for one in row.attempts]
    assert (len(set(tried)), len(tried)) == (2, 2)
    assert list(outcome.asked) == (tried[1:] if case.phase == "connect" else tried)
    assert (kimi["target"], kimi["attempts"]) == (tried[1], 2)
    assert (row.status, row.target) == ("ok", tried[1])
    assert [one.fault for one in row.attempts] == [case.fault, None]
    assert [one.maybe_billed for one in row.attempts] == [maybe_billed, False]
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nano) == (10, 2, 40_000)


def check_refused(outcome: Outcome, error: tuple[int, str]) -> None:
    """The first target's error and nothing else: as an answer, or as one event where the head had left."""
    heard, row, case = outcome.heard, outcome.row, outcome.case
    assert len(outcome.asked) == 1
    assert heard.status == (200 if case.stream else error[0])
    assert heard.error is not None
    assert (heard.error.get("status", heard.status), heard.error["code"] or "") == error
    assert not heard.done
    assert [one for one in heard.events if "error" not in one] == []
    assert len(heard.events) == case.stream
    assert (row.status, [one.fault for one in row.attempts]) == ("error", [case.fault])
    assert (row.http_status, row.cost_nano) == (error[0], 0)


@pytest.fixture
def found(outcomes: Mapping[tuple[str, str, bool], Sequence[Outcome]]) -> Callable[..., Sequence[Outcome]]:
    """The outcomes of one case under all policies."""

    def of(phase: str, name: str, *, stream: bool) -> Sequence[Outcome]:
        made = outcomes[phase, name, stream]
        assert [one.case.policy for one in made] == list(POLICIES)
        assert made[0].row.attempts[0].target == ("order-0" if phase == "connect" else "order-1")
        return made

    return of


Found = Callable[..., Sequence[Outcome]]


@pytest.mark.parametrize("stream", [True, False])
def test_a_first_target_that_cannot_be_reached(found: Found, stream: bool) -> None:
    for outcome in found("connect", "refused", stream=stream):
        assert outcome.row.attempts[0].target.endswith("-0")
        check_served(outcome, maybe_billed=False)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_before_the_head(found: Found, name: str) -> None:
    """Whole answers have no keep-alives, so nothing was sent to the client yet."""
    kind = KINDS[name]
    for outcome in found("before the head", name, stream=False):
        if kind.error is None:
            check_served(outcome, maybe_billed=kind.maybe_billed)
        else:
            check_refused(outcome, kind.error)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_between_head_and_content(found: Found, name: str) -> None:
    """The client of a stream has had two comments when the fault comes."""
    kind = KINDS[name]
    for outcome in found("before content", name, stream=True):
        assert outcome.heard.comments >= 2
        assert outcome.heard.headers["x-kimi-attempts"] == "1"
        if kind.error is None:
            check_served(outcome, maybe_billed=kind.maybe_billed)
        else:
            check_refused(outcome, kind.error)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CUTS)
def test_a_fault_after_content(found: Found, name: str, stream: bool) -> None:
    """A stream has its content, so nobody may start again; a whole answer is held to the same."""
    _, fault, error = CUTS[name]
    for outcome in found("after content", name, stream=stream):
        heard, row = outcome.heard, outcome.row
        assert len(outcome.asked) == 1
        assert heard.status == (200 if stream else error[0])
        assert heard.error is not None
        assert (heard.error.get("status", heard.status), heard.error["code"]) == error
        assert not heard.done
        if stream:
            assert (heard.joined("content"), heard.finish_reason()) == ("the first's", None)
        assert row.status == ("incomplete" if fault in ("reset", "incomplete") else "error")
        assert [one.fault for one in row.attempts] == [fault]
        assert row.attempts[0].maybe_billed
        assert row.estimated
        assert row.cost_nano


@pytest.mark.parametrize("name", ["reset", "comments, then closed"])
def test_a_first_target_that_is_silent_for_two_keep_alives_and_then_breaks(found: Found, name: str) -> None:
    for outcome in found("before content", name, stream=True):
        assert outcome.heard.comments >= 2
        check_served(outcome, maybe_billed=True)


def test_a_target_that_breaks_and_has_no_other_is_one_error_event(found: Found) -> None:
    for outcome in found("alone", "reset", stream=True):
        heard = outcome.heard
        assert heard.comments >= 2
        assert (len(heard.events), heard.error["code"], heard.error["status"]) == (1, "bad_gateway", 502)
        assert not heard.done
        assert [(one.fault, one.maybe_billed) for one in outcome.row.attempts] == [("reset", True)]
