"""What a request's prompt begins with, as marks by which two requests of one conversation are compared: how far
is the later one the earlier one, grown? And the places where a record of the conversation is looked for.

The order of a prompt is tools, effort, messages (kimi-api-facts.md 2.3), so whatever upstreams have cached of it
ends where the first of them differs. This module knows of the messages. A *mark* stands for all of them up to an
assistant's turn: the chain of `kimi_gateway.core.digest`, and the system messages before that turn, which chains
leave out. So it forgives what chains forgive, and sees an edited system prompt where it stands.

Pure, and cheap: the chains are there already, system messages are digested once.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from backends.json import JsonObject
from backends.messages import MessageHead, is_null, is_true
from kimi_gateway.core.digest import History, Tail, TurnKeys
from pricing.estimate import text_size

Raw = msgspec.Raw

MARK_BYTES: Final = 8
"""Enough to tell the turns of one conversation apart; nobody gains by making two alike, in a record of his own."""
_PLACE_BYTES: Final = 16
_INSTRUCTION_TOKENS: Final = 64  # the frame of an instruction about tools or format; an allowance, not a count

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})


class Name(msgspec.Struct, frozen=True, gc=False):
    """What the client calls the conversation, by digest. `explicit`: by `x-kimi-conversation`, which means this
    conversation and no other; a `prompt_cache_key` may be one for many."""

    digest: bytes
    explicit: bool


def conversation_name(header: str | None, cache_key: Raw | None) -> Name | None:
    """The name in `x-kimi-conversation`, else the one in `prompt_cache_key`; "" and null name nothing."""
    if header:
        return Name(_place(b"name", header.encode("utf-8", "surrogatepass")), explicit=True)
    if cache_key is None or is_null(cache_key) or bytes(memoryview(cache_key)[:3]) == b'""':
        return None
    return Name(_place(b"key", bytes(cache_key)), explicit=False)


class Prefix(msgspec.Struct, frozen=True, gc=False):
    """The messages of one request, as far as they matter to a cache.

    `turns` are the assistant's, oldest first; one that is still to be continued (partial mode) is none.
    `tail_tokens`: at most so many tokens at the prompt's end are not there any more in the next one. `digests`
    are those of all messages.
    """

    turns: Sequence[TurnKeys]
    tail: Tail
    name: Name | None = None
    tail_tokens: int = 0
    digests: Sequence[bytes] = ()
    _indices: Sequence[int] = ()
    _systems: Sequence[int] = ()
    _before: Sequence[bytes] = (b"",)  # digests of the system messages before each in `_systems`, and of all

    def mark(self, turn: int) -> bytes:
        """What stands for the messages up to and including the assistant's turn of this number, from 0."""
        before = self._before[bisect_left(self._systems, self._indices[turn])]
        return _marked(self.turns[turn].chain, before)

    def index(self, turn: int) -> int:
        """The index of the message that is the assistant's turn of this number."""
        return self._indices[turn]

    def answer_mark(self, answer: TurnKeys) -> bytes:
        """The mark that the answer with these keys will have in the next request."""
        return _marked(answer.chain, self._before[-1])

    def answered(self, message: JsonObject) -> TurnKeys:
        """The keys of an answer, whole or as far as it was delivered."""
        return self.tail.answer(message)


def read_prefix(
    history: History, heads: Sequence[MessageHead], fields: Mapping[str, Raw], *, conversation: str | None = None
) -> Prefix:
    """The prefix of a request. `history` is `read_history` of the same heads, `fields` are the body's slices,
    `conversation` is what `x-kimi-conversation` says."""
    indices = list(history.keys)
    if indices and indices[-1] == len(heads) - 1 and is_true(heads[-1].partial):
        indices.pop()
    systems = [index for index, head in enumerate(heads) if head.role in _SYSTEM_ROLES]
    before = b""
    befores = [before]
    for index in systems:
        tools = heads[index].tools
        parts = (before, b"%d\n" % index, history.digests[index], tools if isinstance(tools, Raw) else b"")
        before = sha256(b"".join(parts)).digest()
        befores.append(before)
    return Prefix(
        turns=[history.keys[index] for index in indices],
        tail=history.tail,
        name=conversation_name(conversation, fields.get("prompt_cache_key")),
        tail_tokens=_tail_tokens(history.tail.prefix, fields),
        digests=history.digests,
        _indices=indices,
        _systems=systems,
        _before=befores,
    )


def _tail_tokens(continued: str, fields: Mapping[str, Raw]) -> int:
    """No less than the tokens behind the conversation, which the next prompt has not there: instructions about
    tools and the answer's format (kimi-api-facts.md 2.3), and the text that a partial message begins with."""
    tokens = _tokens_most(continued.encode("utf-8", "surrogatepass")) if continued else 0
    wanted = fields.get("response_format")
    if wanted is not None:
        tokens += _tokens_most(bytes(wanted))
    if wanted is not None or "tool_choice" in fields:
        tokens += _INSTRUCTION_TOKENS
    return tokens


def _tokens_most(text: bytes) -> int:
    return text_size(text).estimate().high


def _marked(chain: bytes, systems: bytes) -> bytes:
    return sha256(b"mark/1\n" + chain + systems).digest()[:MARK_BYTES]


# --- places -----------------------------------------------------------------------------------------------------


def places_to_look(prefix: Prefix) -> list[bytes]:
    """Where a record of this conversation may be, best first; empty for one that begins without a name.

    By the newest turn it is found as it was left, whatever other branches have done since. Where that turn is not
    known the history was changed: then by name, by the newest turn back to its question (which survives dropped
    and summed-up beginnings), by the first turn. A name that may be shared comes last.
    """
    name = [prefix.name.digest] if prefix.name is not None else []
    if not prefix.turns:
        return name
    newest = prefix.turns[-1]
    changed = [_place(b"anchor", newest.anchor)] if newest.anchor is not None else []
    changed.append(_place(b"root", prefix.turns[0].chain))
    by_name_first = prefix.name is not None and prefix.name.explicit
    rest = [*name, *changed] if by_name_first else [*changed, *name]
    return [_place(b"turn", newest.chain), *rest]


def places_to_write(prefix: Prefix, answer: TurnKeys | None, root: bytes) -> list[bytes]:
    """Where the record goes after an answer with these keys. `root` is the record's: the mark of its first turn,
    where that was answered here.

    Not where an earlier turn was: who branches off there finds the record as it was then. Only of a request that
    got no answer to be known by the record goes back to the turn it came with, and under the name.
    """
    name = [prefix.name.digest] if prefix.name is not None else []
    if answer is None:
        return [*(_place(b"turn", keys.chain) for keys in prefix.turns[-1:]), *name]
    places = [_place(b"turn", answer.chain), *name]
    if answer.anchor is not None:
        places.append(_place(b"anchor", answer.anchor))
    first = prefix.turns[0].chain if prefix.turns else answer.chain
    if root and first[:MARK_BYTES] == root:
        places.append(_place(b"root", first))
    return places


def _place(kind: bytes, key: bytes) -> bytes:
    return sha256(b"place/1 %b\n%b" % (kind, key)).digest()[:_PLACE_BYTES]
