"""The emulator's prefix cache, alone: blocks, locked lifetimes, renewal, bounds, and what it all adds up to."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.cache import TTL_S, PrefixCache
from backends.emulator.invoice import Invoice, PromptSplit, Ttl, charge_nano
from backends.emulator.prices import sheet
from backends.emulator.prompt import Prompt

BLOCK = 4
PRICES = sheet(input="2.00", cache_read="0.20", write_5m="2.00", write_1h="4.00", output="10.00")


def admit(
    cache: PrefixCache, tokens: list[int], *, owner: str = "a", ttl: Ttl = "5m", now_s: float = 0.0
) -> PromptSplit:
    prompt = Prompt(b"".join(token.to_bytes(4, "big") for token in tokens))
    chain = prompt.chain(owner, BLOCK)
    split = cache.look(chain, prompt_tokens=len(tokens), ttl=ttl, now_s=now_s)
    cache.keep(chain, split, now_s=now_s)
    return split


def cache(max_blocks: int = 10_000) -> PrefixCache:
    return PrefixCache(block_tokens=BLOCK, max_blocks=max_blocks)


def test_the_first_prompt_is_written_in_whole_blocks() -> None:
    assert admit(cache(), list(range(11))) == PromptSplit(input=3, write_5m=8, ttl="5m")


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK])
def test_a_prompt_of_at_most_one_block_is_not_cached(length: int) -> None:
    held = cache()
    assert admit(held, [1] * length) == PromptSplit(input=length)
    assert admit(held, [1] * length) == PromptSplit(input=length)


def test_a_repeated_prompt_is_read_except_for_its_partial_block() -> None:
    held = cache()
    admit(held, list(range(11)))
    assert admit(held, list(range(11))) == PromptSplit(input=3, cache_read=8, ttl="5m")


def test_appended_text_is_written_at_the_locked_lifetime() -> None:
    held = cache()
    admit(held, list(range(9)), ttl="1h")
    assert admit(held, list(range(17)), ttl="5m") == PromptSplit(input=1, cache_read=8, write_1h=8, ttl="1h")


def test_a_hit_renews_the_whole_lifetime() -> None:
    held = cache()
    admit(held, list(range(9)))
    assert admit(held, list(range(9)), now_s=299).cache_read == 8
    assert admit(held, list(range(9)), now_s=598).cache_read == 8
    assert admit(held, list(range(9)), now_s=898).cache_read == 0


def test_another_lifetime_is_taken_after_the_full_expiry_only() -> None:
    held = cache()
    admit(held, list(range(9)), ttl="5m")
    assert admit(held, list(range(9)), ttl="1h", now_s=200).ttl == "5m"
    assert admit(held, list(range(9)), ttl="1h", now_s=500).write_1h == 8
    assert admit(held, list(range(9)), ttl="5m", now_s=4000).cache_read == 8


def test_a_changed_block_ends_the_read_there() -> None:
    held = cache()
    admit(held, list(range(17)))
    changed = [*range(4), 99, *range(5, 17)]
    assert admit(held, changed) == PromptSplit(input=1, cache_read=4, write_5m=12, ttl="5m")


def test_owners_share_nothing() -> None:
    held = cache()
    admit(held, list(range(9)), owner="org-1\nkimi-k3.1-pro")
    assert admit(held, list(range(9)), owner="org-2\nkimi-k3.1-pro").cache_read == 0
    assert admit(held, list(range(9)), owner="org-1\nkimi-k3.1-pro-highspeed").cache_read == 0


def test_a_full_store_drops_the_least_used_and_keeps_prefixes() -> None:
    held = cache(max_blocks=5)
    admit(held, list(range(9)), owner="old")
    admit(held, list(range(17)), owner="new")
    assert len(held) == 5
    assert admit(held, list(range(17)), owner="new").cache_read == 16
    assert admit(held, list(range(9)), owner="old").cache_read == 4  # its first block outlived its second


@dataclass
class Oracle:
    """What may be read, kept apart from the cache: for each prefix written its lifetime and when it ends."""

    prefixes: dict[tuple[int, ...], tuple[Ttl, float]] = field(default_factory=dict)

    def readable(self, tokens: list[int], now_s: float) -> tuple[int, Ttl | None]:
        depth, ttl = 0, None
        while (held := self.prefixes.get(tuple(tokens[: depth + BLOCK]))) is not None and held[1] > now_s:
            if depth + BLOCK >= len(tokens):
                break
            depth, ttl = depth + BLOCK, held[0]
        return depth, ttl

    def touched(self, tokens: list[int], ttl: Ttl, now_s: float) -> None:
        for end in range(BLOCK, len(tokens), BLOCK):
            self.prefixes[tuple(tokens[:end])] = (ttl, now_s + TTL_S[ttl])


Change = Literal["grow", "edit", "shrink", "same"]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which conversation
        st.sampled_from(["grow", "grow", "edit", "shrink", "same"]),
        st.integers(0, 30),  # how much, or where
        st.sampled_from(["5m", "1h"]),
        st.sampled_from([0.0, 1.0, 100.0, 299.0, 301.0, 3500.0, 3700.0]),
        st.integers(0, 500),  # output tokens
    ),
    max_size=25,
)


def changed(tokens: list[int], change: Change, amount: int, step: int) -> list[int]:
    match change:
        case "grow":
            return [*tokens, *range(step * 100, step * 100 + amount)]
        case "edit":
            at = amount % len(tokens)
            return [*tokens[:at], 10_000 + step, *tokens[at + 1 :]]
        case "shrink":
            return tokens[: max(1, len(tokens) - amount)]
        case "same":
            return tokens


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_reads_are_live_writes_and_the_invoice_is_the_sum_of_its_lines(
    steps: list[tuple[int, Change, int, Ttl, float, int]],
) -> None:
    held, oracle, invoice = cache(), Oracle(), Invoice(max_lines=1000)
    # Conversations 0 and 1 start alike: they share a prefix until one of them changes.
    conversations = {0: list(range(10)), 1: list(range(10)), 2: list(range(50, 60))}
    now_s, expected_nano = 0.0, 0
    for step, (which, change, amount, ttl, pause_s, output) in enumerate(steps, 1):
        now_s += pause_s
        tokens = conversations[which] = changed(conversations[which], change, amount, step)
        split = admit(held, tokens, ttl=ttl, now_s=now_s)
        readable, locked = oracle.readable(tokens, now_s)
        assert split.input + split.cache_read + split.write_5m + split.write_1h == len(tokens)
        assert min(split.input, split.cache_read, split.write_5m, split.write_1h) >= 0
        assert split.cache_read == readable
        assert split.input == len(tokens) - (len(tokens) - 1) // BLOCK * BLOCK
        if split.ttl:
            assert split.ttl == (locked or ttl)
            assert (split.write_1h if split.ttl == "5m" else split.write_5m) == 0
            oracle.touched(tokens, split.ttl, now_s)
        invoice.add(id=f"id-{step}", model="m", prompt=split, output=output, prices=PRICES, disconnected=False)
        written_1h = len(tokens) - readable - split.input if (locked or ttl) == "1h" else 0
        written_5m = len(tokens) - readable - split.input - written_1h
        expected_nano += (
            split.input * 2000 + readable * 200 + written_5m * 2000 + written_1h * 4000 + output * 10000
        )
    assert invoice.total_nano == expected_nano


def test_the_prices_of_the_published_example_come_out() -> None:
    split = PromptSplit(input=5_000, cache_read=80_000, write_1h=15_000, ttl="1h")
    assert charge_nano(split, 2_000, PRICES) == 106_000_000


def test_a_long_invoice_folds_its_oldest_lines_and_keeps_its_total() -> None:
    invoice = Invoice(max_lines=2)
    for number in range(5):
        invoice.add(
            id=str(number),
            model="m",
            prompt=PromptSplit(input=number),
            output=1,
            prices=PRICES,
            disconnected=False,
        )
    shown = invoice.shown()
    assert shown["total_usd"] == "0.00007"
    assert shown["folded"] == {"lines": 3, "usd": "0.000036"}
    assert isinstance(shown["lines"], list)
    assert len(shown["lines"]) == 2


def test_a_price_finer_than_a_nano_dollar_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_read"):
        sheet(input="2", cache_read="0.0005", write_5m="2", write_1h="4", output="10")
