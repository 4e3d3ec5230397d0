"""How many tokens a request will come to, before anybody counts them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pricing.estimate import Estimate, TextSize, estimate_prompt, text_size

_BASE64: Final = re.compile(rb"(?:;base64,)([A-Za-z0-9+/=_-]{64,})")
_MEDIA_TOKENS: Final = 1_024
"""A picture's tokens on an older vision model of the vendor's (kimi.com help, API model selection)."""
_MEDIA_TOKENS_MAX: Final = 16_384
"""A stated margin, not a proof: what media cost on K3.1 is not published."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted: a prompt of so many messages and the answer to it come to `tokens`."""

    messages: int
    tokens: int


def prompt_estimate(messages: Sequence[bytes], tools: bytes, counted: Counted | None) -> Estimate:
    """The tokens of a prompt: JSON of its messages, and of the tool declarations (b"" without).

    What the server has counted already is taken as it is, and only what was added since is estimated.
    """
    base = Estimate(0, 0, 0)
    added = messages
    if counted is not None and counted.messages <= len(messages):
        base = Estimate(counted.tokens, counted.tokens, counted.tokens)
        added, tools = messages[counted.messages :], b""
    media = 0
    size = TextSize()
    for message in added:
        shortened, found = _BASE64.subn(b"", message)
        media += found
        size += text_size(shortened)
    estimate = estimate_prompt(size + text_size(tools), messages=len(added), tools=bool(tools))
    return base + estimate + Estimate(media * _MEDIA_TOKENS, 0, media * _MEDIA_TOKENS_MAX)
