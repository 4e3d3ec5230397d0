"""The targets of the gateway's configuration, as far as money depends on them: name, seller, models, prices."""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pricing.advice.offers import StatedTarget
from pricing.cli_settings import DEFAULT_CONFIG, ConfigError
from pricing.rates import Rates

# The sellers whose cards price a dialect's targets have the dialect's name; engines have none.
_SELLERS: Final = ("moonshot", "openrouter")
_OTHER_CURRENCY: Final = ".cn"  # the same seller's host there bills in CNY: never at prices in USD


def read_targets(config: Path | None) -> list[StatedTarget]:
    """The `[[targets]]` of a configuration that `find_places` could read; none where there is no file.

    Raises `ConfigError` for prices that are none.
    """
    file = DEFAULT_CONFIG if config is None else config
    if not file.is_file():
        return []
    # Decimal, so that a price written without quotes is as exact as one with them.
    tables = tomllib.loads(file.read_text("utf-8-sig"), parse_float=Decimal).get("targets", [])
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: targets must be an array of tables, [[targets]]")
    return [_target(table, f"{file}: targets[{at}]") for at, table in enumerate(tables) if isinstance(table, dict)]


def target_rates(targets: list[StatedTarget]) -> dict[str, Rates]:
    """The prices of the targets that state some, by name."""
    return {target.name: target.prices for target in targets if target.prices is not None}


def _target(table: Mapping[str, object], where: str) -> StatedTarget:
    dialect = _text(table, "dialect", where)
    models = table.get("models", {})
    host = urlsplit(_text(table, "base_url", where)).hostname or ""
    is_ours = dialect in _SELLERS and not host.endswith(_OTHER_CURRENCY)
    return StatedTarget(
        name=_text(table, "name", where) or dialect,
        seller=dialect if is_ours else "",
        models=tuple(models) if isinstance(models, dict) else (),
        prices=_prices(table.get("prices"), f"{where}.prices"),
    )


def _prices(prices: object, where: str) -> Rates | None:
    if prices is None:
        return None
    if not isinstance(prices, dict):
        raise ConfigError(f'{where} must be a table of prices, such as {{ input = "2.00", output = "10.00" }}')
    try:
        return Rates.from_usd(prices)
    except ValueError as err:
        raise ConfigError(f"{where}.{err}") from err


def _text(table: Mapping[str, object], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}.{key} must be a text in quotes, not {value!r}")
    return value
