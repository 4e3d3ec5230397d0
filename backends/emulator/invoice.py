"""What the emulator charges: one line for each answered request, in integer nano-dollars.

A cache write replaces the input price of the tokens written. An answer that broke off, or that the client left, is
charged with its whole prompt and the output generated until then; a refusal and an answer that broke before its
first token are not charged. Where the operator brings a key of its own to a reseller, the line holds what the
provider charges for that key and the reseller's fee of a twentieth.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from backends.emulator.prices import Sheet, usd_text
from backends.json import JsonObject

Ttl = Literal["5m", "1h"]
FEE_DIVISOR: Final = 20
"""OpenRouter's share for requests on the operator's own provider key: 5 % (its documentation of BYOK)."""


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """Where the tokens of one prompt come from; disjoint, their sum is the prompt. `ttl` is the lifetime the
    cached part is locked to, empty where nothing was read or written."""

    input: int
    cache_read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    ttl: Ttl | Literal[""] = ""

    @property
    def total(self) -> int:
        """All tokens of the prompt."""
        return self.input + self.cache_read + self.write_5m + self.write_1h

    @property
    def written(self) -> int:
        """Tokens written at either lifetime."""
        return self.write_5m + self.write_1h


@dataclass(frozen=True, slots=True)
class Line:
    """One answer on the invoice. `output` holds thought, text and calls, in tokens."""

    id: str
    model: str
    prompt: PromptSplit
    output: int
    nano: int
    disconnected: bool
    byok: bool = False

    def shown(self) -> JsonObject:
        """The line as `GET /emulator/invoice` gives it."""
        return {
            "id": self.id,
            "model": self.model,
            "ttl": self.prompt.ttl,
            "prompt_tokens": self.prompt.total,
            "input": self.prompt.input,
            "cache_read": self.prompt.cache_read,
            "write_5m": self.prompt.write_5m,
            "write_1h": self.prompt.write_1h,
            "output": self.output,
            "usd": usd_text(self.nano),
            "disconnected": self.disconnected,
            "byok": self.byok,
        }


def charge_nano(prompt: PromptSplit, output: int, prices: Sheet) -> int:
    """What one answer costs, in nano-dollars."""
    return (
        prompt.input * prices.input
        + prompt.cache_read * prices.cache_read
        + prompt.write_5m * prices.write_5m
        + prompt.write_1h * prices.write_1h
        + output * prices.output
    )


def fee_nano(charge: int) -> int:
    """A reseller's fee on a provider's charge. Raises `ValueError` for one that does not divide: exact or not."""
    fee, rest = divmod(charge, FEE_DIVISOR)
    if rest:
        raise ValueError(f"{charge} nano-dollars have no exact fee; the sheet's prices must be multiples of 20")
    return fee


class Invoice:
    """Lines in the order of their ends. The oldest beyond `max_lines` are summed up; the total stays exact."""

    def __init__(self, max_lines: int) -> None:
        self._lines: deque[Line] = deque()
        self._max_lines = max_lines
        self._total_nano = 0
        self._folded_lines = 0
        self._folded_nano = 0

    @property
    def total_nano(self) -> int:
        """The sum of all lines, the folded ones included."""
        return self._total_nano

    def add(
        self,
        *,
        id: str,
        model: str,
        prompt: PromptSplit,
        output: int,
        prices: Sheet,
        disconnected: bool,
        byok: bool = False,
    ) -> None:
        """Charges one answer."""
        nano = charge_nano(prompt, output, prices)
        if byok:
            nano += fee_nano(nano)
        self._lines.append(Line(id, model, prompt, output, nano, disconnected, byok))
        self._total_nano += nano
        if len(self._lines) > self._max_lines:
            self._folded_lines += 1
            self._folded_nano += self._lines.popleft().nano

    def shown(self) -> JsonObject:
        """`{"total_usd", "lines", "folded"}`; `folded` counts the lines no longer listed and their dollars."""
        return {
            "total_usd": usd_text(self._total_nano),
            "lines": [line.shown() for line in self._lines],
            "folded": {"lines": self._folded_lines, "usd": usd_text(self._folded_nano)},
        }
