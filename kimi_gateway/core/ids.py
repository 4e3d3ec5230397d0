"""Request ids: `kr_` and 26 characters of Crockford's base 32, sortable by time (48 bits of ms, 80 random)."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def request_id(now_ms: int, random_bits: int) -> str:
    """A request id from Unix milliseconds and 80 random bits; both are the caller's."""
    value = ((now_ms & (1 << 48) - 1) << 80) | (random_bits & (1 << 80) - 1)
    digits = []
    for _ in range(13):
        digits.append(_PAIRS[value & 1023])
        value >>= 10
    digits.reverse()
    return "kr_" + "".join(digits)
