"""Tells a webhook once when 80 and once when 100 % of a budget are used: once per period, over all gateways.

The whole counts as used when booked spend reaches it, or when it refuses a request with 80 % booked: reservations
keep spend from ever passing the budget, so it seldom meets it to the nano-dollar. Who sends an alert first notes
in the ledger that it does; another that sees the same finds the note. Should the process die in between, or the
webhook refuse for good, the alert is lost and the log says so. A budget that was changed is a new one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from typing_extensions import override

from kimi_gateway.adapters.limits.limiter import Watcher
from kimi_gateway.adapters.limits.spend import SpendSource
from kimi_gateway.core.limits import Verdict
from pricing.ledger.errors import LedgerError
from pricing.ledger.store.spend import AlertName
from pricing.money import usd_text

_log: Final = logging.getLogger("kimi_gateway.limits")
_FIRST_PERCENT: Final = 80
_MOST_KNOWN: Final = 10_000


class Receiver(Protocol):
    """Where alerts go."""

    async def post(self, body: Mapping[str, object]) -> str:
        """Sends a body; "" where it arrived, else why not."""
        ...


class BudgetAlerts(Watcher):
    """Sends budget alerts. Belongs to one event loop; `wall` is Unix seconds."""

    def __init__(self, ledger: SpendSource, receiver: Receiver, *, wall: Callable[[], float]) -> None:
        self._ledger = ledger
        self._receiver = receiver
        self._wall = wall
        self._known: set[AlertName] = set()
        self._sending: set[asyncio.Task[None]] = set()

    @override
    def seen(self, key: str, verdict: Verdict) -> None:
        """A key stands so: sends what is due and was not sent."""
        for budget, whole, spent in (
            ("budget", verdict.budget_nano, verdict.spent_nano),
            ("highspeed_budget", verdict.highspeed_nano, verdict.highspeed_spent_nano),
        ):
            for percent in due(whole, spent, is_refused=verdict.refused_by == budget):
                alert = AlertName(key, verdict.period, budget, whole or 0, percent)
                if alert not in self._known:
                    self._begin(alert, spent)

    async def close(self) -> None:
        """Gives up what is still being sent."""
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _begin(self, alert: AlertName, spent_nano: int) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()  # the ledger knows them all
        self._known.add(alert)
        task = asyncio.create_task(self._send(alert, spent_nano), name=f"alert {alert.key}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, alert: AlertName, spent_nano: int) -> None:
        at_s = self._wall()
        try:
            is_ours = await asyncio.to_thread(self._ledger.take_alert, alert, at_s=at_s)
        except LedgerError as err:
            self._known.discard(alert)  # the next look at this key tries again
            _log.info("the alert on %s waits for the ledger: %s", alert.key, err)
            return
        if not is_ours:
            return
        problem = await self._receiver.post(body_of(alert, spent_nano, at_s))
        if problem:
            _log.error(
                "the webhook did not take the alert that %s has used %d %% of its %s: %s",
                alert.key,
                alert.percent,
                alert.budget,
                problem,
            )


def due(whole_nano: int | None, spent_nano: int, *, is_refused: bool) -> list[int]:
    """The percentages that are reached: 80, 100, both or none."""
    if not whole_nano:
        return []
    is_near = spent_nano * 100 >= whole_nano * _FIRST_PERCENT
    is_over = spent_nano >= whole_nano or (is_refused and is_near)
    return [percent for percent, reached in ((_FIRST_PERCENT, is_near), (100, is_over)) if reached]


def body_of(alert: AlertName, spent_nano: int, at_s: float) -> dict[str, object]:
    """What the webhook receives. Money is exact dollars as text, `at` Unix seconds."""
    return {
        "event": "budget",
        "key": alert.key,
        "budget": alert.budget,
        "percent": alert.percent,
        "period": alert.period,
        "budget_usd": usd_text(alert.budget_nano),
        "spent_usd": usd_text(spent_nano),
        "left_usd": usd_text(max(0, alert.budget_nano - spent_nano)),
        "at": int(at_s),
    }
