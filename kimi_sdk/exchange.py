"""One call, from the money set aside for it to the reply: sent, heard, repeated where that may help, settled.
Pure.

The steps it gives out are performed by a driver (`kimi_sdk.drive`). However it ends, the money that was set aside
is given back or counted, and nothing that has been given out is asked for a second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from backends.json import encode
from kimi_sdk.amounts import dollars, exact
from kimi_sdk.broken import StreamCut
from kimi_sdk.errors import BadReply, ConnectionFailed, InvalidInput, KimiError, MaxCostReached, NoAnswerInTime
from kimi_sdk.events import TextDelta, ThinkingDelta
from kimi_sdk.hearing import Broken, Hearing, is_incomplete
from kimi_sdk.meter import Account, Hold, Meter
from kimi_sdk.prices import DEFAULT_OUTPUT_TOKENS, SMALLEST_DEFAULT_TOKENS, Price, Tariff
from kimi_sdk.refusal import refusal, refusal_in_stream
from kimi_sdk.reply import EFFORT_UNSET, Reading, Reply, partial_reply, read_body, read_reply
from kimi_sdk.request import Manner, Wish, opening_turns, request_body, request_headers
from kimi_sdk.retry import Standing, may_be_billed, pause_before_retry_s
from kimi_sdk.sizes import Counted, most_written, prompt_estimate
from kimi_sdk.steps import HangUp, Head, Logic, Post, Read, Sleep, World
from kimi_sdk.wire import Answer, Endpoint
from pricing.estimate import Estimate as TokenEstimate
from pricing.estimate import text_size
from pricing.usage import TokenUsage

_LOOK_AGAIN_S: Final = 0.02
_STREAM: Final = "text/event-stream"
_NO_TOKENS: Final = TokenEstimate(0, 0, 0)
_BILLS: Final = frozenset({"gateway", "upstream", "cards"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What all calls of a chat have in common. `patience_s` is how long a call waits for money that other calls
    have set aside."""

    endpoint: Endpoint
    tariff: Tariff
    account: Account
    world: World
    max_retries: int
    patience_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `counted`: what the server said of a beginning of its turns."""

    manner: Manner
    turns: Sequence[bytes]
    wish: Wish
    counted: Counted | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a call comes to before it is sent: its prompt, the output limit that counts, the price where known."""

    prompt: TokenEstimate
    limit: int | None
    price: Price | None

    def most(self, ttl: str) -> Decimal | None:
        """The most it can cost, in dollars."""
        output = self.limit or DEFAULT_OUTPUT_TOKENS
        return None if self.price is None else self.price.bound(self.prompt.high, output, ttl)


def bounds_of(call: Call, settings: Settings) -> Bounds:
    """The bounds of a call, with the output limit it names itself."""
    manner = call.manner
    model = manner.place.model_at(manner.model, manner.tier)
    day = datetime.fromtimestamp(settings.world.now_s(), UTC).date()
    turns = [*call.turns, *opening_turns(call.wish.opening, manner.place.dialect)]
    form = b"" if call.wish.format is None else encode(call.wish.format)
    return Bounds(
        prompt_estimate(turns, manner.tools, call.counted, form=form),
        call.wish.limit,
        settings.tariff.price_before(model, manner.tier, day),
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call will come to, before it is sent.

    Tokens: the likely prompt, the most it can have, and the output limit. Dollars: `cost` is the likely prompt's,
    taken as fresh, without the answer; `cost_max` the most that prompt and answer can cost. None without a price.
    """

    prompt_tokens: int
    prompt_tokens_max: int
    output_tokens_max: int
    cost: Decimal | None
    cost_max: Decimal | None


def estimate_of(call: Call, settings: Settings) -> Estimate:
    """What a call will come to."""
    bounds = bounds_of(call, settings)
    prompt, price = bounds.prompt, bounds.price
    return Estimate(
        prompt.tokens,
        prompt.high,
        bounds.limit or DEFAULT_OUTPUT_TOKENS,
        None if price is None else price.cost(TokenUsage(input=prompt.tokens)),
        bounds.most(call.manner.ttl or ""),
    )


class Exchange:
    """One call under way."""

    def __init__(self, call: Call, settings: Settings) -> None:
        self._call = call
        self._settings = settings
        self._bounds = bounds_of(call, settings)
        self._heard: Hearing | None = None
        self._said: Reply | None = None  # what a whole body held, good or not
        self._is_under_way = False
        self._is_doubtful = False
        self._hold: Hold | None = None

    def run(self) -> Logic[Reply]:
        """Events as they come; the reply. Raises `KimiError`; `StreamCut` once something was given out."""
        hold = self._hold = yield from self._reserve()
        key = self._settings.world.new_key()
        try:
            reply = yield from self._attempts(self._body(), request_headers(self._call.manner, key))
            self._settle(hold, reply)
            return reply
        except KimiError as err:
            self._settle_failed(hold, err)
            raise
        finally:  # left by the application, or interrupted
            if self._is_under_way:
                self._settle_left(hold)
            elif self._is_doubtful:
                hold.settle_broken(self._likely_cost(_NO_TOKENS), hold.bound)
            hold.release()

    # --- sending and hearing ----------------------------------------------------------------------------------

    def _attempts(self, body: bytes, headers: dict[str, str]) -> Logic[Reply]:
        settings = self._settings
        for repeats in range(settings.max_retries + 1):
            self._heard = self._said = None
            self._is_under_way = True
            try:
                reply = yield from self._attempt(body, headers)
                self._is_under_way = False
                return reply
            except KimiError as err:
                self._is_under_way = False
                self._is_doubtful = self._is_doubtful or may_be_billed(err)
                yield HangUp()
                self._refuse_repeat(err)
                standing = Standing(
                    repeats, settings.max_retries, self._call.manner.place.is_gateway, settings.world.draw()
                )
                pause_s = pause_before_retry_s(err, standing)
                if pause_s is None:
                    raise
            yield Sleep(pause_s)
        raise AssertionError("the last attempt either answers or raises")

    def _attempt(self, body: bytes, headers: dict[str, str]) -> Logic[Reply]:
        head: Head = yield Post(body, headers)
        is_good = 200 <= head.status < 300
        if is_good and head.headers.get("content-type", _STREAM).lower().startswith(_STREAM):
            return (yield from self._streamed(head))
        content: bytes = yield Read(whole=True)
        answer = Answer(head.status, head.headers, content)
        now_s = self._settings.world.now_s()
        if not is_good:
            raise refusal(answer, self._settings.endpoint, now_s)
        held = read_body(answer)
        if held.get("error"):  # the gateway had begun to keep the connection alive, so the status was out
            raise refusal(answer, self._settings.endpoint, now_s)
        self._said = partial_reply(answer, held, self._reading())  # what it cost is told by a bad answer too
        reply = self._said = read_reply(answer, held, self._reading())
        if reply.thinking:
            yield ThinkingDelta(reply.thinking)
        if reply.text:
            yield TextDelta(reply.text)
        return reply

    def _streamed(self, head: Head) -> Logic[Reply]:
        heard = Hearing(head, self._reading(), calls_wanted=bool(self._call.manner.tools))
        self._heard = heard
        while heard.ended is None:
            data = yield from self._next(heard)
            if self._hold is not None:
                self._hold.holder = self._settings.world.caller()  # who gets the events now
            yield from heard.feed(data)
        if isinstance(heard.ended, Broken):
            raise self._error_of(heard.ended, head)
        yield from heard.opening()
        yield HangUp(is_over=True)
        return heard.reply()

    def _next(self, heard: Hearing) -> Logic[bytes]:
        """The next bytes. Where the connection breaks after the last word, that is the end of the body."""
        try:
            data: bytes = yield Read()
        except ConnectionFailed:
            if not heard.is_whole:
                raise
            return b""
        return data

    def _error_of(self, broken: Broken, head: Head) -> KimiError:
        request_id = Answer(head.status, head.headers, b"").request_id
        if is_incomplete(broken.fault):
            return ConnectionFailed(
                "the stream ended before the answer was whole", was_sent=True, request_id=request_id
            )
        return refusal_in_stream(broken.fault, self._settings.endpoint, request_id)

    def _refuse_repeat(self, err: KimiError) -> None:
        """Raises where something has been given out."""
        if self._heard is not None and self._heard.has_content:
            raise self._cut(self._heard, err) from err

    def _cut(self, heard: Hearing, err: KimiError) -> StreamCut:
        reply = heard.reply()
        if reply.cost is None:
            cost = self._estimated_cost(reply)
            reply = replace(reply, cost=cost, cost_source="unknown" if cost is None else "estimate")
        return StreamCut(
            f"the answer broke off after {len(reply.text)} characters of text and "
            f"{len(reply.thinking or '')} of thinking: {err}. chat.resume() continues it",
            reply=reply,
        )

    def _body(self) -> bytes:
        wish = replace(self._call.wish, limit=self._bounds.limit)
        try:
            return request_body(self._call.manner, self._call.turns, wish)
        except UnicodeEncodeError as err:
            raise InvalidInput(f"a text of the call holds half a character: {err.reason}") from err

    def _reading(self) -> Reading:
        manner = self._call.manner
        return Reading(
            manner.place,
            self._settings.tariff,
            datetime.fromtimestamp(self._settings.world.now_s(), UTC).date(),
            effort=manner.effort or EFFORT_UNSET,
            ttl=manner.ttl or "",
            opening=self._call.wish.opening,
        )

    # --- money ------------------------------------------------------------------------------------------------

    def _reserve(self) -> Logic[Hold]:
        """Sets the most that the call can cost aside where there is a limit. Without an output limit of its own
        the call gets what half of the money left is enough for, so that others can go on beside it. Raises
        `MaxCostReached`."""
        account, world = self._settings.account, self._settings.world
        until_s = world.clock_s() + self._settings.patience_s
        while True:
            tightest = account.tightest()
            if tightest is None:
                return Hold(account.meters, None)
            me = world.caller()
            fitting = self._fitting(tightest[1])
            if fitting is not None and (hold := account.hold(fitting.most(self._ttl), me)) is not None:
                self._bounds = fitting
                return hold
            # What a stream has set aside that the same thread holds open never comes back while this waits.
            free = account.tightest(with_reserved=True, but_of=me)
            if free is None or self._fitting(free[1]) is None or world.clock_s() > until_s:
                raise self._too_dear(tightest[0])
            yield Sleep(_LOOK_AGAIN_S)  # calls under way may leave enough when they end

    def _fitting(self, left: Decimal) -> Bounds | None:
        """The bounds with an output limit that this much money covers; None where there is none."""
        bounds = self._bounds
        limit = bounds.limit
        if limit is None and bounds.price is not None:
            with exact():
                half = left / 2
            share = bounds.price.output_for(half, bounds.prompt.high, self._ttl)
            limit = max(SMALLEST_DEFAULT_TOKENS, min(share, DEFAULT_OUTPUT_TOKENS))
        trial = replace(bounds, limit=limit)
        most = trial.most(self._ttl)
        return trial if most is not None and most <= left else None

    def _too_dear(self, meter: Meter) -> MaxCostReached:
        bounds = self._bounds
        model = self._call.manner.model
        limit = bounds.limit or SMALLEST_DEFAULT_TOKENS
        most = replace(bounds, limit=limit).most(self._ttl)
        max_cost = meter.max_cost or Decimal(0)
        spent, reserved = meter.spent, meter.reserved
        if most is None:
            text = (
                f"max_cost is {dollars(max_cost)} USD, but no price of {model} is known here, so it cannot be "
                'kept; give prices={"input": "2.00", "output": "10.00", …} in USD per million tokens'
            )
        else:
            with exact():
                left = max_cost - spent - reserved
            aside = f", {dollars(reserved)} set aside for calls under way" if reserved else ""
            text = (
                f"the call could cost {dollars(most)} USD (up to {bounds.prompt.high:,} prompt tokens and "
                f"{limit:,} of output), but of max_cost {dollars(max_cost)} USD only {dollars(left)} is left "
                f"({dollars(spent)} spent{aside}); give a smaller max_completion_tokens or a larger max_cost"
            )
        return MaxCostReached(text, max_cost=max_cost, spent=spent, reserved=reserved, bound=most)

    @property
    def _ttl(self) -> str:
        return self._call.manner.ttl or ""

    def _settle(self, hold: Hold, reply: Reply) -> None:
        """Counts an answer that is known to have been given."""
        most = None if reply.usage is not None else self._most_heard(reply)
        hold.settle(reply.usage, reply.cost, self._estimated_cost(reply), most)

    def _settle_failed(self, hold: Hold, err: KimiError) -> None:
        """Counts a call that failed: what is known of its cost, else an estimate, and as the most the whole bound
        where the other side may still be at work on it."""
        if isinstance(err, StreamCut):
            reply = err.reply
            if reply.cost_source in _BILLS:
                self._settle(hold, reply)
            else:
                at_work = isinstance(err.__cause__, NoAnswerInTime)
                hold.settle_broken(reply.cost, hold.bound if at_work else self._most_heard(reply))
        elif isinstance(err, BadReply) and self._said is not None and self._said.cost_source in _BILLS:
            self._settle(hold, self._said)

    def _settle_left(self, hold: Hold) -> None:
        """Counts a call that was left: what came of it, and its bill where that came too."""
        reply = self._said if self._heard is None else self._heard.reply()
        if reply is not None and reply.cost_source in _BILLS:
            self._settle(hold, reply)
        elif reply is not None:
            hold.settle_broken(self._estimated_cost(reply), self._most_heard(reply))
        else:
            hold.settle_broken(self._likely_cost(_NO_TOKENS), self._most(_NO_TOKENS))

    def _most(self, output: TokenEstimate) -> Decimal | None:
        price = self._bounds.price
        return None if price is None else price.bound(self._bounds.prompt.high, output.high, self._ttl)

    def _most_heard(self, reply: Reply) -> Decimal | None:
        return self._most(most_written(_written_bytes(reply)))

    def _likely_cost(self, output: TokenEstimate) -> Decimal | None:
        price = self._bounds.price
        return None if price is None else price.likely(self._bounds.prompt, output)

    def _estimated_cost(self, reply: Reply) -> Decimal | None:
        """By the cards, for an answer whose cost nobody says: of its usage or, without one, of its length."""
        price = self._bounds.price
        if price is not None and reply.usage is not None:
            return price.cost(reply.usage)
        said = "".join([reply.text, reply.thinking or "", *(call.arguments for call in reply.tool_calls)])
        return self._likely_cost(text_size(said.encode("utf-8", "replace")).estimate())


def _written_bytes(reply: Reply) -> int:
    """Bytes of all that the model wrote, its message as JSON being longer than the parts together."""
    return len(encode(reply.message))
