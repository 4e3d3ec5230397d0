"""A request as it goes to one target: what of it, besides its messages, an upstream's cache hangs on.

Tools stand before the effort and the effort before the messages (kimi-api-facts.md 2.3), so another list or
another effort is another prefix. Thoughts stand in the messages, but digests of turns leave them out; which turns
go out with one depends on the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec

from backends.messages import MessageHead, is_null, is_true
from kimi_gateway.core.repair import Repair, RepairPlan

Raw = msgspec.Raw

DIGEST_BYTES: Final = 8
RUNS_BYTES_MAX: Final = 16
_SHORT_BYTES: Final = 64
_EMPTY_LIST_BYTES: Final = 16

_sorted = msgspec.json.Encoder(order="sorted")
_values = msgspec.json.Decoder(float_hook=lambda text: Raw(text.encode()))


@dataclass(slots=True)  # not frozen: to set its fields past the freeze takes 0.8 µs
class Sending:
    """One request towards one target.

    `model` is the upstream's name, `effort` the word as sent ("unset", "none"). `tools` is the digest of the
    client's list, `narrowed` the one function that the list is cut down to for this target, "" where it is whole.
    `thoughts` are the runs of `thought_runs`. `ttl_s` is the lifetime asked for, 0 where the target promises none.
    `prompt_tokens` is the likely size, where there is an estimate: no more can be lost.
    """

    target: str
    model: str
    effort: str = "unset"
    tools: bytes = b""
    narrowed: str = ""
    thoughts: bytes = b""
    ttl_s: int = 0
    prompt_tokens: int | None = None


@lru_cache(maxsize=4096)
def name_digest(name: str) -> bytes:
    """What stands for a name in a record; b"" for none."""
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES] if name else b""


@dataclass(slots=True)
class ToolsMemo:
    """Digests of lists of tools, by the hash of their bytes. Holds at most `max_entries`, then begins anew."""

    max_entries: int = 1024
    _known: dict[bytes, bytes] = field(default_factory=dict)

    def digest(self, tools: Raw | None) -> bytes:
        """The digest of a list: its order counts, the order of an object's keys does not, because encoders sort
        them. b"" where there are no tools."""
        if tools is None or is_null(tools) or _is_empty(tools):
            return b""
        key = sha256(tools).digest()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.max_entries:
                self._known.clear()
            known = self._known[key] = sha256(_canonical(tools)).digest()[:DIGEST_BYTES]
        return known


def _canonical(tools: Raw) -> bytes:
    """JSON with sorted keys; of what cannot be decoded, its bytes."""
    try:
        return _sorted.encode(_values.decode(tools))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return bytes(tools)


# --- thoughts ---------------------------------------------------------------------------------------------------


def thought_runs(heads: Sequence[MessageHead], plan: RepairPlan | None = None) -> bytes:
    """Which of the assistant's turns go out with a thought, as lengths of runs: with, without, with, and so on.

    `heads` are those of the request as it came, `plan` what is put back for this target (`RepairPlan.towards`).
    An empty thought is none: encoders write the same empty channel for both (kimi-api-facts.md 2.2), so a
    placeholder is none either. Of runs that take more than 16 bytes the oldest are kept.
    """
    repaired = {item.index for item in plan.repairs if _brings_thought(item)} if plan is not None else frozenset()
    last = len(heads) - 1
    lengths = [0]
    state = True
    for index, head in enumerate(heads):
        if head.role != "assistant" or (index == last and is_true(head.partial)):
            continue
        if (index in repaired or _thinks(head)) != state:
            state = not state
            lengths.append(0)
        lengths[-1] += 1
    return _packed(lengths) if any(lengths) else b""


def first_difference(earlier: bytes, later: bytes) -> int | None:
    """The first turn, counted from 0, that has a thought in only one of two runs; None where they agree as far as
    both go."""
    ours, theirs = _lengths(earlier), _lengths(later)
    turn = 0
    for place, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            shorter = ours if mine < other else theirs
            return turn + min(mine, other) if place + 1 < len(shorter) else None
        turn += mine
    return None


def _packed(lengths: Sequence[int]) -> bytes:
    """The lengths in 7 bits a byte, as many from the first on as fit."""
    runs = b""
    for length in lengths:
        item = bytearray()
        while length >= 0x80:
            item.append(length & 0x7F | 0x80)
            length >>= 7
        item.append(length)
        if len(runs) + len(item) > RUNS_BYTES_MAX:
            break
        runs += item
    return runs


def _lengths(runs: bytes) -> list[int]:
    found: list[int] = []
    length = shift = 0
    for byte in runs:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(length)
            length = shift = 0
    return found


def _brings_thought(item: Repair) -> bool:
    thought = item.thought
    return thought.details is not None or (thought.text is not None and not _is_blank(thought.text))


def _thinks(head: MessageHead) -> bool:
    """The turn has a thought with text in it."""
    for raw in (head.reasoning_content, head.reasoning):
        if isinstance(raw, Raw) and not is_null(raw) and not _is_blank(raw):
            return True
    details = head.reasoning_details
    return isinstance(details, Raw) and not is_null(details) and not _is_empty(details)


def _is_blank(text: bytes | Raw) -> bool:
    """A JSON text without anything but white space; a long one is taken to have something."""
    if len(text) > _SHORT_BYTES:
        return False
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(value, str) and not value.strip()


def _is_empty(raw: Raw) -> bool:
    """The slice is an empty array."""
    return len(raw) <= _EMPTY_LIST_BYTES and bytes(raw).translate(None, b" \t\r\n") == b"[]"
