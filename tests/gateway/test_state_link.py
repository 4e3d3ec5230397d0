"""The connection to a server: what an outage looks like, how short it is, and that no reply goes astray."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kimi_gateway.adapters.state.link import Link, Script, StateUnsuited
from kimi_gateway.adapters.state.opening import open_state
from kimi_gateway.adapters.state.seal import WeakSecret
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.state_url import StateUrlError, state_url
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.ports import StateUnavailable
from support.valkey import Server, link_to, running

ECHO = Script("echo", b"return ARGV[1]")
SET = Script("set", b"return redis.call('SET', KEYS[1], ARGV[1])")
PASSWORD = "pass-word of a test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v")), password=PASSWORD) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    """The server's address; it runs and answers."""
    server.thaw()
    return f"redis://:pass-word%20of%20a%20test@127.0.0.1:{server.port}/0"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def says(link: Link, text: bytes) -> bool:
    """Whether the server gives back this text; any other answer is an error."""
    reply = await link.run(ECHO, [], [text])
    assert reply == text
    return True


async def fails(link: Link) -> tuple[str, float]:
    """How it fails, and how long that takes."""
    started_s = time.monotonic()
    with pytest.raises(StateUnavailable) as failure:
        await link.run(ECHO, [], [b"x"])
    return str(failure.value), time.monotonic() - started_s


# --- addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("memory://", "memory://"),
        ("embedded://", "embedded://"),
        ("redis://cache", "redis://cache:6379/0"),
        ("redis://user:pass@cache:7000/2", "redis://cache:7000/2"),
        ("rediss://:pass@[::1]:7000/2?ssl_ca_certs=/etc/ca.pem", "rediss://[::1]:7000/2"),
        ("unix://user:pass@/run/v.sock?db=1", "unix:///run/v.sock"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, shown: str) -> None:
    address = state_url(text)
    assert (address.text, address.shown) == (text, shown)
    assert address.secret == ("pass" if "pass" in text else "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"memory:// \(one worker\), embedded:// \(.*\) or redis://"),
        ("secret@cache:6379", r"has no scheme;"),
        ("postgres://u:secret@cache", r"kind 'postgres'; expected memory:// .*, embedded:// .* or redis://"),
        ("valkeys://u:secret@cache", r"write rediss:// for valkeys://"),
        ("memory://secret", r"takes nothing behind it"),
        ("redis://u:secret@cache:port", r"malformed"),
        ("redis://u:secret@[cache", r"malformed"),
        ("redis://u:secret@cache/name", r"number of a database"),
        ("redis://u:secret@cache?db=secret", r"number of a database"),
        ("redis://u:secret@cache?socket_timeout=9", r"takes no 'socket_timeout'; known: db, ssl_ca_certs"),
        ("unix://u:secret@host/run/v.sock", r"absolute path of a socket"),
        ("unix://", r"absolute path of a socket"),
    ],
)
def test_any_other_address_is_refused_with_what_would_do(text: str, words: str) -> None:
    with pytest.raises(StateUrlError, match=words) as refused:
        open_state(text, on_outage="open", bounds=Bounds(), secret=None, mono=time.monotonic)
    assert "secret" not in str(refused.value)


def test_a_weak_secret_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(WeakSecret):
        open_state("embedded://", on_outage="open", bounds=Bounds(), secret=Secret("short"), mono=time.monotonic)


# --- replies --------------------------------------------------------------------------------------------------


def test_many_calls_share_few_connections_and_each_gets_its_own_reply(server: Server, url: str) -> None:
    async def main() -> None:
        link = link_to(url, max_connections=3)
        await asyncio.gather(*[says(link, b"%d" % number * 500) for number in range(200)])
        with server.client() as asked:
            assert len([one for one in asked.client_list() if one["addr"].startswith("127.")]) == 3
        await link.close()
        with pytest.raises(StateUnavailable, match="closed"):
            await link.run(ECHO, [], [b"x"])

    asyncio.run(main())


def test_a_cancelled_call_leaves_no_reply_for_the_next(server: Server, url: str) -> None:
    """The reply of the first comes while nobody waits for it; one connection serves both."""

    async def main() -> None:
        link = link_to(url, max_connections=1)
        await says(link, b"warm")
        with server.client() as asked:
            for after_s in (0.0, 0.001, 0.03):
                asked.client_pause(100)
                call = asyncio.create_task(says(link, b"first"))
                await asyncio.sleep(after_s)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert await says(link, b"second")
                assert await says(link, b"third")
        assert link.problem == ""
        await link.close()

    asyncio.run(main())


def test_a_call_cancelled_while_it_connects_or_waits_for_a_connection_gives_its_place_back(
    server: Server, url: str
) -> None:
    async def main() -> None:
        link = link_to(url, max_connections=1)
        server.freeze()
        calls = [asyncio.create_task(says(link, b"x")) for _ in range(5)]
        await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        server.thaw()
        assert await asyncio.gather(*[says(link, b"%d" % number) for number in range(5)]) == [True] * 5
        await link.close()

    asyncio.run(main())


def test_a_server_that_hung_up_or_forgot_its_scripts_costs_no_call(server: Server, url: str) -> None:
    async def main() -> None:
        link = link_to(url, max_connections=1)
        await says(link, b"one")
        with server.client() as asked:
            asked.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
            await says(link, b"two")
            asked.script_flush()
        await says(link, b"three")
        assert link.problem == ""
        await link.close()

    asyncio.run(main())


# --- outages --------------------------------------------------------------------------------------------------


def test_a_server_that_is_gone_fails_at_once_and_works_again_once_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        server = Server(tmp_path)
        server.start()
        link = link_to(server.url, mono=clock)
        await asyncio.gather(*[says(link, b"%d" % number) for number in range(20)])
        server.stop()
        said, took_s = await fails(link)
        assert said.startswith(f"the state at unix://{server.path} is out of reach: ")
        assert took_s < 0.1
        server.start()
        assert (await fails(link))[0] == link.problem != ""
        clock.now_s = 1.0
        assert await asyncio.gather(*[says(link, b"%d" % number) for number in range(1)]) == [True]
        assert link.problem == ""
        await asyncio.gather(*[says(link, b"%d" % number) for number in range(20)])
        await link.close()
        server.stop()

    asyncio.run(main())


def test_a_server_that_is_silent_costs_its_time_once_and_then_one_call_a_second(server: Server, url: str) -> None:
    async def main() -> None:
        clock = Clock()
        link = link_to(url, mono=clock, operation_timeout_s=0.3, connect_timeout_s=0.3)
        await says(link, b"x")
        server.freeze()
        said, took_s = await fails(link)
        assert "no answer within 0.3 s" in said
        assert 0.29 < took_s < 2
        for _ in range(50):
            assert (await fails(link))[1] < 0.2
        clock.now_s = 1.0
        times = sorted([took_s for _, took_s in await asyncio.gather(*[fails(link) for _ in range(20)])])
        assert times[-2] < 0.2
        assert times[-1] > 0.29  # one of them tried
        clock.now_s = 2.0
        server.thaw()
        await says(link, b"back")
        assert await asyncio.gather(*[says(link, b"x") for _ in range(20)]) == [True] * 20
        await link.close()

    asyncio.run(main())


def test_a_try_that_is_cancelled_leaves_the_next_to_try(server: Server, url: str) -> None:
    async def main() -> None:
        clock = Clock()
        link = link_to(url, mono=clock, operation_timeout_s=0.05, connect_timeout_s=0.05)
        server.freeze()
        await fails(link)
        clock.now_s = 1.0
        tried = asyncio.create_task(link.run(ECHO, [], [b"x"]))
        await asyncio.sleep(0.01)
        tried.cancel()
        await asyncio.gather(tried, return_exceptions=True)
        server.thaw()
        assert await says(link, b"x")
        await link.close()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["redis://:wrong-secret@127.0.0.1:{port}/0", "redis://127.0.0.1:{port}/0"])
def test_a_wrong_password_is_an_outage_that_does_not_show_it(server: Server, url: str, address: str) -> None:
    async def main() -> None:
        link = link_to(address.format(port=server.port))
        said, _ = await fails(link)
        assert f"redis://127.0.0.1:{server.port}/0 is out of reach: " in said
        assert "assword" in said or "uthentication" in said
        assert "wrong-secret" not in said
        await link.close()

    asyncio.run(main())


def test_a_script_that_fails_keeps_nobody_else_waiting(server: Server, url: str) -> None:
    async def main() -> None:
        link = link_to(url)
        with pytest.raises(StateUnavailable, match="refuses: "):
            await link.run(Script("wrong", b"return nothing.there"), [], [])
        assert link.problem == ""
        await says(link, b"x")
        await link.close()

    asyncio.run(main())


def test_a_full_server_is_told_from_one_that_is_gone(server: Server, url: str) -> None:
    async def main() -> None:
        link = link_to(url)
        with server.client() as asked:
            asked.config_set("maxmemory", 1)
            try:
                with pytest.raises(StateUnavailable, match=r"is full; raise its maxmemory well above thinking\."):
                    await link.run(SET, [b"k"], [b"v"])
                await says(link, b"x")
            finally:
                asked.config_set("maxmemory", 0)
        await link.run(SET, [b"k"], [b"v"])
        await link.close()

    asyncio.run(main())


# --- what the server is ---------------------------------------------------------------------------------------


def test_a_server_that_evicts_as_it_likes_is_warned_of(server: Server, url: str) -> None:
    async def main() -> None:
        link = link_to(url)
        assert await link.check() == ()
        with server.client() as asked:
            asked.config_set("maxmemory", 1 << 30)
            asked.config_set("maxmemory-policy", "allkeys-lru")
            try:
                (warning,) = await link.check()
            finally:
                asked.config_set("maxmemory-policy", "noeviction")
                asked.config_set("maxmemory", 0)
        assert "allkeys-lru" in warning
        assert "set it to noeviction" in warning
        await link.close()

    asyncio.run(main())


@asynccontextmanager
async def answering(path: Path, reply: bytes) -> AsyncIterator[Link]:
    """A link to something that gives the same reply to whatever it is sent."""

    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(reply)
        writer.close()
        over.set()

    async with await asyncio.start_unix_server(serve, path):
        link = link_to(f"unix://{path}")
        try:
            yield link
        finally:
            await link.close()
            await over.wait()


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (
            b"redis_version:7.2.4\r\ncluster_enabled:1\r\n",
            "part of a cluster, which is not supported; name a single",
        ),
        (b"redis_version:5.0.14\r\ncluster_enabled:0\r\n", "Redis 5.0.14; Valkey, or Redis 6 or later, is needed"),
    ],
)
def test_a_server_that_cannot_hold_the_state_is_refused(tmp_path: Path, info: bytes, words: str) -> None:
    async def main() -> None:
        async with answering(tmp_path / "s", b"$%d\r\n%b\r\n" % (len(info), info)) as link:
            with pytest.raises(StateUnsuited, match=words):
                await link.check()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"-MOVED 3999 127.0.0.1:6381\r\n", "refuses: it is part of a cluster"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is out of reach: "),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", "is out of reach: .*loading"),
        (b"-READONLY You can't write against a read only replica.\r\n", "refuses: .*read only"),
    ],
)
def test_whatever_else_answers_is_said_in_words(tmp_path: Path, reply: bytes, words: str) -> None:
    async def main() -> None:
        async with answering(tmp_path / "s", reply) as link:
            with pytest.raises(StateUnavailable, match=words):
                await link.run(ECHO, [], [b"x"])

    asyncio.run(main())


def test_at_the_start_a_server_that_is_down_stops_only_who_wants_to_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        for on_outage in ("open", "closed"):
            state = open_state(
                f"unix://{tmp_path}/none",
                on_outage="open" if on_outage == "open" else "closed",
                bounds=Bounds(),
                secret=None,
                mono=time.monotonic,
            )
            if on_outage == "open":
                (said,) = await state.look()
                assert "is out of reach" in said
                assert "until it is back thoughts are neither kept nor put back" in said
            else:
                with pytest.raises(StateUnavailable):
                    await state.look()
            await state.close()

    asyncio.run(main())
