"""Estimates without a vocabulary: bounds that always hold, and a likely count near the real one.

Where the shared vocabulary is present, real counts are made with it by a small encoder written here from the
published facts (ranks and split pattern); it is first checked against published counts.
"""

import re
import sys
import unicodedata
from base64 import b64decode
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pricing.cost import cost_of
from pricing.estimate import (
    ASCII_BYTES_PER_TOKEN_MAX,
    OTHER_BYTES_PER_TOKEN_MAX,
    Estimate,
    TextSize,
    estimate_cost,
    estimate_prompt,
    estimate_tokens,
    text_size,
)
from pricing.rates import Rates
from pricing.usage import TokenUsage
from support.shared import shared_path

PRO = Rates(input=2000, cache_read=200, write_5m=2000, write_1h=4000, output=10_000)

PROSE = {
    "english": "The gateway books every token exactly once. A request that is cut in the middle is settled "
    "from what was delivered, and the row says that its numbers are estimated.",
    "german": "Gestern Nachmittag traf ich eine alte Bekannte an der Haltestelle, und wir gingen zusammen in ein "
    "kleines Café. Für die größere Wohnung zahlt sie jetzt nur noch die Hälfte.",
    "chinese": "昨天下午三点，小王在地铁站遇见了老同学李娜，两人一起去咖啡馆聊了很久。她说最近搬到了郊区，"
    "每天通勤要一个半小时，但是房租便宜了一半。",
    "japanese": "昨日の午後、駅前で古い友人に会いました。二人で喫茶店に入り、長い時間話をしました。",
    "russian": "Вчера днём у станции метро я встретил старую знакомую, и мы вместе пошли в кафе.",
    "korean": "어제 오후에 지하철역에서 오랜 친구를 만나 함께 카페에 갔습니다.",
    "json": '{"id":"cmpl-1","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop",'
    '"message":{"role":"assistant","content":"Hello"}}]}',
    "code": "def settle(row: LedgerRow, used: Used | None) -> None:\n    if used is None:\n        return\n"
    "    row.prompt_tokens = used.usage.prompt\n",
}


class Vocabulary:
    """Counts tokens as Kimi's tokenizer does: split by the published pattern, then merge by rank."""

    def __init__(self, path: Path) -> None:
        lines = (line.split() for line in path.read_bytes().splitlines())
        self.ranks = {b64decode(token): int(rank) for token, rank in lines}
        self._pattern = re.compile(_split_pattern())

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        return sum(self._merge(match.group().encode()) for match in self._pattern.finditer(text))

    def _merge(self, piece: bytes) -> int:
        parts = [piece[i : i + 1] for i in range(len(piece))]
        while len(parts) > 1:
            pairs = [self.ranks.get(left + right, sys.maxsize) for left, right in pairwise(parts)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] == sys.maxsize:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return len(parts)


def _split_pattern() -> str:
    """The split pattern without the set operations that `re` lacks: classes are written out as ranges."""
    upper, lower, letter, number = (bytearray(sys.maxunicode + 1) for _ in range(4))
    for point in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(point))
        if category in ("Cn", "Cs", "Co"):
            continue
        mark, han = category[0] == "M", bool(_HAN.match(chr(point)))
        upper[point] = (mark or category in ("Lu", "Lt", "Lm", "Lo")) and not han
        lower[point] = (mark or category in ("Ll", "Lm", "Lo")) and not han
        letter[point] = category[0] == "L"
        number[point] = category[0] == "N"
    up, low, any_letter, digit = (_ranges(flags) for flags in (upper, lower, letter, number))
    lead, tail = f"[^\\r\\n{any_letter}{digit}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return "|".join(
        (
            f"{_HAN.pattern}+",
            f"{lead}[{up}]*[{low}]+{tail}",
            f"{lead}[{up}]+[{low}]*{tail}",
            f"[{digit}]{{1,3}}",
            f" ?[^\\s{any_letter}{digit}]+[\\r\\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )


_HAN = re.compile("[⺀-⿟々〇〡-〩〸-〻㐀-䶿一-鿿豈-﫿\U00020000-\U0003ffff]")


def _ranges(flags: bytearray) -> str:
    runs = re.finditer(b"\x01+", flags)
    return "".join(f"\\U{run.start():08x}-\\U{run.end() - 1:08x}" for run in runs)


@cache
def _load(path: Path) -> Vocabulary:
    return Vocabulary(path)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return _load(shared_path("tokenizer/tiktoken.model"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", 4),
        ("你好", 1),
        ("北京今天天气怎么样？请查一下。", 9),
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("123456789", 3),
        ("naïve café 🙂", 5),
        ("   \n\n  x", 3),
        ("こんにちは", 5),
        ("a" * 100, 13),
    ],
)
def test_the_encoder_of_these_tests_gives_the_published_counts(
    vocabulary: Vocabulary, text: str, tokens: int
) -> None:
    assert vocabulary.count(text) == tokens


def test_the_vocabulary_is_what_the_bounds_are_derived_from(vocabulary: Vocabulary) -> None:
    sizes = {(len(token) - len(other), len(other)) for token in vocabulary.ranks for other in (_other(token),)}

    assert sum(len(token) == 1 for token in vocabulary.ranks) == 256, "each byte is a token: never more than bytes"
    assert max(ascii_bytes + other for ascii_bytes, other in sizes) == ASCII_BYTES_PER_TOKEN_MAX
    assert max(other for _, other in sizes) == OTHER_BYTES_PER_TOKEN_MAX
    assert all(
        ascii_bytes * OTHER_BYTES_PER_TOKEN_MAX + other * ASCII_BYTES_PER_TOKEN_MAX
        <= ASCII_BYTES_PER_TOKEN_MAX * OTHER_BYTES_PER_TOKEN_MAX
        for ascii_bytes, other in sizes
    )


def _other(token: bytes) -> bytes:
    return token.translate(None, bytes(range(128)))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=60) | st.text("aA1 .*\n你好é🙂\u2028", max_size=60))
def test_the_real_count_lies_within_the_bounds(vocabulary: Vocabulary, text: str) -> None:
    real = vocabulary.count(text)
    coarse, fine = estimate_tokens(len(text.encode())), text_size(text.encode()).estimate()

    assert fine.low <= real <= fine.high
    assert coarse.low <= real <= coarse.high


@pytest.mark.parametrize(
    "text", [" " * 256, "*" * 256, "如您发现自己的词条内容不准确或不完善", "\x00\x01\x02", "🜁🜂🜃", "\u200b" * 40]
)
def test_the_extremes_lie_within_the_bounds(vocabulary: Vocabulary, text: str) -> None:
    estimate = text_size(text.encode()).estimate()

    assert estimate.low <= vocabulary.count(text) <= estimate.high


def test_the_lower_bound_is_reached(vocabulary: Vocabulary) -> None:
    longest = "如您发现自己的词条内容不准确或不完善"

    assert vocabulary.count(longest) == text_size(longest.encode()).estimate().low == 1
    assert vocabulary.count("*" * 256) == estimate_tokens(256).low == 1


@pytest.mark.parametrize("language", PROSE)
def test_the_likely_count_is_near_the_real_one(vocabulary: Vocabulary, language: str) -> None:
    text = PROSE[language]

    assert text_size(text.encode()).estimate().tokens == pytest.approx(vocabulary.count(text), rel=0.35)


def test_a_han_character_counts_as_about_half_a_token_and_not_as_three_bytes_of_prose() -> None:
    estimate = text_size(("你" * 100).encode()).estimate()

    assert estimate.tokens == 50
    assert estimate_tokens(300).tokens > estimate.tokens


def test_sizes_tell_ascii_han_and_the_rest_apart() -> None:
    assert text_size(b"plain") == TextSize(5)
    assert text_size("a你é好🙂".encode()) == TextSize(1 + 3 + 2 + 3 + 4, 3 + 2 + 3 + 4, 2)
    assert text_size(b"") == TextSize()


@given(st.text(max_size=50), st.text(max_size=50))
def test_sizes_of_pieces_add_up(left: str, right: str) -> None:
    assert text_size(left.encode()) + text_size(right.encode()) == text_size((left + right).encode())


@given(st.integers(0, 10**9), st.data())
def test_an_estimate_is_ordered_for_any_sizes(text_bytes: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(0, text_bytes))
    han = data.draw(st.integers(0, other // 3))

    estimate = estimate_tokens(text_bytes, non_ascii_bytes=other, han_characters=han)

    assert estimate.low <= estimate.tokens <= estimate.high == text_bytes
    assert (estimate.low > 0) == (text_bytes > 0)


@pytest.mark.parametrize("sizes", [(-1, 0, 0), (10, 11, 0), (10, 5, 2), (10, -1, 0), (10, 3, -1)])
def test_sizes_that_contradict_each_other_are_refused(sizes: tuple[int, int, int]) -> None:
    text_bytes, other, han = sizes

    with pytest.raises(ValueError, match="contradict"):
        estimate_tokens(text_bytes, non_ascii_bytes=other, han_characters=han)


def test_a_prompt_costs_its_frame_as_well() -> None:
    text = TextSize(1000)

    one, two = estimate_prompt(text, messages=1), estimate_prompt(text, messages=2)

    assert one == text.estimate() + Estimate(14, 0, 14 + 64)
    assert two.tokens - one.tokens == 13
    assert estimate_prompt(text, messages=1, tools=True).tokens - one.tokens == 40


def test_an_estimated_cost_has_a_bound_that_covers_both_ends() -> None:
    prompt, output = Estimate(250, 4, 1000), Estimate(100, 2, 400)

    estimate = estimate_cost(prompt, output, PRO)

    assert estimate.cost == cost_of(TokenUsage(input=250, output=100), PRO)
    assert estimate.cost.nano == 1_500_000
    assert estimate.bound_nano == 1000 * 4000 + 400 * 10_000 - 1_500_000


@given(
    st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 2000)
)
def test_whatever_was_really_used_costs_within_the_bound(
    fresh: int, read: int, write_5m: int, write_1h: int, output: int
) -> None:
    real = TokenUsage(input=fresh, cache_read=read, write_5m=write_5m, write_1h=write_1h, output=output)
    prompt = Estimate(real.prompt // 3, real.prompt // 50, real.prompt * 4)

    estimate = estimate_cost(prompt, Estimate(output // 2, 0, output * 4), PRO)

    assert estimate.cost.nano is not None
    assert estimate.bound_nano is not None
    assert abs((cost_of(real, PRO).nano or 0) - estimate.cost.nano) <= estimate.bound_nano


def test_an_estimate_without_a_price_has_no_bound() -> None:
    estimate = estimate_cost(Estimate(1, 1, 1), Estimate(1, 1, 1), Rates(input=2000))

    assert (estimate.cost.nano, estimate.bound_nano) == (None, None)
