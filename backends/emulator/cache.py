"""An automatic prefix cache as Moonshot documents it: blocks, a lifetime locked at the first write, free renewal.
An engine's cache is the same without lifetimes: a block stays until it is the one used longest ago.

Source: platform.kimi.ai/docs/guide/context-caching, as quoted by third parties in September 2026. Chosen here,
because no text says it: a prompt's last token is always computed, so at most `(prompt - 1) // block` blocks count;
reading and writing happen when the prompt is taken in, and renewal counts from then.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backends.emulator.invoice import PromptSplit, Ttl

TTL_S: Final[Mapping[Ttl, float]] = {"5m": 300.0, "1h": 3600.0}
FOR_EVER_S: Final[Mapping[Ttl, float]] = {"5m": math.inf, "1h": math.inf}


@dataclass(slots=True)
class _Block:
    ttl: Ttl
    expires_s: float


class PrefixCache:
    """Blocks by the digest of the prefix that they end. The digests carry their owner (organisation and model).

    Bounded: the block used longest ago goes first. Within a prefix the deeper block counts as used longer ago, so
    what remains is always a prefix; for the same reason no block outlives the one before it.
    """

    def __init__(self, *, block_tokens: int, max_blocks: int, ttl_s: Mapping[Ttl, float] = TTL_S) -> None:
        self._block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        """Forgets everything."""
        self._blocks.clear()

    def cacheable_blocks(self, prompt_tokens: int) -> int:
        """How many blocks of such a prompt can be read or written."""
        return max(0, prompt_tokens - 1) // self._block_tokens

    def look(self, chain: Sequence[bytes], *, prompt_tokens: int, ttl: Ttl, now_s: float) -> PromptSplit:
        """What of a prompt would be read and what written; changes nothing.

        `chain` holds the prefix digest after each full block, from the start. `ttl` is the wish; a live prefix
        overrides it with the lifetime it was first written with.
        """
        usable = chain[: self.cacheable_blocks(prompt_tokens)]
        read = self._live_prefix(usable, now_s)
        locked: Ttl = self._blocks[usable[0]].ttl if read else ttl
        written_tokens = (len(usable) - read) * self._block_tokens
        read_tokens = read * self._block_tokens
        return PromptSplit(
            input=prompt_tokens - read_tokens - written_tokens,
            cache_read=read_tokens,
            write_5m=written_tokens if locked == "5m" else 0,
            write_1h=written_tokens if locked == "1h" else 0,
            ttl=locked if usable else "",
        )

    def keep(self, chain: Sequence[bytes], split: PromptSplit, *, now_s: float) -> None:
        """Writes and renews what `look` has just said, each block for the whole lifetime from now."""
        if split.ttl == "":
            return
        expires_s = now_s + self._ttl_s[split.ttl]
        for digest in reversed(chain[: self.cacheable_blocks(split.total)]):
            self._blocks[digest] = _Block(split.ttl, expires_s)
            self._blocks.move_to_end(digest)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def _live_prefix(self, chain: Sequence[bytes], now_s: float) -> int:
        for depth, digest in enumerate(chain):
            block = self._blocks.get(digest)
            if block is None or block.expires_s <= now_s:
                return depth
        return len(chain)
