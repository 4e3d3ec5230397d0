"""Arguments of a chat, checked before anything is sent. Every refusal names the argument."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, get_args

from kimi_sdk.errors import InvalidInput
from kimi_sdk.notices import NoEffect, warn
from kimi_sdk.place import Place, Tier, Ttl
from kimi_sdk.prices import Price
from pricing.rates import Rates


def one_of(name: str, value: Any, kind: Any) -> Any:
    """The value, one of a literal type's or None. Raises `InvalidInput`, as all here do."""
    allowed = get_args(kind)
    if value is not None and value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def checked_tier(tier: Tier | None, model: str, place: Place) -> Tier | None:
    """The tier, where the server has it for the model."""
    checked: Tier | None = one_of("tier", tier, Tier)
    if checked == "standard" and model.endswith("-highspeed"):
        raise InvalidInput(f"tier standard contradicts the model {model}; give one of them")
    place.model_at(model, checked)
    return checked


def checked_ttl(ttl: Ttl | None, place: Place) -> Ttl | None:
    """The cache's lifetime; warns where nobody there understands it."""
    checked: Ttl | None = one_of("ttl", ttl, Ttl)
    if checked is not None and not place.dialect.cache_options:
        warn(NoEffect, f"ttl {checked} has no effect at {place.name}: nothing there says how long a cache lives")
    return checked


def own_price(prices: Mapping[str, str] | None) -> Price | None:
    """The prices given to a chat, USD per million tokens."""
    if prices is None:
        return None
    try:
        return Price(Rates.from_usd(prices))
    except ValueError as err:
        raise InvalidInput(f"prices: {err}") from err


def checked_limit(tokens: object) -> int | None:
    """An output limit in tokens."""
    if tokens is None:
        return None
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InvalidInput(f"max_completion_tokens must be a whole number of at least 1, not {tokens!r}")
    return tokens


def checked_count(name: str, value: object) -> int:
    """A whole number that may be 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def write_whole(path: Path, data: bytes) -> None:
    """Replaces the file, or leaves the old one as it was."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as made:
        try:
            made.write(data)
            made.flush()
            os.replace(made.name, path)
        except BaseException:
            Path(made.name).unlink(missing_ok=True)
            raise
