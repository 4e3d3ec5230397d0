"""Several gateways on one Valkey: a conversation goes from one to the other, through restarts and outages.

The client is a plain one that forgets every thought; the strict emulator says what it received.
"""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from pricing.ledger.row import LedgerRow
from support.asgi import serve
from support.forked import Forked, Nursery, nursery
from support.lab import wait_for_row
from support.pids import becomes_true
from support.talking import PlainClient, Said, check_grown, history_seen, thoughts_seen
from support.valkey import Server, running

CONFIG = """
[server]
drain_grace_s = 0
[state]
url = "{state}"
on_outage = "open"
[thinking]
encrypt_key_env = "{secret}"
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{emulator}/v1"
api_key_env = "SHARED_KEY"
"""
ENV = {"SHARED_KEY": "sk-shared", "THOUGHTS_SECRET": "kept-for-this-test-alone-" + 40 * "x"}


@dataclass
class Stage:
    """One Valkey, one emulator, one directory with one ledger, and gateways that come and go."""

    directory: Path
    emulator: str
    server: Server
    home: Nursery
    pairs: dict[str, list[Forked]] = field(default_factory=dict)

    def start(self, kind: str) -> Forked:
        """A gateway; a `sealed` one encrypts what it keeps."""
        secret = "THOUGHTS_SECRET" if kind == "sealed" else ""
        text = CONFIG.format(state=self.server.url, secret=secret, emulator=self.emulator)
        return self.home.start(text)

    def pair(self, kind: str) -> list[Forked]:
        """The two gateways of that kind, the same ones for every test."""
        if kind not in self.pairs:
            self.pairs[kind] = [self.start(kind), self.start(kind)]
        return self.pairs[kind]

    def urls(self, kind: str) -> list[str]:
        """Their addresses."""
        return [gateway.base_url for gateway in self.pair(kind)]

    def row(self, said: Said) -> LedgerRow:
        """The settled row of an answer."""
        return wait_for_row(f"sqlite:///{self.directory / 'kimi-ledger.db'}", said.request_id)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k")))  # short enough for a socket
        emulator = stack.enter_context(serve(Emulator(EmulatorConfig(pace=0))))
        server = stack.enter_context(running(directory))
        home = stack.enter_context(nursery(directory, "", ENV))
        yield Stage(directory, emulator, server, home)


@pytest.mark.parametrize("kind", ["plain", "sealed"])
def test_a_conversation_that_alternates_between_two_gateways_keeps_every_thought(stage: Stage, kind: str) -> None:
    client = PlainClient(f"two {kind} gateways")
    said = client.hold(*stage.urls(kind))
    check_grown(said)
    assert thoughts_seen(stage.emulator, client.topic) == client.thoughts[:4]
    assert all(client.thoughts)
    assert [one.kimi["thinking"] for one in said] == [one.thinking for one in said]
    assert [stage.row(one).thinking for one in said] == ["", *(one.thinking for one in said[1:])]
    assert {stage.row(one).cache_loss for one in said} == {""}


def everything_on(server: redis.Redis) -> bytes:
    """The names and contents of all keys of a server."""
    client: Any = server
    dumped: list[bytes] = []
    for name in client.scan_iter(count=10_000):
        dumped.append(name)
        match client.type(name):
            case b"hash":
                dumped += [part for pair in client.hgetall(name).items() for part in pair]
            case b"zset":
                dumped += client.zrange(name, 0, -1)
            case b"set":
                dumped += client.smembers(name)
            case b"list":
                dumped += client.lrange(name, 0, -1)
            case _:
                dumped.append(client.get(name))
    return b"\n".join(dumped)


def readable(dumped: bytes, client: PlainClient) -> list[str]:
    """Which texts of a conversation can be read in there, if only a piece: prompts, answers, thoughts, names."""
    texts = [message["content"] for message in client.messages if message["content"]]
    secrets = [*client.thoughts, *texts, client.topic, "get_weather", "Paris"]
    return [text for text in secrets if any(piece in dumped for piece in pieces(text.encode()))]


def pieces(text: bytes, size_bytes: int = 24) -> list[bytes]:
    """The text in pieces, a short one whole."""
    return [text[at : at + size_bytes] for at in range(0, max(1, len(text) - size_bytes), size_bytes)]


def test_with_a_secret_nothing_of_a_conversation_can_be_read_on_the_server(stage: Stage) -> None:
    client = PlainClient("nobody else", fields={"user": "anne-of-the-gables"})
    with stage.server.client() as server:
        server.flushall()  # what gateways without a secret kept in another test
        check_grown(client.hold(*stage.urls("sealed")))
        dumped = everything_on(server)
        assert len(dumped) > sum(map(len, client.thoughts))  # it is all there
        assert readable(dumped, client) == []
        assert b"anne" not in dumped
        assert ENV["SHARED_KEY"].encode() not in dumped
        server.hset("planted", "field", client.thoughts[2])  # the search would find it
        assert client.thoughts[2] in readable(everything_on(server), client)
        server.delete("planted")


def test_without_a_secret_thoughts_are_there_to_read(stage: Stage) -> None:
    client = PlainClient("everybody")
    client.hold(*stage.urls("plain"))
    with stage.server.client() as server:
        assert set(client.thoughts) <= set(readable(everything_on(server), client))


def test_another_end_user_gets_nothing_at_the_other_gateway(stage: Stage) -> None:
    anne, (first, second) = PlainClient("anne alone", fields={"user": "anne"}), stage.urls("sealed")
    anne.turn(first)
    bob = PlainClient("anne alone", fields={"user": "bob"}, messages=list(anne.messages), said=list(anne.said))
    assert bob.turn(second).thinking == "missing=1"
    assert thoughts_seen(stage.emulator, "anne alone") == [""]
    assert anne.turn(second).thinking == "repaired=1"
    assert thoughts_seen(stage.emulator, "anne alone") == anne.thoughts[:1]


def test_a_gateway_that_is_started_again_goes_on_with_the_conversation(stage: Stage) -> None:
    client = PlainClient("a restart in between")
    first, second = stage.pair("sealed")
    client.hold(first.base_url, second.base_url, turns=2)
    assert stage.home.kill(first, signal.SIGTERM) == 0
    stage.pairs["sealed"][0] = fresh = stage.start("sealed")
    for gateway in (fresh, second, fresh):
        client.turn(gateway.base_url)
    check_grown(client.said)
    assert thoughts_seen(stage.emulator, client.topic) == client.thoughts[:4]


def test_a_server_that_is_stopped_in_mid_conversation_costs_thoughts_and_no_request(stage: Stage) -> None:
    client, urls = PlainClient("an outage"), stage.urls("sealed")
    client.hold(*urls, turns=2)
    stage.server.stop()
    lost = [client.turn(urls[0]), client.turn(urls[1])]
    assert [one.thinking for one in lost] == ["missing=2", "missing=3"]
    assert [stage.row(one).anomaly for one in lost] == ["state_unavailable", "state_unavailable"]
    assert [stage.row(one).status for one in lost] == ["ok", "ok"]
    sent = [message for message in history_seen(stage.emulator, client.topic) if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in sent] == ["", "", ""]  # K3's placeholder, nothing made up
    stage.server.start()
    assert becomes_true(lambda: works(urls[0], "the first"))
    assert becomes_true(lambda: works(urls[1], "the second"))
    first = client.turn(urls[0])
    assert first.thinking == "missing=4"  # the server kept nothing on disk
    assert stage.row(first).anomaly == ""
    client.messages.append({"role": "user", "content": "And in Rome?"})
    assert client.turn(urls[1]).thinking == "repaired=1,missing=4"
    assert thoughts_seen(stage.emulator, client.topic) == ["", "", "", "", client.thoughts[4]]


def works(url: str, which: str) -> bool:
    """Thoughts are kept and put back again."""
    probe = PlainClient(f"trying {which}")
    return probe.hold(url, turns=2)[1].thinking == "repaired=1"
