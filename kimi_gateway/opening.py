"""What a gateway opens before it serves: cards, books, state. What cannot be opened stops the start."""

import time
from pathlib import Path

from kimi_gateway.adapters.ledger import JournalBooks, open_books
from kimi_gateway.adapters.state import EmbeddedError, State, StateUrlError, open_state
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.logs import Log
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.settings import Settings
from kimi_gateway.worker import Share
from pricing.cards import CardBook, CardError, load_cards
from pricing.ledger.errors import LedgerError


class StartError(Exception):
    """The gateway cannot start; the message says why and what to do."""


def opened_cards(settings: Settings) -> CardBook:
    """The cards that ship and the operator's own. Raises `StartError`."""
    try:
        return load_cards(Path(settings.pricing.cards_dir) if settings.pricing.cards_dir else None)
    except CardError as err:
        raise StartError(f"pricing.cards_dir: {err}") from err


def opened_books(settings: Settings, log: Log) -> JournalBooks:
    """The books. Raises `StartError`."""
    try:
        return open_books(settings.ledger, settings.timing, log=log, mono=time.monotonic)
    except LedgerError as err:
        raise StartError(f"the ledger cannot be used: {err}") from err


async def opened_state(settings: Settings, share: Share | None, log: Log) -> State:
    """The state, which a worker shares with its siblings. Raises `StartError`."""
    try:
        state = open_state(
            share.state if share is not None else settings.state.url,
            on_outage=settings.state.on_outage,
            bounds=thought_bounds(settings),
            secret=settings.thoughts_secret,
            mono=time.monotonic,
        )
    except _mistakes() as err:
        raise StartError(f"state.url: {err}") from err
    try:
        for note in await state.look():
            log.event(note, level="warning")
    except _outages() as err:
        await state.close()
        raise StartError(f"the state cannot be used: {err}") from err
    return state


def _mistakes() -> tuple[type[Exception], ...]:
    """What is wrong with the settings of a state. Asked for only then: without a server none is loaded."""
    from kimi_gateway.adapters.state.seal import WeakSecret

    return (StateUrlError, WeakSecret, EmbeddedError)


def _outages() -> tuple[type[Exception], ...]:
    from kimi_gateway.adapters.state.link import StateUnsuited

    return (StateUnavailable, StateUnsuited)


def thought_bounds(settings: Settings) -> Bounds:
    """How much is kept of conversations, and for how long."""
    thinking = settings.thinking
    return Bounds(thinking.max_bytes, thinking.max_bytes_per_key, thinking.retention_s)
