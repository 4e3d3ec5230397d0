"""Why an upstream's cache was lost, each reason once over the wire: in a header, in the `kimi` object, in the row.

The emulator has a cache of its own and reports what it read; what it did not is what the gateway says was lost.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from pricing.ledger.row import LedgerRow
from support.asgi import serve
from support.forked import Clock, Forked, Nursery, nursery
from support.lab import wait_for_row
from support.processes import run_module
from support.talking import PlainClient, Said
from support.traffic import WEATHER

CONFIG = """
[server]
drain_grace_s = 0
[thinking]
{thinking}
[[targets]]
name = "first"
dialect = "moonshot"
base_url = "{first}/v1"
api_key_env = "LOSS_KEY"
[[targets]]
name = "second"
dialect = "moonshot"
base_url = "{second}/v1"
api_key_env = "LOSS_KEY"
[[routes]]
model = "kimi-k3.1-pro"
policy = "order"
targets = ["first", "second"]
"""
READ_USD, WRITE_USD = Decimal("0.20"), Decimal("2.00")  # per million tokens; a lost one is written anew at 5m
OTHER_TOOL = {
    "type": "function",
    "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(slots=True)
class Stage:
    """Two emulated services, and gateways before them with one ledger, whose clock may be moved."""

    directory: Path
    emulators: list[str]
    home: Nursery
    clock: Clock
    usual: Forked = field(init=False)

    def start(self, thinking: str) -> Forked:
        """A gateway with these settings of [thinking]."""
        first, second = self.emulators
        return self.home.start(CONFIG.format(thinking=thinking, first=first, second=second), clock=self.clock)

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.directory / 'kimi-ledger.db'}"

    def row(self, said: Said) -> LedgerRow:
        """The settled row of an answer."""
        return wait_for_row(self.ledger, said.request_id)

    def advance(self, seconds: float, *, emulators: bool = True) -> None:
        """Lets time pass, for the gateways and for the services or not."""
        self.clock.move(seconds)
        for address in self.emulators if emulators else ():
            tell(address, "clock", json.dumps({"advance_s": seconds}))


def tell(emulator: str, what: str, text: str) -> None:
    """POSTs to an emulator's controls."""
    assert httpx2.post(f"{emulator}/emulator/{what}", content=text, timeout=10).status_code == 200


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-test-")))
        emulators = [stack.enter_context(serve(Emulator(EmulatorConfig(pace=0, seed=seed)))) for seed in (1, 2)]
        home = stack.enter_context(nursery(directory, "", {"LOSS_KEY": "sk-loss"}))
        clock = Clock(directory / "clock")
        made = Stage(directory, emulators, home, clock)
        made.usual = made.start("")
        yield made


def grown(stage: Stage, topic: str, turns: int = 3, gateway: Forked | None = None) -> PlainClient:
    """A conversation that grew in the ordinary way, which never loses anything."""
    client = PlainClient(topic)
    for said in client.hold((gateway or stage.usual).base_url, turns=turns):
        assert "x-kimi-cache-loss" not in said.headers
        assert "cache_loss" not in said.kimi
        row = stage.row(said)
        assert (row.cache_loss, row.cache_lost_tokens, row.cache_lost_nano) == ("", None, None)
    return client


def check_lost(stage: Stage, client: PlainClient, reason: str, *, announced: bool = True) -> Said:
    """The last answer tells this reason and what it cost, everywhere the same."""
    said, before = client.said[-1], client.said[-2]
    row = stage.row(said)
    assert row.cache_loss == reason
    assert row.cache_lost_tokens is not None
    assert row.cache_lost_tokens > 256
    cost = row.cache_lost_tokens * (WRITE_USD - READ_USD) / 1_000_000
    assert Decimal(row.cache_lost_nano or 0).scaleb(-9) == cost
    told = said.kimi["cache_loss"]
    assert (told["reason"], told["tokens"], Decimal(told["usd"])) == (reason, row.cache_lost_tokens, cost)
    if announced:
        assert said.headers["x-kimi-cache-loss"].startswith(f"{reason};tokens=")
    # What was lost and what was read is together what the growing history had cached.
    assert row.cache_lost_tokens + said.cached_tokens >= before.cached_tokens
    return said


def test_an_ordinary_conversation_of_eight_turns_loses_nothing(stage: Stage) -> None:
    client = grown(stage, "eight turns", turns=8)
    cached = [said.cached_tokens for said in client.said]
    assert cached == sorted(cached)


def test_thoughts_that_were_evicted_are_the_reason_and_show_in_kimi_pricing(stage: Stage) -> None:
    small = stage.start("max_bytes = 12288\nmax_bytes_per_key = 12288")
    client = grown(stage, "evicted", gateway=small)
    assert client.said[-1].thinking == "repaired=2"
    grown(stage, "the one that needs the room", turns=5, gateway=small)
    client.turn(small.base_url)
    assert client.said[-1].thinking == "missing=3"
    said = check_lost(stage, client, "thinking_lost")
    words = ["show", said.request_id, "--ledger", stage.ledger]
    words += ["--journal", str(stage.directory / ".kimi-journal")]
    shown = run_module("pricing", *words, directory=stage.directory).stdout
    assert f"thinking_lost: {stage.row(said).cache_lost_tokens:,} tokens" in shown


def test_another_effort_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "effort")
    client.turn(stage.usual.base_url, reasoning_effort="high")
    check_lost(stage, client, "effort")
    client.turn(stage.usual.base_url, reasoning_effort="high")  # from here on it grows again
    assert "cache_loss" not in client.said[-1].kimi


def test_another_list_of_tools_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "tools")
    client.turn(stage.usual.base_url, tools=[WEATHER, OTHER_TOOL])
    check_lost(stage, client, "tools")


def test_a_failover_to_another_target_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "failover")
    tell(stage.emulators[0], "faults", '[[faults]]\nkind = "http_error"\nstatus = 500\ntimes = 3\n')
    client.turn(stage.usual.base_url)
    tell(stage.emulators[0], "faults", "")
    said = check_lost(stage, client, "target")
    assert (said.headers["x-kimi-target"], said.cached_tokens) == ("second", 0)


def test_an_edited_history_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "edited")
    client.messages.append({"role": "user", "content": "And tomorrow?"})
    client.turn(stage.usual.base_url)
    assert "cache_loss" not in client.said[-1].kimi
    client.messages[3]["content"] = "The tool said something else."
    client.turn(stage.usual.base_url)
    check_lost(stage, client, "history_edited")
    assert (
        client.said[-1].thinking == "repaired=2,missing=2"
    )  # those around the edit: nothing is put where it was not


def test_a_service_that_read_less_than_it_should_have_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "forgetful")
    for address in stage.emulators:
        tell(address, "clock", '{"advance_s": 301}')
    client.turn(stage.usual.base_url)
    check_lost(stage, client, "upstream", announced=False)


def test_time_that_has_passed_is_a_reason(stage: Stage) -> None:
    client = grown(stage, "too late")
    stage.advance(301)
    client.turn(stage.usual.base_url)
    said = check_lost(stage, client, "expired")
    assert (said.cached_tokens, said.thinking) == (0, "repaired=3")  # thoughts are kept for longer than caches
