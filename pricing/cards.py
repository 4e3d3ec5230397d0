"""Reads rate cards: the shipped TOML files, and a folder of the user's that adds to them or overrides them.

A file holds one or more tables `[[cards]]`; `pricing/card_data` shows the form. Prices are decimal strings in USD
per 1M tokens (`search`: USD per call), days are UTC. Whatever is wrong is refused with a `CardError` that names
the file, the field and the remedy; nothing is skipped.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final, TypeVar

from pricing.rates import CONFIDENCES, TIERS, WRITE_RULES, Card, CardBook, Rates, Source, unknown_name
from pricing.usage import METERS, Meter

__all__ = ["Card", "CardBook", "CardError", "load_cards"]

_SHIPPED_DIR: Final = Path(__file__).with_name("card_data")

Table = Mapping[str, object]
T = TypeVar("T")

_CARD_KEYS: Final = (
    "id",
    "seller",
    "model",
    "tier",
    "currency",
    "effective_from",
    "effective_to",
    "write_rule",
    "rates",
    "sources",
    "note",
)
_SOURCE_KEYS: Final = ("name", "url", "checked_on", "covers", "confidence")


class CardError(ValueError):
    """A rate card cannot be used. The message names file and field, and says how to set it right."""


def load_cards(cards_dir: Path | None = None) -> CardBook:
    """The shipped cards and, before them, those of `cards_dir` (every `*.toml` directly in it).

    Raises `CardError` for a folder or file that cannot be read and for a card that is wrong.
    """
    if cards_dir is not None and not cards_dir.is_dir():
        raise CardError(f"cards_dir {str(cards_dir)!r} is not a folder; create it or leave cards_dir empty")
    shipped = _all_cards(_texts(_SHIPPED_DIR))
    own = [] if cards_dir is None else _all_cards(_texts(cards_dir))
    # The book's own complaint is one id twice; in the shipped files a test rules that out.
    return _checked(str(cards_dir), lambda: CardBook(shipped, own))


def _texts(folder: Path) -> list[tuple[str, str]]:
    files = []
    for path in sorted(folder.glob("*.toml")):
        try:
            files.append((str(path), path.read_text("utf-8-sig")))
        except (OSError, UnicodeDecodeError) as err:
            raise CardError(f"{path}: cannot be read as UTF-8 text: {err}") from err
    return files


def _all_cards(files: Iterable[tuple[str, str]]) -> list[Card]:
    return [card for name, text in files for card in parse_cards(text, name=name)]


def parse_cards(text: str, *, name: str) -> list[Card]:
    """The cards of one TOML file; `name` is what errors call it. Raises `CardError`."""
    try:
        # Decimal, so that a price written without quotes is as exact as one with them.
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as err:
        raise CardError(f"{name}: not TOML: {err}") from err
    _refuse_unknown(document, ("cards",), name)
    cards = [_card(table, where) for table, where in _tables(document, "cards", name)]
    if not cards:
        raise CardError(f"{name}: no cards in it; a card is a table [[cards]]")
    return cards


def _card(table: Table, where: str) -> Card:
    _refuse_unknown(table, _CARD_KEYS, where)
    seller, model = _text(table, "seller", where), _text(table, "model", where)
    start = _day(table, "effective_from", where)
    rates = table.get("rates")
    if not isinstance(rates, dict):
        raise CardError(f'{where}.rates: missing; write a table of prices, such as [cards.rates] input = "2.00"')
    return _checked(
        where,
        lambda: Card(
            id=_text(table, "id", where, default=f"{seller}/{model}@{start}"),
            seller=seller,
            model=model,
            rates=_checked(f"{where}.rates", lambda: Rates.from_usd(rates), join="."),
            effective_from=start,
            effective_to=_day(table, "effective_to", where) if "effective_to" in table else None,
            tier=_one_of(table, "tier", TIERS, where, default="standard"),
            currency=_text(table, "currency", where, default="USD"),
            write_rule=_one_of(table, "write_rule", WRITE_RULES, where, default="replaces"),
            sources=tuple(_source(source, at) for source, at in _tables(table, "sources", where)),
            note=_text(table, "note", where, default=""),
        ),
    )


def _source(table: Table, where: str) -> Source:
    _refuse_unknown(table, _SOURCE_KEYS, where)
    return Source(
        name=_text(table, "name", where),
        url=_text(table, "url", where, default=""),
        checked_on=_day(table, "checked_on", where),
        covers=_meters(table, "covers", where),
        confidence=_one_of(table, "confidence", CONFIDENCES, where),
    )


def _checked(where: str, build: Callable[[], T], *, join: str = ": ") -> T:
    try:
        return build()
    except CardError:
        raise
    except ValueError as err:
        raise CardError(f"{where}{join}{err}") from err


def _tables(table: Table, key: str, where: str) -> list[tuple[Table, str]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise CardError(f"{where}: {key} must be an array of tables, [[{key}]]")
    return [(item, f"{where}: {key}[{index}]") for index, item in enumerate(found)]


def _refuse_unknown(table: Table, known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise CardError(f"{where}: {unknown_name(key, known)}")


def _text(table: Table, key: str, where: str, *, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise CardError(f"{where}.{key}: must be a text in quotes, not {value!r}")
    return value


def _day(table: Table, key: str, where: str) -> date:
    value = table.get(key)
    if isinstance(value, str):
        return _checked(f"{where}.{key}", lambda: date.fromisoformat(value))
    if isinstance(value, datetime) or not isinstance(value, date):
        raise CardError(f"{where}.{key}: must be a day such as 2026-10-24, not {value}")
    return value


def _one_of(table: Table, key: str, allowed: tuple[T, ...], where: str, *, default: T | None = None) -> T:
    value = table.get(key, default)
    for choice in allowed:
        if value == choice:
            return choice
    raise CardError(f"{where}.{key}: must be one of {', '.join(map(str, allowed))}, not {value!r}")


def _meters(table: Table, key: str, where: str) -> tuple[Meter, ...]:
    value = table.get(key)
    if not isinstance(value, list) or not value:
        raise CardError(f'{where}.{key}: must list the meters that the source states, such as ["input"]')
    return tuple(_one_of({key: name}, key, METERS, where) for name in value)
