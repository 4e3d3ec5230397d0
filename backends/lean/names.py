"""Names of answers' headers in lower case, each made once."""

from typing import Final

NAMES: Final[dict[bytes, str]] = {}  # as they came → lower case; bounded
_KEPT: Final = 1024


def learn(name: bytes) -> str:
    """The name in lower case, remembered where there is room."""
    key = name.decode("latin-1").lower()
    if len(NAMES) < _KEPT:
        NAMES[name] = key
    return key
