"""Which known name was probably meant by one that is not known, and how a stranger's word is repeated."""

import difflib
from collections.abc import Iterable
from typing import Final

_CUTOFF: Final = 0.6
_LONGEST: Final = 200  # comparing takes the square of it
_SHOWN: Final = 80


def closest(word: str, known: Iterable[str]) -> str:
    """The known name that is most like the word, capitals aside; "" where none is near."""
    if len(word) > _LONGEST:
        return ""
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(name.lower(), name)
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=_CUTOFF)
    return names[near[0]] if near else ""


def meant(word: str, known: Iterable[str]) -> str:
    """` did you mean X?` to stand before what else there is to say; "" where nothing is near."""
    name = closest(word, known)
    return f" did you mean {name}?" if name else ""


def quoted(word: str) -> str:
    """The word in quotes, cut where it is long."""
    return repr(word if len(word) <= _SHOWN else word[:_SHOWN] + "…")
