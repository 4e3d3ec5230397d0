"""What tokens cost at the server that is asked, and the most that a call could cost before it is sent. Pure."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from kimi_sdk.amounts import exact
from pricing.cost import billed_rate, cost_of
from pricing.estimate import Estimate
from pricing.money import usd
from pricing.rates import CardBook, Rates, WriteRule
from pricing.usage import Meter as MeterName
from pricing.usage import TokenUsage

DEFAULT_OUTPUT_TOKENS: Final = 131_072
"""Where an answer stops without an output limit (platform.kimi.ai/docs/api/chat, K3)."""

SMALLEST_DEFAULT_TOKENS: Final = 16_000
"""The vendor recommends at least as many for thinking and answer together; a limit that nobody named is lowered to
what money is left for, but not below this."""

_HIGHSPEED: Final = "-highspeed"


@dataclass(frozen=True, slots=True)
class Price:
    """The rates of one model, nano-dollars per token, and their tier where a card states it."""

    rates: Rates
    write_rule: WriteRule = "replaces"
    tier: str | None = None

    def cost(self, usage: TokenUsage) -> Decimal | None:
        """Exact dollars; None where a meter that was used has no price."""
        with exact():
            return cost_of(usage, self.rates, write_rule=self.write_rule).usd

    def dearest_prompt(self, ttl: str) -> int | None:
        """The highest rate that a prompt token can have; a write for one hour only where it is asked for."""
        meters: list[MeterName] = ["input", "cache_read", "write_5m"]
        if ttl == "1h":
            meters.append("write_1h")
        rates = [billed_rate(self.rates, meter, write_rule=self.write_rule) for meter in meters]
        known = [rate for rate in rates if rate is not None]
        return max(known, default=None)

    def bound(self, prompt_max: int, output_max: int, ttl: str) -> Decimal | None:
        """The most that so many tokens can cost, in exact dollars."""
        prompt = self.dearest_prompt(ttl)
        if prompt is None or self.rates.output is None:
            return None
        with exact():
            return usd(prompt_max * prompt + output_max * self.rates.output)

    def output_for(self, money: Decimal, prompt_max: int, ttl: str) -> int:
        """How many output tokens this money buys after the prompt; 0 where it does not reach, or no price is
        known."""
        prompt = self.bound(prompt_max, 0, ttl)
        rate = self.rates.output
        if prompt is None or rate is None or money < prompt:
            return 0
        with exact():
            return DEFAULT_OUTPUT_TOKENS if rate == 0 else int((money - prompt) / usd(rate))

    def likely(self, prompt: Estimate, output: Estimate) -> Decimal | None:
        """The likely cost of tokens that nobody counted, the prompt taken as fresh."""
        return self.cost(TokenUsage(input=prompt.tokens, output=output.tokens))


@dataclass(frozen=True, slots=True)
class Tariff:
    """Whose prices count: `own`, given to the chat, before the cards of `seller` ("" is nobody).

    `any_seller`: for a bound the dearest card of any seller counts, because the gateway chooses among them.
    """

    cards: CardBook
    seller: str
    own: Price | None = None
    any_seller: bool = False

    def price(self, model: str, on: date) -> Price | None:
        """What an answer of this model costs on this day (UTC); None where nobody says."""
        if self.own is not None:
            return self.own
        card = self.cards.find(self.seller, model, on) if self.seller else None
        return None if card is None else Price(card.rates, card.write_rule, card.tier)

    def price_before(self, model: str, tier: str | None, on: date) -> Price | None:
        """What an answer could cost before it is asked for: the same, or the dearest card for the model and
        tier."""
        found = self.price(model, on)
        if found is not None or not self.any_seller:
            return found
        name = _bare(model)
        if tier == "highspeed" and not name.endswith(_HIGHSPEED):
            name += _HIGHSPEED
        cards = [card for card in self.cards.in_force(on) if _bare(card.model) == name]
        dearest = max(cards, key=lambda card: (card.rates.output or 0, card.rates.input or 0), default=None)
        return None if dearest is None else Price(dearest.rates, dearest.write_rule, dearest.tier)


def _bare(model: str) -> str:
    return model.rpartition("/")[2].lower()
