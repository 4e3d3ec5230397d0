"""What is worth a warning: it works, but costs or does something else than one might think."""

import sys
import warnings
from typing import Final

_OURS: Final = __name__.partition(".")[0]


class KimiWarning(UserWarning):
    """Base of the warnings of this package."""


class CachePrefixBroken(KimiWarning):
    """The next request no longer begins like the last one: what the server has cached of it is read anew."""


class SmallOutputLimit(KimiWarning):
    """The output limit is so small that the thinking may use it up and leave no answer."""


class NoEffect(KimiWarning):
    """An argument means nothing to the server that is asked."""


def warn(category: type[KimiWarning], text: str) -> None:
    """Warns, and names the line outside this package that led here."""
    depth = 2  # 1 is this function
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS:
        frame = frame.f_back
        depth += 1
    warnings.warn(text, category, stacklevel=depth)
