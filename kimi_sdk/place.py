"""Who is asked: the facts of a dialect, and what of this package's wishes it understands. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from kimi_sdk.errors import InvalidInput

Tier = Literal["standard", "highspeed"]
"""How fast the answer is written: highspeed costs twice as much (see `pricing`)."""

Ttl = Literal["5m", "1h"]
"""How long the server keeps the conversation cached."""

GATEWAY: Final = Dialect(
    name="gateway",
    keeps_thought_details=True,
    file_urls=True,
    cache_options=True,
    key_required=False,
)
"""The gateway leaves unknown counts out and says itself what an answer costs, so little is added to its facts."""

NAMES: Final = (GATEWAY.name, *DIALECTS)
_HIGHSPEED: Final = "-highspeed"


@dataclass(frozen=True, slots=True)
class Place:
    """The server that is asked. `is_gateway`: it books, repeats, takes idempotency keys and a tier of its own."""

    dialect: Dialect
    is_gateway: bool

    @property
    def name(self) -> str:
        """Its dialect's name."""
        return self.dialect.name

    def model_at(self, model: str, tier: Tier | None) -> str:
        """The model's name there. Raises `InvalidInput` for a tier that it does not have."""
        if self.is_gateway:
            return model
        wanted = model
        if tier == "highspeed" and not model.endswith(_HIGHSPEED):
            wanted = model + _HIGHSPEED
            if wanted not in self.dialect.models:
                raise InvalidInput(
                    f"tier highspeed of {model} is not to be had at {self.name}; it is at api.moonshot.ai and, "
                    "where it has a target with it, through the gateway"
                )
        return self.dialect.models.get(wanted, wanted)

    def public_model(self, served: str) -> str:
        """The public name of the model that answered."""
        names = {theirs: public for public, theirs in self.dialect.models.items()}
        return names.get(served, served)


def place_of(host: str, name: str | None) -> Place:
    """Who answers at a host (lower case): the dialect that is named, else the public service of that host, else
    the gateway. Raises `InvalidInput` for a dialect that is unknown."""
    found = _by_host(host, DIALECTS)
    if name is None:
        return Place(found or GATEWAY, is_gateway=found is None)
    if name == GATEWAY.name:
        return Place(GATEWAY, is_gateway=True)
    if name not in DIALECTS:
        raise InvalidInput(f"dialect must be one of {', '.join(NAMES)}, not {name!r}")
    stated = DIALECTS[name]
    return Place(found if found is not None and found.name == name else stated, is_gateway=False)


def _by_host(host: str, dialects: Mapping[str, Dialect]) -> Dialect | None:
    for dialect in dialects.values():
        known = urlsplit(dialect.base_url).hostname
        if known is None:
            continue
        if host == known:
            return dialect
        stem = known.rpartition(".")[0]
        if any(host == stem + suffix for suffix in dialect.other_currency_suffixes):
            return replace(dialect, seller="")  # it bills in another currency, which is never added to dollars
    return None
