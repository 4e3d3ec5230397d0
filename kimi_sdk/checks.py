"""Arguments of a chat, checked before anything is sent. Every refusal names the argument."""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, get_args

from backends.json import encode
from kimi_sdk.errors import InvalidInput
from kimi_sdk.meter import Meter
from kimi_sdk.notices import NoEffect, SmallOutputLimit, warn
from kimi_sdk.place import Place, Tier, Ttl
from kimi_sdk.prices import Price
from pricing.cards import load_cards
from pricing.rates import CardBook, Rates

_SANE_LIMITS: Final[Mapping[str | None, int]] = {"low": 1_000, "high": 8_000, "max": 16_000, None: 16_000}
"""For unset and max the vendor's recommendation; for the others what their thinking usually takes, twice."""

_LONGEST_S: Final = 7 * 24 * 3600
"""More waiting than any answer is worth; beyond some such number a system's own timeouts overflow."""


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
    except (ValueError, TypeError, ArithmeticError) as err:
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


def checked_model(model: object) -> None:
    """A model's name."""
    if not isinstance(model, str):
        raise InvalidInput(f"model must be a text such as kimi-k3.1-pro, not {model!r:.60}")
    if not model.strip():
        raise InvalidInput("model must not be empty")
    if not model.isprintable():
        raise InvalidInput(f"model must be a name such as kimi-k3.1-pro, not {model!r:.60}")


def checked_timeout_s(timeout_s: object) -> float:
    """Seconds of silence."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise InvalidInput(f"timeout_s must be a number of seconds, not {timeout_s!r:.60}")
    if not 0 < timeout_s <= _LONGEST_S:
        raise InvalidInput(f"timeout_s must be more than 0 seconds and at most {_LONGEST_S:,}, not {timeout_s}")
    return float(timeout_s)


def checked_addresses(**texts: object) -> None:
    """Arguments that are texts where they are given."""
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} must be a text, not {type(value).__name__}")  # it may be a key


def checked_arguments(*, tools: object, approve: object, meter: object, prices: object) -> None:
    """Arguments that are of a certain kind."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise InvalidInput(f"tools must be a list of functions, such as tools=[weather], not {tools!r:.60}")
    if approve is not None and not callable(approve):
        raise InvalidInput(f"approve must be a function that takes a ToolCall, not {approve!r:.60}")
    if meter is not None and not isinstance(meter, Meter):
        raise InvalidInput(f'meter must be a Meter, such as Meter(max_cost="5.00"), not {meter!r:.60}')
    if prices is not None and not isinstance(prices, Mapping):
        raise InvalidInput(
            f'prices must be USD per million tokens by meter, such as {{"input": "0.50"}}, not {prices!r:.60}'
        )


def warned_of_limit(limit: int | None, effort: str | None) -> bool:
    """Whether it has warned that the thinking may use up an output limit, in tokens."""
    sane = _SANE_LIMITS[effort]
    if limit is None or limit >= sane:
        return False
    warn(
        SmallOutputLimit,
        f"max_completion_tokens {limit:,} limits thinking and answer together; at effort "
        f"{effort or 'unset (max)'} fewer than {sane:,} often leave no answer",
    )
    return True


def written(what: str, value: object) -> bytes:
    """The value as JSON."""
    try:
        return encode(value)
    except UnicodeEncodeError as err:
        raise InvalidInput(f"{what} hold half a character, which cannot be sent: {err.reason}") from err


@cache
def shipped_cards() -> CardBook:
    """The rate cards that come with this package."""
    return load_cards()


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
