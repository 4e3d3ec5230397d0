"""A relay's surroundings in which nothing is ever asked of a target, for tests of what stands around it."""

from pathlib import Path

from typing_extensions import override

from backends.catalog import DIALECTS
from backends.ports import Call, Reply, Upstream
from kimi_gateway.adapters.limits.opening import open_limiter, periods_of
from kimi_gateway.adapters.limits.spend import spend_of
from kimi_gateway.adapters.state import State
from kimi_gateway.adapters.state.memory import MemoryConversations
from kimi_gateway.app import authenticator
from kimi_gateway.core.retry import RetryBudget
from kimi_gateway.core.signs import FirstSigns
from kimi_gateway.core.standing import Standings
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.metrics import Metrics
from kimi_gateway.opening import opened_routing
from kimi_gateway.ports import Books
from kimi_gateway.relay.client import BufferBudget
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.thinking import Thinking
from kimi_gateway.settings import load
from pricing.ledger.row import LedgerRow
from pricing.rates import CardBook
from pricing.tokens import TokenCount
from support.idempotent import idempotency

IN_PROCESS = State(MemoryConversations(Bounds(0, 0, 1), lambda: 0.0), "memory://", "open")
ENVIRON = {"TEAM_A": "kg-team-a-secret", "TEAM_B": "kg-team-b-secret", "KIMI_ADMIN_KEY": "adm-secret"}


class NoUpstream(Upstream):
    """An upstream that nobody calls here."""

    @override
    async def open(self, call: Call) -> Reply:
        raise AssertionError("called")

    @override
    async def close(self) -> None:
        return


class NoBooks(Books):
    """Books that nobody opens here."""

    @override
    def open(self, row: LedgerRow) -> None:
        raise AssertionError("opened")

    @override
    def progress(self, row: LedgerRow) -> None:
        raise AssertionError("booked")

    @override
    def settled(self, row: LedgerRow) -> None:
        raise AssertionError("settled")

    @override
    def refused(self, key: str, code: str) -> None:
        raise AssertionError("refused")


class NoCounting:
    """Counts that nobody asks for here."""

    async def count(self, body: bytes) -> TokenCount:
        raise AssertionError("counted")


def context(path: Path) -> Context:
    settings = load(path, ENVIRON)
    stream = (path.parent / "log.txt").open("w")
    log = Log(LineWriter(stream, format="json"), wall=lambda: 0.0)
    log.close()
    stream.close()
    ctx = Context(
        settings=settings,
        cards=CardBook([]),
        dialects=DIALECTS,
        upstream=NoUpstream(),
        books=NoBooks(),
        metrics=Metrics(),
        log=log,
        lifecycle=Lifecycle(),
        buffers=BufferBudget(1),
        retries=RetryBudget(0.2),
        authenticate=authenticator(lambda: ctx.settings),
        mono=lambda: 0.0,
        wall=lambda: 0.0,
        random_bits=lambda _: 0,
        thinking=Thinking(IN_PROCESS.conversations, Metrics()),
        idempotency=idempotency(),
        limiter=open_limiter(
            None,
            spend_of(settings.ledger.url, path.parent / "journal"),
            periods_of(lease_s=60, adopt_s=10),
            scope="",
            on_outage="open",
            replicas=1,
            wall=lambda: 0.0,
            mono=lambda: 0.0,
        ),
        counting=NoCounting(),
        signs=FirstSigns(log, Standings()),
        routing=opened_routing(lambda: settings, None, IN_PROCESS, NoUpstream(), log).routing,
    )
    return ctx
