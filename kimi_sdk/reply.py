"""One answer, typed, and how it is read from the body of a chat completion. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Literal

from typing_extensions import override

from backends.dialect import Dialect
from backends.json import Json, JsonError, JsonObject, as_list, as_object, as_str, decode, encode
from backends.reasoning import respell_thought
from backends.usage import Measured, read_usage
from kimi_sdk.errors import BadReply
from kimi_sdk.wire import Answer
from pricing.cost import cost_of
from pricing.rates import CardBook
from pricing.usage import TokenUsage

CostSource = Literal["gateway", "upstream", "cards", "unknown"]
"""Who says what an answer cost: the gateway, which booked it; the seller, in the answer itself; or the rate cards
that come with this package, which is a calculation and no bill."""

EFFORT_UNSET = "unset"
"""No effort was sent; the model then thinks at its own default, which is max."""

_NULL_MATTERS = frozenset({"content", "reasoning_content"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model.

    `thinking` is None where none came and "" where an empty one did. `usage` holds disjoint meters, in tokens;
    `cost` is exact dollars; both are None where nobody knows them, and `cost_source` says who does. `target` and
    `request_id` are the gateway's; without it `target` is None and `request_id` the upstream's. `raw` is the body
    as it came; changing it changes nothing in the chat.
    """

    text: str
    thinking: str | None
    usage: TokenUsage | None
    cost: Decimal | None
    cost_source: CostSource
    finish_reason: str
    model: str
    tier: str | None
    effort: str
    target: str | None
    request_id: str | None
    raw: JsonObject = field(repr=False)

    @override
    def __str__(self) -> str:
        return self.text

    @property
    def has_tool_calls(self) -> bool:
        """The model asked for tools instead of, or beside, answering."""
        return bool(as_list(_message(self.raw).get("tool_calls")))

    @property
    def is_empty(self) -> bool:
        """There is nothing to keep: no text but white space and no tool call."""
        return not self.text.strip() and not self.has_tool_calls

    @property
    def thinking_exhausted(self) -> bool:
        """The output limit was used up by the thinking, so there is no answer.

        Ask again with a larger `max_completion_tokens` or a lower effort. The tokens are billed.
        """
        return self.is_empty and self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an answer: the facts of who sent it, whose cards price it on which day, what was asked for."""

    dialect: Dialect
    cards: CardBook
    on: date
    effort: str


def read_body(answer: Answer) -> JsonObject:
    """The object that a 200 holds. Raises `BadReply`."""
    try:
        body = as_object(decode(answer.body))
    except JsonError as err:
        raise BadReply(f"the answer is not JSON: {err}", request_id=answer.request_id) from err
    if body is None:
        raise BadReply("the answer is JSON, but not an object", request_id=answer.request_id)
    return body


def read_reply(answer: Answer, body: JsonObject, reading: Reading) -> Reply:
    """The reply in a 200. Raises `BadReply` for a body that is not a whole chat completion."""
    if "choices" not in body:
        raise BadReply(
            "the answer is not a chat completion: it has no choices. Does base_url end in the API's path, "
            "such as /v1?",
            request_id=answer.request_id,
        )
    choice = as_object(next(iter(as_list(body.get("choices"))), None)) or {}
    message = as_object(choice.get("message"))
    finish_reason = as_str(choice.get("finish_reason"))
    if message is None or not finish_reason:
        missing = "message" if message is None else "finish_reason: the answer is incomplete"
        raise BadReply(f"the answer has no {missing}", request_id=answer.request_id)
    measured = _measured(body, choice, answer.headers, reading.dialect)
    model = as_str(body.get("model")) or ""
    kimi = as_object(body.get("kimi"))
    cost, source, tier = _cost(kimi, measured, model, reading)
    facts = kimi or {}
    return Reply(
        text=as_str(message.get("content")) or "",
        thinking=as_str(_respelled(message).get("reasoning_content")),
        usage=None if measured is None else measured.usage,
        cost=cost,
        cost_source=source,
        finish_reason=finish_reason,
        model=as_str(facts.get("model")) or model,
        tier=as_str(facts.get("tier")) or tier,
        effort=as_str(facts.get("effort")) or reading.effort,
        target=as_str(facts.get("target")),
        request_id=as_str(facts.get("request_id")) or answer.request_id,
        raw=body,
    )


def history_message(reply: Reply) -> JsonObject:
    """The assistant's turn as it goes back with the next question: complete, its thought byte for byte.

    "" and null and absent stay apart in content and thought. Other fields are kept as they came, except empty
    ones (`refusal: null`, `tool_calls: []`), which some servers send and others refuse. Nothing in it is shared
    with `reply.raw`, and its numbers are plain, so that any encoder can write it.
    """
    message = _respelled(_message(reply.raw))
    kept = {name: value for name, value in message.items() if name in _NULL_MATTERS or value not in (None, [])}
    turn: JsonObject = json.loads(encode({"role": "assistant", **kept}))
    return turn


def _message(body: JsonObject) -> JsonObject:
    choice = as_object(next(iter(as_list(body.get("choices"))), None)) or {}
    return as_object(choice.get("message")) or {}


def _respelled(message: JsonObject) -> JsonObject:
    """A copy with the thought under `reasoning_content`, whatever the server calls it."""
    copy = dict(message)
    respell_thought(copy)
    return copy


def _measured(
    body: JsonObject, choice: JsonObject, headers: Mapping[str, str], dialect: Dialect
) -> Measured | None:
    """The usage report, at the top level or in the choice; None where there is none or it is not complete."""
    raw = as_object(body.get("usage")) or as_object(choice.get("usage"))
    if raw is None:
        return None
    measured = read_usage(raw, dialect=dialect, headers=headers, ttl="")
    return measured if measured.is_complete else None


def _cost(
    kimi: JsonObject | None, measured: Measured | None, model: str, reading: Reading
) -> tuple[Decimal | None, CostSource, str | None]:
    """The cost, who says so, and the tier by the card where one was used."""
    if kimi is not None:  # the gateway has booked it; null means that it knows no price, and neither do we
        cost = _dollars(kimi.get("cost_usd"))
        return cost, "unknown" if cost is None else "gateway", None
    card = reading.cards.find(reading.dialect.seller, model, reading.on)
    tier = None if card is None else card.tier
    if measured is not None and measured.charged is not None:
        return measured.charged, "upstream", tier
    if measured is None or card is None:
        return None, "unknown", tier
    cost = cost_of(measured.usage, card.rates, write_rule=card.write_rule).usd
    return cost, "unknown" if cost is None else "cards", tier


def _dollars(value: Json) -> Decimal | None:
    if not isinstance(value, str):
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None
