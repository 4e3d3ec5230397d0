"""What the synthetic text is made of."""

import hashlib
from typing import Final

from backends.emulator.tokens import BYTES_PER_TOKEN, count, cut

_THOUGHT: Final = (
    "First I read the request again and note what it asks for.",
    "There are two readings; the plain one is more likely.",
    "I check the limits before I go further.",
    "A small example would show whether this holds.",
    "If the first step is right, the second follows from it.",
    "I compare both ways and keep the shorter one.",
    "That assumption needs a second look.",
    "The numbers add up, so I go on.",
    "An edge case is the empty input; it is covered.",
    "I write the steps down in order.",
    "Nothing in the earlier turns speaks against this.",
    "The order of the parts matters here.",
    "I should say what is left open.",
    "Let me count once more from the start.",
    "The result fits the question.",
    "I can now put this into words.",
)
_TEXT: Final = (
    "This sentence stands where a model would explain its answer.",
    "The first part of the answer would be here.",
    "A second part would follow from the first.",
    "An example would make the point clear.",
    "Then come the limits and what they mean.",
    "A short list would fit in this place.",
    "The last step checks the one before it.",
    "Numbers in a real answer would be checked twice.",
    "Here a model would name its sources.",
    "Two choices would be weighed against each other.",
    "The better one would be named with its reason.",
    "What is left open would be said at the end.",
    "Words like these only fill the room that was asked for.",
    "Their count is exact, their meaning is not.",
    "A summary would close the answer.",
    "Nothing here was thought by a model.",
)


def thought_of(opening: str, *, tokens: int, seed: bytes, exact: bool) -> str:
    """A thought of exactly `tokens` tokens, or (not `exact`) of at most that and ending with a sentence."""
    return _fill(opening, _THOUGHT, tokens, seed) if exact else _sentences(opening, _THOUGHT, tokens, seed)


def text_of(opening: str, *, tokens: int, seed: bytes, exact: bool) -> str:
    """A text of exactly `tokens` tokens, or (not `exact`) of at most that and ending with a sentence."""
    return _fill(opening, _TEXT, tokens, seed) if exact else _sentences(opening, _TEXT, tokens, seed)


def _sentences(opening: str, bank: tuple[str, ...], tokens: int, seed: bytes) -> str:
    """The opening, whole, and as many sentences as still fit."""
    text = _fill(opening, bank, max(tokens, count(opening)), seed)
    end = text.rfind(". ", len(opening)) + 1
    return text[:end] if end else opening


def _fill(opening: str, bank: tuple[str, ...], tokens: int, seed: bytes) -> str:
    size_bytes = tokens * BYTES_PER_TOKEN
    shortest = min(map(len, bank))
    said = [opening]
    at = 0
    for roll in hashlib.shake_128(seed).digest(max(1, size_bytes // shortest + 1)):
        at = (at + 1 + roll % (len(bank) - 1)) % len(bank)  # never the same sentence twice in a row
        said.append(bank[at])
    text = cut(" ".join(said), tokens)
    # A cut inside a character leaves the text short; dots fill it, so the length asked for is the length made.
    return text + "." * (size_bytes - len(text.encode("utf-8", "surrogatepass")))
