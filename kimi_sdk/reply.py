"""One answer, typed, and how it is read from the body of a chat completion. Pure."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

from typing_extensions import TypeVar, override

from backends.json import Json, JsonError, JsonObject, as_list, as_object, as_str, decode, decode_answer, encode
from backends.reasoning import respell_thought
from backends.usage import Measured, read_usage
from kimi_sdk.amounts import dollars, exact, is_sane
from kimi_sdk.drawing import markdown_answer, rich_answer
from kimi_sdk.errors import BadReply
from kimi_sdk.place import Place
from kimi_sdk.prices import Tariff
from kimi_sdk.tools_calls import ToolCall, read_calls, with_distinct_ids
from kimi_sdk.wire import Answer
from pricing.usage import TokenUsage

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True, default=object)

CostSource = Literal["gateway", "upstream", "cards", "estimate", "unknown"]
"""Who says what an answer cost: the gateway, which booked it; the seller, in the answer itself; the rate cards
that come with this package, or the prices given to the chat, which is a calculation and no bill; an estimate, for
an answer that broke off."""

EFFORT_UNSET: Final = "unset"
"""No effort was sent; the model then thinks at its own default, which is max."""

_SHOWN: Final = 60
_NULL_MATTERS = frozenset({"content", "reasoning_content"})


@dataclass(frozen=True, slots=True, repr=False)
class Reply(Generic[T_co]):
    """One answer of the model.

    `thinking` is None where none came and "" where an empty one did. `usage` holds disjoint meters, in tokens;
    `cost` is exact dollars; both are None where nobody knows them, and `cost_source` says who does. `target` and
    `request_id` are the gateway's; without it `target` is None and `request_id` the upstream's. `finish_reason` is
    "" where the answer broke off. `message` is the turn as it stands in the history, `raw` the body as it came (of
    a stream put together); changing them changes nothing in the chat. `output` is the object that was asked for.
    """

    text: str
    thinking: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: TokenUsage | None
    cost: Decimal | None
    cost_source: CostSource
    finish_reason: str
    model: str
    tier: str | None
    effort: str
    target: str | None
    request_id: str | None
    message: JsonObject
    raw: JsonObject
    output: T_co = None  # type: ignore[assignment]  # None where no output was asked for, and T_co is object then

    @override
    def __str__(self) -> str:
        return self.text

    @property
    def has_tool_calls(self) -> bool:
        """The model asked for tools instead of, or beside, answering."""
        return bool(self.tool_calls)

    @property
    def is_empty(self) -> bool:
        """There is nothing to keep: no text but white space and no tool call."""
        return not self.text.strip() and not self.has_tool_calls

    @property
    def is_complete(self) -> bool:
        """The model ended it; false where it broke off, and where the output limit cut it."""
        return self.finish_reason not in ("", "length")

    @property
    def thinking_exhausted(self) -> bool:
        """The output limit was used up by the thinking, so there is no answer. The tokens are billed."""
        return self.is_empty and self.finish_reason == "length"

    def to_json(self) -> JsonObject:
        """All fields but `output` as JSON, exactly: money as decimal strings. `from_json` reads it."""
        usage: JsonObject | None = None if self.usage is None else usage_json(self.usage)
        return {
            "text": self.text,
            "thinking": self.thinking,
            "usage": usage,
            "cost": None if self.cost is None else str(self.cost),
            "cost_source": self.cost_source,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "tier": self.tier,
            "effort": self.effort,
            "target": self.target,
            "request_id": self.request_id,
            "message": self.message,
            "raw": self.raw,
        }

    @staticmethod
    def from_json(held: JsonObject) -> "Reply":
        """The reply that `to_json` wrote. Raises `ValueError` or `TypeError` where it is none."""
        made: dict[str, Any] = dict(held)
        message: JsonObject = made["message"]
        made["usage"] = None if made["usage"] is None else TokenUsage(**made["usage"])
        made["cost"] = None if made["cost"] is None else Decimal(made["cost"])
        return Reply(**made, tool_calls=read_calls(message))

    @property
    def footer(self) -> str:
        """A line that says who answered, how it ended and what it took."""
        calls = "".join(f", calls {call.name}" for call in self.tool_calls)
        ended = "broke off" if not self.finish_reason else self.finish_reason
        said = [self.model or "unknown model", *([self.tier] if self.tier else []), f"effort {self.effort}", ended]
        tokens = "tokens unknown"
        if self.usage is not None:
            cached = f" ({self.usage.cache_read:,} cached)" if self.usage.cache_read else ""
            tokens = f"{self.usage.prompt:,}{cached} + {self.usage.output:,} tokens"
        money = "cost unknown" if self.cost is None else f"{dollars(self.cost)} USD ({self.cost_source})"
        return " · ".join([*said, tokens, money]) + calls

    @override
    def __repr__(self) -> str:
        thought = "" if self.thinking is None else f", thinking of {len(self.thinking)} characters"
        text = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return f"<Reply {text!r}{thought} · {self.footer}>"

    def __rich__(self) -> "RenderableType":
        """For rich: thinking dimmed, text as Markdown, and what it cost."""
        return rich_answer(self.text, self.thinking, self.footer)

    def _repr_markdown_(self) -> str:
        """For notebooks."""
        return markdown_answer(self.text, self.thinking, self.footer)


@dataclass(frozen=True, slots=True)
class Opening:
    """How the answer begins without the model: a prefix, or what came of an answer that broke off."""

    text: str = ""
    thinking: str | None = None
    details: tuple[Json, ...] = ()


NO_OPENING: Final = Opening()


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an answer: who sent it, whose cards price it on which day, what was asked for."""

    place: Place
    tariff: Tariff
    on: date
    effort: str = EFFORT_UNSET
    ttl: str = ""
    opening: Opening = NO_OPENING


def read_body(answer: Answer) -> JsonObject:
    """The object that a 200 holds. Raises `BadReply`."""
    try:
        body = as_object(decode_answer(answer.body.removeprefix(BOM_UTF8)))
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
    finish_reason = as_str(choice.get("finish_reason"))
    has_message = as_object(choice.get("message")) is not None
    if not has_message or not finish_reason:
        missing = "finish_reason: the answer is incomplete" if has_message else "message"
        raise BadReply(f"the answer has no {missing}", request_id=answer.request_id)
    return partial_reply(answer, body, reading)


def partial_reply(answer: Answer, body: JsonObject, reading: Reading) -> Reply:
    """The reply as far as a body holds one; a part that is missing is empty."""
    choice = as_object(next(iter(as_list(body.get("choices"))), None)) or {}
    message = _turn(as_object(choice.get("message")) or {}, reading.opening)
    measured = _measured(body, choice, answer.headers, reading)
    model = as_str(body.get("model")) or ""
    kimi = as_object(body.get("kimi"))
    cost, source, tier = _cost(kimi, measured, model, reading)
    facts = kimi or {}
    return Reply(
        text=as_str(message.get("content")) or "",
        thinking=as_str(message.get("reasoning_content")),
        tool_calls=read_calls(message),
        usage=None if measured is None else measured.usage,
        cost=cost,
        cost_source=source,
        finish_reason=as_str(choice.get("finish_reason")) or "",
        model=as_str(facts.get("model")) or reading.place.public_model(model),
        tier=as_str(facts.get("tier")) or tier,
        effort=as_str(facts.get("effort")) or reading.effort,
        target=as_str(facts.get("target")),
        request_id=as_str(facts.get("request_id")) or answer.request_id,
        message=message,
        raw=body,
    )


def with_output(reply: Reply, output: T) -> Reply[T]:
    """The reply with the object that was asked for."""
    made: Reply[Any] = replace(reply, output=output)
    return made


def usage_json(usage: TokenUsage) -> JsonObject:
    """The meters as JSON; null where a count is unknown."""
    return {name: getattr(usage, name) for name in TokenUsage.__slots__}


def _turn(message: JsonObject, opening: Opening) -> JsonObject:
    """The assistant's turn as it goes back with the next question: complete, its thought byte for byte.

    "" and null and absent stay apart in content and thought. Other fields are kept as they came, except empty
    ones (`refusal: null`, `tool_calls: []`), which some servers send and others refuse. Nothing in it is shared
    with the body.
    """
    copy = as_object(decode(encode(message))) or {}
    respell_thought(copy)
    kept: JsonObject = {"role": "assistant"}
    kept |= {name: value for name, value in copy.items() if name in _NULL_MATTERS or value not in (None, [])}
    if opening.text:
        kept["content"] = opening.text + (as_str(kept.get("content")) or "")
    if opening.thinking is not None:
        kept["reasoning_content"] = opening.thinking + (as_str(kept.get("reasoning_content")) or "")
    if opening.details:
        kept["reasoning_details"] = [*opening.details, *as_list(kept.get("reasoning_details"))]
    return with_distinct_ids(kept)


def _measured(
    body: JsonObject, choice: JsonObject, headers: Mapping[str, str], reading: Reading
) -> Measured | None:
    """The usage report, at the top level or in the choice; None where there is none or it is not complete."""
    raw = as_object(body.get("usage")) or as_object(choice.get("usage"))
    if raw is None:
        return None
    measured = read_usage(raw, dialect=reading.place.dialect, headers=headers, ttl=reading.ttl)
    return measured if measured.is_complete else None


def _cost(
    kimi: JsonObject | None, measured: Measured | None, model: str, reading: Reading
) -> tuple[Decimal | None, CostSource, str | None]:
    """The cost, who says so, and the tier by the card where one was used."""
    if kimi is not None:  # the gateway has booked it; null means that it knows no price, and neither do we
        cost = _dollars(kimi.get("cost_usd"))
        return cost, "unknown" if cost is None else "gateway", None
    price = reading.tariff.price(model, reading.on)
    tier = None if price is None else price.tier
    if measured is not None and measured.charged is not None and is_sane(measured.charged):
        return measured.charged, "upstream", tier
    if measured is None or price is None:
        return None, "unknown", tier
    cost = price.cost(measured.usage)
    return cost, "unknown" if cost is None else "cards", tier


def _dollars(value: Json) -> Decimal | None:
    if not isinstance(value, str):
        return None
    with exact():
        amount = Decimal(value)
        return amount if is_sane(amount) else None  # what is below zero is no price, and would make room for more
