"""What conversations share in a target's cache: the tools, the system prompt, the first question.

The record of a conversation (`kimi_gateway.core.warmth`) knows what its own turns have left. A first turn has no
record, and yet most of its prompt may be warm: a fleet of agents sends the same tools and system prompt over and
over. This book remembers, for each target and model, which such beginnings it has seen and when, and corrects
itself by what is reported.

A prompt begins with tools, then the effort, then messages (kimi-api-facts.md 2.3), so there are three beginnings:
the tools; tools, effort and system messages; the same with the first turn after them. Sizes are guessed from bytes
until a report gives them. A target that promises no lifetime (an engine) is taken to keep what it has until a
report says otherwise, as in `warmth`.

Not every target that should read does: some hosts spread requests over several caches, some have none. So each
target has a trust, the part of predictions that came true of late, and less is expected where it is low.

In memory and of one process. Bounded: the beginning used longest ago goes first. Time is seconds of one monotonic
clock. A call takes 1 to 3 us. Not safe for threads.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from msgspec import Struct, UnsetType

from backends.messages import MessageHead
from kimi_gateway.core.digest import TurnMemo
from kimi_gateway.core.prefix import Prefix
from kimi_gateway.core.warmth import BLOCK_TOKENS, TTL_S, Warmth

_DIGEST_BYTES: Final = 16
_TOKENS_PER_100_BYTES: Final = 26  # of English prose, JSON and code: see pricing.estimate
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_STEP: Final = 0.25  # how much one report moves the trust
_RECOVERS_S: Final = 600.0  # in this time half of a lost trust comes back, so that a target is tried again
_TARGETS_MAX: Final = 1024
_AGES_S: Final = tuple(sorted(TTL_S.values()))
"""Lifetimes that caches have. What is older than one says nothing of what is younger: each has its own trust."""
_GUESS_PART: Final = 8
"""A guess from bytes may be so much of it too high: a conversation's own beginning is not shared for that."""


class Beginning(Struct, frozen=True, gc=False):
    """One beginning of a prompt: what stands for it, and how many tokens it likely has."""

    digest: bytes
    tokens: int


class Opening(Struct, frozen=True, gc=False):
    """The beginnings of a prompt, the longest first, and what stands for the whole of them, whatever tools and
    efforts come: the same for all requests of a conversation."""

    beginnings: tuple[Beginning, ...]
    key: bytes


class Reads(Struct, frozen=True, gc=False):
    """What is expected to be read from a target's cache. `age_s`: since it was last warm, None where nothing is.
    `shared`: other conversations have left it there. `tokens` of `held_tokens` are expected, by the target's
    trust; `is_judged`: a report is to tell whether they were there, because an answer has come since they were
    sent. Of a burst of requests all but the first may come too early for the cache."""

    tokens: int = 0
    age_s: float | None = None
    shared: bool = False
    held_tokens: int = 0
    beginning: bytes = b""
    is_judged: bool = True


class _Warm(Struct, gc=False):
    """A beginning in a target's cache. `is_known`: an answer has come since it was sent there first."""

    tokens: int
    sent_s: float
    ttl_s: float
    is_known: bool = False


class _Trust(Struct, gc=False):
    value: float
    at_s: float


def opening_of(
    heads: Sequence[MessageHead],
    *,
    tools: bytes,
    tools_bytes: int,
    effort: str,
    memo: TurnMemo | None = None,
    digests: Sequence[bytes] = (),
) -> Opening:
    """The opening of a request. `tools` is the digest of its list (`Recall.tools`), `tools_bytes` the list's size,
    `effort` the word as it is sent. Takes 4 us where `digests` are those of the messages (`Prefix.digests`); else,
    for turns that `memo` does not know, the time to digest them besides."""
    size, systems = tools_bytes, 0
    for head in heads:
        if head.role not in _SYSTEM_ROLES:
            break
        size += _size(head)
        systems += 1
    if not digests:
        known = memo or TurnMemo()
        digests = [known.digest(head).value for head in heads[: systems + 1]]
    found = []
    messages = b"".join(digests[:systems])
    if systems < len(heads):
        turn = digests[systems]
        size_bytes = size + _size(heads[systems])
        found.append(Beginning(_digest(b"first", tools, effort, messages + turn), _tokens(size_bytes)))
    else:
        turn = b""
    if systems:
        found.append(Beginning(_digest(b"system", tools, effort, messages), _tokens(size)))
    if tools:
        found.append(Beginning(_digest(b"tools", tools, "", b""), _tokens(tools_bytes)))
    return Opening(tuple(found), _digest(b"key", b"", "", messages + turn))


def conversation_key(prefix: Prefix, opening: Opening) -> bytes:
    """What stands for a conversation where targets are equal: its name (`x-kimi-conversation`, else
    `prompt_cache_key`), else the way it begins."""
    return prefix.name.digest if prefix.name is not None else opening.key


class SharedPrefixes:
    """The book. Holds at most `max_entries` beginnings (about 250 bytes each)."""

    def __init__(self, max_entries: int = 8192) -> None:
        self._max = max_entries
        self._warm: OrderedDict[tuple[str, str, bytes], _Warm] = OrderedDict()
        self._trust: OrderedDict[tuple[str, str, int], _Trust] = OrderedDict()

    def __len__(self) -> int:
        return len(self._warm)

    def expected(self, target: str, model: str, opening: Opening, own: Warmth, now_s: float) -> Reads:
        """What a target is expected to read of a request: the conversation's own, or what is shared, whichever is
        more."""
        held, age_s, shared, digest, known = own.expected_read_tokens, own.age_s, False, b"", True
        for one in opening.beginnings:
            warm = self._warm.get((target, model, one.digest))
            if warm is None or _is_over(warm, now_s):
                continue
            if warm.tokens - warm.tokens // _GUESS_PART > held:
                held, age_s, shared = warm.tokens, now_s - warm.sent_s, True
                digest, known = one.digest, warm.is_known
            break
        if held <= 0:
            return Reads()
        trust = self._trust.get((target, model, _age_class(age_s)))
        tokens = held if trust is None else int(held * _trusted(trust, now_s))
        return Reads(tokens, age_s, shared, held, digest, known)

    def sent(self, target: str, model: str, opening: Opening, ttl_s: float, now_s: float) -> None:
        """A request goes to a target: its beginnings are warm there from now on, for whoever comes next. `ttl_s`
        is the lifetime asked for, 0 where the target promises none; one that is in force stays."""
        for one in opening.beginnings:
            key = target, model, one.digest
            warm = self._warm.get(key)
            if warm is None:
                self._warm[key] = _Warm(one.tokens, now_s, ttl_s)
            else:
                if _is_over(warm, now_s):
                    warm.ttl_s = ttl_s
                warm.sent_s = now_s
                self._warm.move_to_end(key)
        while len(self._warm) > self._max:
            self._warm.popitem(last=False)

    def failed(self, target: str, model: str, opening: Opening) -> None:
        """The attempt came to nothing: what no answer has shown to be there is not."""
        for one in opening.beginnings:
            warm = self._warm.get((target, model, one.digest))
            if warm is not None and not warm.is_known:
                del self._warm[target, model, one.digest]

    def reported(
        self, target: str, model: str, opening: Opening, reads: Reads, cache_read: int | None, now_s: float
    ) -> None:
        """An answer came. `reads` is what was expected of it when it was sent, `cache_read` the tokens that were
        read, None where nobody said."""
        for one in opening.beginnings:
            warm = self._warm.get((target, model, one.digest))
            if warm is not None:
                warm.is_known = True
        if cache_read is None or not reads.is_judged or reads.held_tokens <= BLOCK_TOKENS:
            return
        came = cache_read * 2 >= reads.held_tokens
        self._judge((target, model, _age_class(reads.age_s)), came=came, now_s=now_s)
        warm = self._warm.get((target, model, reads.beginning)) if reads.shared else None
        # More than twice the guess is no wrong guess: the request was not its conversation's first.
        if warm is not None and came and cache_read <= reads.held_tokens * 2:
            warm.tokens = cache_read

    def _judge(self, key: tuple[str, str, int], *, came: bool, now_s: float) -> None:
        trust = self._trust.get(key)
        if trust is None:
            if came:
                return
            while len(self._trust) >= _TARGETS_MAX:
                self._trust.popitem(last=False)
            trust = self._trust[key] = _Trust(1.0, now_s)
        trust.value = _trusted(trust, now_s)
        trust.value += _STEP * ((1.0 if came else 0.0) - trust.value)
        trust.at_s = now_s


def _age_class(age_s: float | None) -> int:
    """Which lifetimes are over at that age."""
    return sum(lifetime_s <= (age_s or 0.0) for lifetime_s in _AGES_S)


def _is_over(warm: _Warm, now_s: float) -> bool:
    return 0 < warm.ttl_s <= now_s - warm.sent_s


def _trusted(trust: _Trust, now_s: float) -> float:
    """The trust as it is now: what was lost comes back with time."""
    halvings = max(0.0, now_s - trust.at_s) / _RECOVERS_S
    return 1.0 - (1.0 - trust.value) * float(0.5**halvings)


def _size(head: MessageHead) -> int:
    content = head.content
    return 0 if isinstance(content, UnsetType) else len(content)


def _tokens(size_bytes: int) -> int:
    """What can be read of so many bytes: whole blocks of the likely tokens."""
    return size_bytes * _TOKENS_PER_100_BYTES // 100 // BLOCK_TOKENS * BLOCK_TOKENS


def _digest(kind: bytes, tools: bytes, effort: str, messages: bytes) -> bytes:
    parts = (kind, b"%d %d " % (len(tools), len(effort)), tools, effort.encode(), messages)
    return blake2b(b"\n".join(parts), digest_size=_DIGEST_BYTES).digest()
