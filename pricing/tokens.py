"""How many tokens a text or a chat has: with Kimi's vocabulary, or by a labelled estimate without it.

Pure: the vocabulary comes in as a `TokenCounter`, of which `pricing.vocabulary` has the real one. Counting a text
of 1M tokens takes about 0.4 s, so a server calls `count_text` and `count_chat` in a thread, never on its event
loop; the encoding itself releases the GIL.

    TokenizerError
      VocabularyError     the file is not there or not the one that is expected    (pricing.vocabulary)
      FetchError          it could not be downloaded                               (pricing.fetch)

Source of pattern, ids and limits: `kimi-api-facts.md` 6.1. The vocabulary is that of K2, K2.7-code and K3; that
K3.1 has the same is inferred.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from pricing.estimate import Estimate, TextSize, text_size
from pricing.xtml import Prompt, frame_chat

Method = Literal["vocabulary", "estimate"]


class TokenizerError(Exception):
    """Base of the tree."""


@dataclass(frozen=True, slots=True)
class VocabularyPin:
    """The one file that is taken for the vocabulary."""

    name: str
    size_bytes: int
    sha256: str
    ranks: int  # tokens in the file; special tokens follow them

    def mismatch(self, *, size_bytes: int, sha256: str) -> str | None:
        """What tells a file apart from the pinned one, None where nothing does."""
        if size_bytes != self.size_bytes:
            return f"it has {size_bytes:,} bytes instead of {self.size_bytes:,}"
        if sha256 != self.sha256:
            return f"its sha256 is {sha256} instead of {self.sha256}"
        return None


KIMI_K3: Final = VocabularyPin(
    name="tiktoken.model",
    size_bytes=2_795_286,
    sha256="b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103",
    ranks=163_584,
)

# Texts are cut into these pieces before bytes are merged. `&&` is a set intersection: not for Python's `re`.
SPLIT_PATTERN: Final = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

SPECIAL_COUNT: Final = 256
# Offsets from the first special id, by K3's names; K2 calls the third `<|im_end|>` and uses others of its own.
_SPECIAL_NAMES: Final[Mapping[int, str]] = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    254: "[UNK]",
    255: "[PAD]",
}

# The reference tokenizer hands no more than this to the encoder at once, so counts of huge texts depend on it.
TEXT_CHARACTERS_MAX: Final = 400_000
RUN_CHARACTERS_MAX: Final = 25_000

_RUN: Final = re.compile(r"\s+|\S+")  # `\s` is what str.isspace() says, as in the reference
_SPACE: Final = re.compile(r"\s")


def special_tokens(pin: VocabularyPin = KIMI_K3) -> dict[str, int]:
    """All special tokens of a vocabulary by name; those without a use here have a reserved name."""
    return {
        _SPECIAL_NAMES.get(offset, f"<|reserved_{offset}|>"): pin.ranks + offset for offset in range(SPECIAL_COUNT)
    }


def split_text(
    text: str, *, characters_max: int = TEXT_CHARACTERS_MAX, run_max: int = RUN_CHARACTERS_MAX
) -> Iterator[str]:
    """The pieces that the reference tokenizer encodes one by one; joined they are the text.

    A cut after every `characters_max` characters and, within these, after every `run_max` characters of a run of
    white space or of anything else. An ordinary text below the first limit is one piece.
    """
    for start in range(0, len(text), characters_max):
        part = text[start : start + characters_max]
        if _may_have_long_run(part, run_max):
            yield from _split_runs(part, run_max)
        else:
            yield part


def _may_have_long_run(text: str, run_max: int) -> bool:
    """False where no run exceeds the limit. A longer one would fill at least one of these blocks of half of it.

    Looking at blocks takes some ms for 4 MB; listing the runs takes longer than encoding, and holds the GIL.
    """
    block = (run_max + 1) // 2
    return any(
        text[start : start + block].isspace() or _SPACE.search(text, start, start + block) is None
        for start in range(0, len(text) - block + 1, block)
    )


def _split_runs(text: str, run_max: int) -> Iterator[str]:
    start = 0
    for run in _RUN.finditer(text):
        for cut in range(run.start() + run_max, run.end(), run_max):
            yield text[start:cut]
            start = cut
    yield text[start:]


class TokenCounter(Protocol):
    """Counts tokens with a vocabulary. May be used from several threads at once; blocks the one that calls."""

    def count(self, text: str) -> int:
        """The tokens of ordinary text: what looks like a control token is text like any other."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens and how sure it is. The true one lies from `low` to `high`.

    `exact`: counted with the vocabulary and nothing assumed; then low, tokens and high are the same and `error` is
    empty. Otherwise `error` says what is not known and how far off the count can be. `high` is None where there
    are `media_parts`: images and video are in none of the numbers, because what they cost is not published.
    """

    tokens: int
    low: int
    high: int | None
    exact: bool
    method: Method
    error: str = ""
    media_parts: int = 0


def count_text(text: str, counter: TokenCounter | None = None) -> TokenCount:
    """The tokens of a text alone: exact with a counter, a labelled estimate without one."""
    if counter is None:
        estimate = _size(text).estimate()
        return TokenCount(
            estimate.tokens,
            estimate.low,
            estimate.high,
            exact=False,
            method="estimate",
            error=_estimated(estimate),
        )
    tokens = counter.count(text)
    return TokenCount(tokens, tokens, tokens, exact=True, method="vocabulary")


def count_chat(request: Mapping[str, object], counter: TokenCounter | None = None) -> TokenCount:
    """The prompt tokens of a chat completions body: messages, thoughts, tool calls, tools, effort, formats.

    Never exact: the frame around the texts is K3's, and that K3.1 has the same is inferred. `low` has no frame at
    all, `high` twice as much and, where the request names no effort, the message that a server may add for its
    default. Without a counter the texts are estimated too. Media are not counted, base64 least of all.
    Raises `pricing.xtml.ChatError` for a body that is no chat.
    """
    prompt = frame_chat(request)
    texts = _estimate(prompt.texts) if counter is None else _count(prompt.texts, counter)
    frame_max = 2 * prompt.frame_tokens + prompt.unsent_tokens
    return TokenCount(
        tokens=texts.tokens + prompt.frame_tokens,
        low=texts.low,
        high=None if prompt.media_parts else texts.high + frame_max,
        exact=False,
        method="estimate" if counter is None else "vocabulary",
        error="; ".join(_errors(prompt, frame_max, texts if counter is None else None)),
        media_parts=prompt.media_parts,
    )


def _count(texts: Iterable[str], counter: TokenCounter) -> Estimate:
    """Each distinct text is encoded once: names and keys repeat in every tool call."""
    tokens = sum(counter.count(text) * times for text, times in Counter(texts).items())
    return Estimate(tokens, tokens, tokens)


def _estimate(texts: Sequence[str]) -> Estimate:
    return sum((_size(text) for text in texts), TextSize()).estimate()


def _errors(prompt: Prompt, frame_max: int, texts: Estimate | None) -> Iterator[str]:
    if texts is not None:
        yield _estimated(texts)
    yield (
        f"{prompt.frame_tokens} tokens of frame are K3's, which K3.1 is inferred to share: "
        f"allow for 0 to {frame_max}"
    )
    if prompt.media_parts:
        yield f"{prompt.media_parts} media parts are not counted: what they cost is not published"
    yield from prompt.doubts


def _estimated(estimate: Estimate) -> str:
    return (
        f"text estimated from its size, {estimate.low} to {estimate.high} tokens: there is no vocabulary "
        "(`kimi-pricing tokenizer fetch` gets it)"
    )


def _size(text: str) -> TextSize:
    try:
        return text_size(text.encode())
    except UnicodeEncodeError:
        # Half of a surrogate pair: the encoder takes it for U+FFFD, two halves in a row for their character.
        return text_size(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode())
