"""Settings of features that are not built yet: refused by name unless they have their default.

Nothing is accepted without effect. An entry goes when its feature comes.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from kimi_gateway.settings.mistakes import Mistakes


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """Why a value is refused. `built` says which values already have their effect; None: only the default."""

    reason: str
    built: Callable[[Any], bool] | None = None


UNBUILT: Final[Mapping[str, Unbuilt]] = {
    "server.cors_origins": Unbuilt("CORS is not built yet"),
}


def refuse_unbuilt(section: str, table: object, path: str, mistakes: Mistakes) -> None:
    """Adds a mistake for each setting of a validated table that asks for what is not built."""
    for item in fields(table):  # type: ignore[arg-type]  # every table is a dataclass
        entry = UNBUILT.get(f"{section}.{item.name}")
        if entry is None:
            continue
        value = getattr(table, item.name)
        if value != _default(item) and not (entry.built is not None and entry.built(value)):
            mistakes.add(f"{path}.{item.name}", f"{entry.reason}; leave it out")


def _default(item: Any) -> object:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None
