"""Looks at what a gateway shares with others: its state, and the keys in its ledger."""

import time

from kimi_gateway.adapters.state import State, open_state
from kimi_gateway.checks.findings import Findings, Mistake
from kimi_gateway.opening import thought_bounds
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.settings import Settings, open_mode_problem
from pricing.ledger.errors import LedgerError
from pricing.ledger.store.keys import KeyTable


async def look_at_state(settings: Settings) -> Findings:
    """Whether the state answers and can hold what it is to. A private server is not started for this."""
    found = Findings()
    url = settings.state.url
    if url in ("memory://", "embedded://"):
        found.well("state", url, "in this process" if url == "memory://" else "a private Valkey, started with it")
        return found
    state = open_state(
        url,
        on_outage="closed",
        bounds=thought_bounds(settings),
        secret=settings.thoughts_secret,
        mono=time.monotonic,
    )
    try:
        await _look(state, found)
    finally:
        await state.close()
    return found


async def _look(state: State, found: Findings) -> None:
    # Not at the top: who keeps the state in the process needs none of these libraries.
    from kimi_gateway.adapters.state.link import StateUnsuited

    try:
        notes = await state.look()
    except StateUnavailable as err:
        found.wrong(Mistake("state.url", str(err), "start it, or name another"))
    except StateUnsuited as err:
        found.wrong(Mistake("state.url", str(err), "name another"))
    else:
        found.note(*notes)
        found.well("state", state.shown, "answers")
        return
    found.bad("state", state.shown)


def look_at_keys(settings: Settings) -> Findings:
    """Whether strangers could call because there are no keys, neither in the file nor in the ledger."""
    found = Findings()
    if not settings.key_ring.is_open:
        return found
    table = None
    try:
        table = KeyTable(settings.ledger.url)
        count = len(table.all())
    except LedgerError:
        count = 0  # a ledger that is not there or away has a row of its own
    finally:
        if table is not None:
            table.close()
    if count:
        found.well("keys", "ledger", f"{count} key{'' if count == 1 else 's'}")
    elif problem := open_mode_problem(settings):
        what, _, remedy = problem.partition("; ")
        found.wrong(Mistake("server.host", what, remedy))
        found.bad("keys", settings.server.host)
    return found
