"""Token counts without a vocabulary, from sizes of text: a likely count and bounds that always hold.

Kimi's tokenizer is a byte-level BPE: every token stands for one or more bytes of UTF-8, and all 256 single bytes
are tokens. So a text never has more tokens than bytes. In its vocabulary (163,584 tokens; the `tiktoken.model` of
K2 and K3, sha256 b6c497a7…) the longest token has 256 bytes (a run of spaces or asterisks), the longest one with
anything outside ASCII has 54, and every token with `a` ASCII and `n` other bytes satisfies a/256 + n/54 <= 1, so
a text has at least that many tokens. `tests/pricing/test_estimate.py` measures all three.

Pure arithmetic on sizes: cheap enough for every request, with nothing tokenised.
"""

from dataclasses import dataclass
from typing import Final

from pricing.cost import PROMPT_METERS, Cost, billed_rate, cost_of
from pricing.rates import Rates, WriteRule
from pricing.usage import TokenUsage

ASCII_BYTES_PER_TOKEN_MAX: Final = 256
OTHER_BYTES_PER_TOKEN_MAX: Final = 54

# Likely tokens per 100 units, measured with the vocabulary: English prose, JSON and code 20-30 per 100 bytes;
# Chinese prose 47 per 100 characters, terse text more; Cyrillic, Arabic, Thai, kana 22-27 per 100 bytes, Hangul
# 33-45.
_PER_100_ASCII_BYTES = 26
_PER_100_HAN = 50
_PER_100_OTHER_BYTES = 30

# The encoder's frame around messages, as counted by others for K3: 14, 13 for each message after the first, 40
# for tool declarations. Assistant and tool turns cost more (channels, one element per call and argument), hence
# an allowance in the upper bound. It is a stated margin, not a proof: the encoding of K3.1 is not published.
_FRAME = 14
_FRAME_PER_MESSAGE = 13
_FRAME_TOOLS = 40
_FRAME_PER_MESSAGE_MAX = 64
_FRAME_TOOLS_MAX = 256

_HAN_LEADS = bytes(range(0xE4, 0xEA))  # UTF-8 lead bytes of U+4000 to U+9FFF, nearly all Han
_ASCII = bytes(range(128))
_HAN_BYTES = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A count of tokens that was not measured: the likely one and the range the true one lies in."""

    tokens: int
    low: int
    high: int

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.tokens + other.tokens, self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class TextSize:
    """What the estimate wants to know of a text: its bytes in UTF-8, those outside ASCII, its Han characters."""

    text_bytes: int = 0
    non_ascii_bytes: int = 0
    han_characters: int = 0

    def __add__(self, other: "TextSize") -> "TextSize":
        return TextSize(
            self.text_bytes + other.text_bytes,
            self.non_ascii_bytes + other.non_ascii_bytes,
            self.han_characters + other.han_characters,
        )

    def estimate(self) -> Estimate:
        """The tokens of a text of this size."""
        return estimate_tokens(
            self.text_bytes, non_ascii_bytes=self.non_ascii_bytes, han_characters=self.han_characters
        )


def text_size(utf8: bytes) -> TextSize:
    """The size of a text, in about 2 ns per byte (pure ASCII: 0.1 ns)."""
    total = len(utf8)
    if utf8.isascii():
        return TextSize(total)
    other = utf8.translate(None, _ASCII)
    han = len(other) - len(other.translate(None, _HAN_LEADS))
    return TextSize(total, len(other), han)


def estimate_tokens(text_bytes: int, *, non_ascii_bytes: int = 0, han_characters: int = 0) -> Estimate:
    """The tokens of a text from its sizes; `high` and `low` are true bounds for every text of this size.

    For escaped JSON `high` still holds (an escape is never shorter than what it stands for), `low` does not.
    Without the finer counts all bytes are taken as ASCII: right bounds, a Chinese text guessed 1.6 times too long.
    Raises `ValueError` where the sizes contradict each other.
    """
    if not 0 <= non_ascii_bytes <= text_bytes or not 0 <= han_characters * _HAN_BYTES <= non_ascii_bytes:
        raise ValueError(
            f"sizes contradict each other: {text_bytes} bytes, {non_ascii_bytes} of them outside ASCII, "
            f"{han_characters} Han characters of 3 bytes"
        )
    ascii_bytes = text_bytes - non_ascii_bytes
    other_bytes = non_ascii_bytes - han_characters * _HAN_BYTES
    likely = _ceil_div(
        ascii_bytes * _PER_100_ASCII_BYTES + han_characters * _PER_100_HAN + other_bytes * _PER_100_OTHER_BYTES,
        100,
    )
    low = _ceil_div(
        ascii_bytes * OTHER_BYTES_PER_TOKEN_MAX + non_ascii_bytes * ASCII_BYTES_PER_TOKEN_MAX,
        ASCII_BYTES_PER_TOKEN_MAX * OTHER_BYTES_PER_TOKEN_MAX,
    )
    return Estimate(min(max(likely, low), text_bytes), low, text_bytes)


def estimate_prompt(text: TextSize, *, messages: int, tools: bool = False) -> Estimate:
    """The prompt tokens of a chat: its text (tool declarations included) plus the encoder's frame.

    The upper bound adds an allowance per message to the true bound of the text. Images and video are not in it.
    """
    inner = text.estimate()
    frame = _FRAME + _FRAME_PER_MESSAGE * max(messages - 1, 0) + (_FRAME_TOOLS if tools else 0)
    frame_max = _FRAME + _FRAME_PER_MESSAGE_MAX * messages + (_FRAME_TOOLS_MAX if tools else 0)
    return inner + Estimate(frame, 0, frame_max)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """A cost that was not measured. The true one is within `cost.nano` plus or minus `bound_nano`.

    `bound_nano` is None where the cost is unknown for want of a price.
    """

    cost: Cost
    bound_nano: int | None


def estimate_cost(
    prompt: Estimate, output: Estimate, rates: Rates, *, write_rule: WriteRule = "replaces"
) -> CostEstimate:
    """The likely cost of tokens that nobody reported, the prompt taken as fresh, and how far off it can be.

    The bound reaches from the shortest prompt at its cheapest rate (all read from cache) to the longest at its
    dearest (all written to cache).
    """
    cost = cost_of(TokenUsage(input=prompt.tokens, output=output.tokens), rates, write_rule=write_rule)
    priced = [billed_rate(rates, meter, write_rule=write_rule) for meter in PROMPT_METERS]
    prompt_rates = [rate for rate in priced if rate is not None]
    if cost.nano is None or rates.output is None or not prompt_rates:
        return CostEstimate(cost, None)
    low = prompt.low * min(prompt_rates) + output.low * rates.output
    high = prompt.high * max(prompt_rates) + output.high * rates.output
    return CostEstimate(cost, max(high - cost.nano, cost.nano - low))


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
