"""A secret that does not show itself: it has to be asked for, in so many words."""

import hmac
from typing import Final, NoReturn

from typing_extensions import override

_SHOWN: Final = "Secret('***')"


class Secret:
    """Text that never appears in `repr`, `str`, formatting, copies or pickles; `reveal` gives it back.

    Comparison takes the same time wherever two secrets differ. Pickling raises `TypeError`.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """The secret itself, for the one place that sends or compares it."""
        return self.__text

    @override
    def __repr__(self) -> str:
        return _SHOWN

    @override
    def __str__(self) -> str:
        return _SHOWN

    @override
    def __format__(self, format_spec: str) -> str:
        return _SHOWN

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self.__text), _bytes(other.reveal()))

    @override
    def __hash__(self) -> int:
        return hash((Secret, self.__text))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled; pass the name of its variable or file instead")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
