"""Budget alerts, refusals, headers and the balance; what a request has to reserve."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from kimi_gateway.adapters.limits.alerts import BudgetAlerts
from kimi_gateway.adapters.limits.opening import open_limiter, periods_of
from kimi_gateway.adapters.limits.outage import OutageLimiter
from kimi_gateway.adapters.limits.spend import LedgerSpend, spend_of
from kimi_gateway.adapters.webhook import Webhook
from kimi_gateway.core.limit_answers import balance, rate_headers, refusal
from kimi_gateway.core.limits import Allowance, Claim, Limits, Use, Verdict
from kimi_gateway.core.reserve import DEFAULT_OUTPUT, Ceiling, byte_bound, grown_bound, offer
from kimi_gateway.core.secret import Secret
from pricing.ledger.journal import JournalWriter
from pricing.ledger.store import Store
from support.ledger_rows import START, ledger_url, open_row, settled_row

USD = 10**9
LIMITS = Limits(budget_nano=100 * USD, highspeed_nano=50 * USD)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(ledger_url(tmp_path), create=True)
    yield store
    store.close()


class Receiver:
    """Takes every alert."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, object]] = []

    async def post(self, body: Mapping[str, object]) -> str:
        self.bodies.append(body)
        return ""


class Gateway:
    """A limiter in the process with alerts, as one gateway has it."""

    def __init__(self, url: str, receiver: Receiver) -> None:
        ledger = LedgerSpend(url)
        self.alerts = BudgetAlerts(ledger, receiver, wall=lambda: START)
        self.limiter: OutageLimiter = open_limiter(
            None,
            ledger,
            periods_of(lease_s=60, adopt_s=10),
            scope="test",
            on_outage="open",
            replicas=1,
            wall=lambda: START,
            mono=time.monotonic,
            watcher=self.alerts,
        )

    async def spend(self, name: str, nano: int, *, highspeed: bool = False) -> Verdict:
        claim = Claim(name, "team-a", START, nano, highspeed)
        verdict = await self.limiter.admit(claim, LIMITS)
        if verdict.admitted:
            await self.limiter.settle(claim, LIMITS, Use(nano))
        await self.limiter.standing("team-a", LIMITS)
        await asyncio.sleep(0.02)
        return verdict

    async def close(self) -> None:
        await self.alerts.close()
        await self.limiter.close()


def told(receiver: Receiver) -> list[tuple[object, object]]:
    return [(body["budget"], body["percent"]) for body in receiver.bodies]


def test_each_threshold_is_told_once_over_all_gateways(tmp_path: Path, store: Store) -> None:
    async def main() -> None:
        receiver = Receiver()
        first, second = Gateway(ledger_url(tmp_path), receiver), Gateway(ledger_url(tmp_path), receiver)
        await first.spend("a", 79 * USD)
        assert told(receiver) == []
        await first.spend("b", 1 * USD)
        await first.spend("c", 5 * USD)
        assert told(receiver) == [("budget", 80)]
        assert receiver.bodies[0] == {
            "event": "budget",
            "key": "team-a",
            "budget": "budget",
            "percent": 80,
            "period": "2026-11",
            "budget_usd": "100",
            "spent_usd": "80",
            "left_usd": "20",
            "at": int(START),
        }
        store.upsert([settled_row(name, cost_nano=nano * USD) for name, nano in (("a", 79), ("b", 1), ("c", 5))])
        assert (await second.spend("d", 16 * USD)).refused_by == "budget"
        await first.spend("e", 15 * USD)
        await asyncio.sleep(0.1)
        assert told(receiver) == [("budget", 80), ("budget", 100)]
        await first.close()
        await second.close()

    asyncio.run(main())


def test_highspeed_has_alerts_of_its_own_and_a_refusal_that_is_not_the_last_alerts_nobody(
    tmp_path: Path, store: Store
) -> None:
    async def main() -> None:
        receiver = Receiver()
        gateway = Gateway(ledger_url(tmp_path), receiver)
        await gateway.spend("a", 45 * USD, highspeed=True)
        await asyncio.sleep(0.05)
        assert told(receiver) == [("highspeed_budget", 80)]
        claim = Claim("b", "team-a", START, 6 * USD, True)
        assert not (await gateway.limiter.admit(claim, LIMITS, last=False)).admitted
        await asyncio.sleep(0.05)
        assert told(receiver) == [("highspeed_budget", 80)]
        assert not (await gateway.limiter.admit(claim, LIMITS)).admitted
        await asyncio.sleep(0.05)
        assert told(receiver) == [("highspeed_budget", 80), ("highspeed_budget", 100)]
        await gateway.close()

    asyncio.run(main())


# --- the webhook ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "problem", "calls"),
    [
        ([200], "", 1),
        ([503, 429, 204], "", 3),
        ([404, 200], "it answers with status 404", 1),
        ([302, 200], "it answers with status 302", 1),
        ([500] * 9, "it answers with status 500, 3 times over", 3),
        (["gone", 200], "", 2),
        (["gone"] * 9, "it does not answer (ConnectError), 3 times over", 3),
    ],
)
def test_a_webhook_is_tried_a_few_times_where_that_may_help(
    answers: list[int | str], problem: str, calls: int
) -> None:
    seen: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.content)
        now = answers[len(seen) - 1]
        if isinstance(now, str):
            raise httpx2.ConnectError(now)
        return httpx2.Response(now, headers={"location": "http://127.0.0.1:1/"})

    hook = Webhook(
        Secret("http://127.0.0.1:1/hook?token=very-secret"),
        attempts=3,
        pause_s=0.001,
        transport=httpx2.MockTransport(answer),
    )
    said = asyncio.run(hook.post({"event": "budget"}))
    assert said == problem
    assert "secret" not in said
    assert seen == [b'{"event":"budget"}'] * calls


def test_a_webhook_without_a_url_is_said_to_be_none() -> None:
    assert asyncio.run(Webhook(Secret("no url")).post({})) == "its address is not a URL"


# --- the journal of a process that died -----------------------------------------------------------------------


def test_what_a_dead_process_left_in_its_journal_is_spent(tmp_path: Path, store: Store) -> None:
    journal = JournalWriter(tmp_path / "j", ledger_url(tmp_path), max_bytes=2**20, fsync=False)
    journal.append_open(open_row("r1"))
    journal.append_settled(settled_row("r1", cost_nano=7))
    journal.close()  # and nobody has drained it
    spend = spend_of(ledger_url(tmp_path), tmp_path / "j")
    assert spend.booked("team-a", since=0.0, until=None).total_nano == 7
    spend.close()


# --- answers --------------------------------------------------------------------------------------------------


def test_a_budget_refuses_with_what_is_left_and_when_it_begins_anew() -> None:
    verdict = Verdict("budget", 86_400.2, "2026-11", 25 * USD, 500_000_000, spent_nano=24 * USD)
    error = refusal(verdict, key="team-a", asked_nano=1_310_000_000)
    assert (error.status, error.type, error.code) == (402, "insufficient_quota", "budget_exceeded")
    assert error.headers == {"retry-after": "86401", "x-should-retry": "false"}
    assert error.message == (
        "the key team-a has 0.5 USD left of its budget of 25 USD, and this request may cost up to 1.31 USD; ask "
        "for a shorter answer (max_completion_tokens), or wait for the next period (retry-after)"
    )


def test_what_is_only_held_is_worth_a_short_wait() -> None:
    verdict = Verdict("budget", 86_400.2, "2026-11", USD, 4_000, spent_nano=5_000_000)
    error = refusal(verdict, key="team-a", asked_nano=160_000_000)
    assert error.headers == {"retry-after": "2", "x-should-retry": "true"}
    assert "wait for those under way, for which 0.994996 USD are held" in error.message
    assert refusal(verdict, key="team-a", asked_nano=2 * USD).headers["x-should-retry"] == "false"


def test_a_budget_for_all_time_says_no_time() -> None:
    error = refusal(Verdict("highspeed_budget", 0.0, "total", highspeed_nano=5, highspeed_left_nano=-3), key="k")
    assert error.headers == {"x-should-retry": "false"}
    assert "the key k has 0 USD left of its Highspeed budget of 0.000000005 USD" in error.message
    assert "have the budget raised" in error.message


@pytest.mark.parametrize(
    ("by", "words", "wait"),
    [
        ("requests", "may have 60 requests a minute", "1"),
        ("tokens", "may have 1,000 tokens a minute", "13"),
        ("concurrency", "may have 5 requests at one time", "1"),
    ],
)
def test_a_rate_refuses_with_the_time_to_wait(by: str, words: str, wait: str) -> None:
    seconds = {"requests": 0.5, "tokens": 12.1, "concurrency": 1.0}[by]
    verdict = Verdict(
        by,  # type: ignore[arg-type]
        seconds,
        requests=Allowance(60, 0, 60.0),
        tokens=Allowance(1000, 12, 59.25),
    )
    error = refusal(verdict, key="team-a", concurrency=5)
    assert (error.status, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert words in error.message
    assert error.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "12",
        "x-ratelimit-reset-tokens": "59.25",
        "retry-after": wait,
        "x-should-retry": "true",
    }


def test_without_such_limits_there_are_no_such_headers() -> None:
    assert rate_headers(Verdict(budget_nano=1, left_nano=1)) == {}


def test_the_balance_is_what_is_neither_booked_nor_reserved() -> None:
    data = balance(Verdict("", 0, "2026-11", 25 * USD, 4 * USD, 9 * USD, -1, 20 * USD, 9 * USD + 1))
    assert data["available_balance"] == Decimal(4)
    assert data["budget"] == {"limit": 25, "spent": 20, "reserved": 1, "left": 4}
    assert data["highspeed_budget"] == {"limit": 9, "spent": Decimal("9.000000001"), "reserved": 0, "left": 0}
    only_fast = balance(Verdict("", 0, "2026-11", None, None, 9 * USD, 2 * USD, 5, 7 * USD))
    assert (only_fast["available_balance"], only_fast["budget"]) == (2, None)


# --- what is reserved -----------------------------------------------------------------------------------------

STANDARD = Ceiling(2000, 10_000)


def test_a_limit_that_is_named_is_reserved_as_it_is() -> None:
    asked = offer(STANDARD, prompt_tokens=1000, limit=500, window=1_048_576, answers=2, left_nano=1)
    assert (asked.nano, asked.tokens, asked.lowered_to) == (2_000_000 + 10_000_000, 2000, None)


def test_without_a_limit_a_dollar_buys_what_fits_into_it() -> None:
    asked = offer(STANDARD, prompt_tokens=1000, limit=None, window=1_048_576, left_nano=USD)
    assert (asked.nano, asked.lowered_to) == (USD, 99_800)
    rich = offer(STANDARD, prompt_tokens=1000, limit=None, window=1_048_576, left_nano=100 * USD)
    assert (rich.nano, rich.lowered_to) == (2_000_000 + DEFAULT_OUTPUT * 10_000, None)
    none = offer(STANDARD, prompt_tokens=1000, limit=None, window=1_048_576, left_nano=None)
    assert none == rich


def test_a_limit_is_not_lowered_below_sixteen_thousand() -> None:
    asked = offer(STANDARD, prompt_tokens=1000, limit=None, window=1_048_576, left_nano=USD // 10)
    assert asked.lowered_to == 16_000
    assert asked.nano > USD // 10


def test_no_more_is_reserved_than_the_window_has_room_for() -> None:
    asked = offer(STANDARD, prompt_tokens=31_000, limit=1_048_576, window=32_768, left_nano=None)
    assert asked.tokens == 32_768
    assert offer(STANDARD, prompt_tokens=99_000, limit=None, window=32_768, left_nano=None).tokens == 99_001


def test_bounds_on_the_prompt_end_at_the_window() -> None:
    assert (byte_bound(500, 1000), byte_bound(5000, 1000)) == (500, 1000)
    assert (grown_bound(400, 50, 1000), grown_bound(990, 50, 1000)) == (450, 1000)
