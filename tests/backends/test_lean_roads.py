"""How the lean client gets to an upstream: names and addresses, proxies, TLS, and what each can do wrong."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from backends.faults import Fault, FaultKind
from backends.lean.upstream import LeanUpstream
from backends.ports import Call, Upstream
from support.calls import Run, both_loops, fault_of
from support.hostile_http import Told, Visit, answering, hostile, told
from support.scripted import dead_port
from support.tunnel import self_signed, tunnel

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate for api.example and 127.0.0.1, and a server's context with it."""
    return self_signed(tmp_path_factory.mktemp("tls"), "DNS:api.example,IP:127.0.0.1")


async def asked(url: str, **options: Any) -> Told:
    """One call of a client of its own."""
    client = LeanUpstream(**{"proxies": {}, "tls": NO_TLS, **options})
    try:
        return await told(client, url)
    finally:
        await client.close()


# --- TLS -----------------------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("is_said", [True, False])
def test_over_tls_only_a_said_end_ends_a_body(
    run: Run, certified: tuple[Path, ssl.SSLContext], is_said: bool
) -> None:
    cert, server_tls = certified

    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(OK + b"\r\nhello")
        if not is_said:
            with socket.socket(fileno=os.dup(visit.writer.get_extra_info("socket").fileno())) as raw:
                raw.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.05)

    async def main() -> Told:
        async with hostile(speak, tls=server_tls) as place:
            return await asked(place.url, tls=ssl.create_default_context(cafile=cert))

    got = run(main())
    assert (got.status, got.body) == (200, b"hello")
    assert (got.fault is None) is is_said
    assert got.fault is None or got.fault.kind is FaultKind.RESET


@both_loops
def test_a_large_body_and_a_large_answer_go_over_tls(run: Run, certified: tuple[Path, ssl.SSLContext]) -> None:
    cert, server_tls = certified
    body = os.urandom(3 << 20)

    async def speak(visit: Visit) -> None:
        for _ in range(2):
            sent = (await visit.request()).partition(b"\r\n\r\n")[2]
            visit.writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(sent) + sent)
            await visit.writer.drain()
        await visit.left()

    async def main() -> tuple[Told, Told, int]:
        async with hostile(speak, tls=server_tls) as place:
            client = LeanUpstream(proxies={}, tls=ssl.create_default_context(cafile=cert))
            both = await told(client, place.url, body), await told(client, place.url, body)
            await client.close()
            return *both, place.visits

    first, second, visits = run(main())
    assert first.body == second.body == body
    assert visits == 1


# --- proxies -------------------------------------------------------------------------------------------------


@both_loops
def test_a_tunnel_leads_to_the_name_that_was_asked_for(
    run: Run, certified: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    cert, _ = certified
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(cert, cert.with_name("key.pem"))
    names: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: names.append(name)
    heads: list[bytes] = []

    async def speak(visit: Visit) -> None:
        while True:
            heads.append(await visit.request())
            await visit.send(TWO)

    async def main() -> list[str]:
        async with hostile(speak, tls=server_tls) as place:
            stack = ExitStack()
            proxy, places = stack.enter_context(tunnel(place.port))
            client = LeanUpstream(proxies={"https": proxy}, tls=ssl.create_default_context(cafile=cert))
            for _ in range(2):
                assert (await told(client, "https://api.example/v1?a=b")).body == b"ok"
            fault = await fault_of(client.open(Call("https://other.example/v1", {}, b"{}")))
            assert fault.kind is FaultKind.TLS
            assert "certificate of other.example:443 was not accepted: Hostname mismatch" in fault.message
            await client.close()
            await asyncio.to_thread(stack.close)  # its threads end when both ends in this loop have closed
            return places

    assert run(main()) == ["api.example:443", "other.example:443"]
    assert names == ["api.example", "other.example"]
    assert [head.partition(b"\r\nAccept")[0] for head in heads] == [
        b"POST /v1?a=b HTTP/1.1\r\nHost: api.example"
    ] * 2


@both_loops
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n\x16\x03\x01 words before ours", 0),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nnever", 403),
        (b"HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\n\r\n", 302),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 0),
        (b"SSH-2.0-x\r\n\r\n", 0),
        (b"HTTP/1.1 200 OK\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000, 0),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_told_from_the_upstream(run: Run, answer: bytes, status: int) -> None:
    async def speak(visit: Visit) -> None:
        await visit.head()
        await visit.send(answer)

    async def main() -> Told:
        async with hostile(speak) as place:
            return await asked("https://api.example/v1", proxies={"https": f"127.0.0.1:{place.port}"})

    fault = run(main()).fault
    assert fault is not None
    assert (fault.kind, fault.status) == (FaultKind.CONNECT, status)
    said = f"the proxy answered {status} when" if status else "the proxy for api.example:443 gave no usable answer"
    assert fault.message.startswith(said)


@both_loops
def test_a_mute_proxy_takes_no_longer_than_a_connect_may(run: Run) -> None:
    async def mute(visit: Visit) -> None:
        await visit.left()

    async def main() -> Fault:
        async with hostile(mute) as place:
            client = LeanUpstream(proxies={"https": f"http://127.0.0.1:{place.port}"}, tls=NO_TLS)
            opening = client.open(Call("https://api.example/v1", {}, b"{}", connect_timeout_s=0.1))
            fault = await asyncio.wait_for(fault_of(opening), 2)
            await client.close()
            return fault

    assert run(main()) == Fault(FaultKind.CONNECT, "no connection to api.example:443 within 0.1 s")


def test_tls_inside_tls_is_refused_with_the_remedy() -> None:
    got = asyncio.run(asked("https://api.example/v1", proxies={"https": "https://me:pw@proxy.example:3128"}))
    assert got.fault is not None
    assert got.fault.kind is FaultKind.CONNECT
    assert "name it as http://, or list api.example in NO_PROXY" in got.fault.message
    assert "pw" not in got.fault.message


@pytest.mark.parametrize("proxy", ["http://", "http://proxy.example:port", "http://[::1"])
def test_a_proxy_that_is_no_url_is_named_as_the_cause(proxy: str) -> None:
    got = asyncio.run(asked("http://api.example/v1", proxies={"http": proxy}))
    assert got.fault is not None
    assert got.fault.kind is FaultKind.CONNECT
    assert "list api.example in NO_PROXY" in got.fault.message


@both_loops
def test_a_proxy_may_speak_tls_to_us_for_plain_addresses(run: Run, certified: tuple[Path, ssl.SSLContext]) -> None:
    cert, server_tls = certified
    heads: list[bytes] = []

    async def speak(visit: Visit) -> None:
        heads.append(await visit.request())
        await visit.send(TWO)
        await visit.left()

    async def main() -> tuple[Told, Told]:
        async with hostile(speak, tls=server_tls) as place:
            proxies = {"http": f"https://me:p%40w@127.0.0.1:{place.port}"}
            trusting = await asked(
                "http://engine.example/v1", proxies=proxies, tls=ssl.create_default_context(cafile=cert)
            )
            return trusting, await asked("http://engine.example/v1", proxies=proxies)

    good, bad = run(main())
    assert good.body == b"ok"
    assert heads[0].startswith(
        b"POST http://engine.example/v1 HTTP/1.1\r\nHost: engine.example\r\n"
        b"Proxy-Authorization: Basic bWU6cEB3\r\n"
    )
    assert bad.fault is not None
    assert bad.fault.kind is FaultKind.TLS
    assert "the certificate of the proxy for engine.example:80 was not accepted" in bad.fault.message


# --- names and addresses -------------------------------------------------------------------------------------


def naming(base: type[asyncio.AbstractEventLoop], addresses: Sequence[str], asked_for: list[str]) -> Any:
    """A loop in which every name has these addresses; who asks is written down."""

    class Loop(base):  # type: ignore[misc,valid-type]
        async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
            if host[0].isdigit():  # uvloop asks for the address that it connects to
                return await super().getaddrinfo(host, port, **options)
            asked_for.append(host)
            await asyncio.sleep(0.01)
            return [
                (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
                for address in addresses
            ]

    return Loop


LOOPS = pytest.mark.parametrize("base", [asyncio.SelectorEventLoop, uvloop.Loop], ids=["asyncio", "uvloop"])


@contextmanager
def deaf(address: str, port: int) -> Iterator[None]:
    """A port at which a connection neither opens nor fails: its queue is full."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((address, port))
        try:
            yield
        finally:
            for filler in fillers:
                filler.close()


@LOOPS
@pytest.mark.parametrize("first", ["refuses", "is deaf"])
def test_a_name_with_a_dead_address_is_reached_at_another(base: Any, first: str) -> None:
    async def main() -> Told:
        async with hostile(answering([TWO])) as place:
            url = f"http://engine.example:{place.port}/v1"
            if first == "refuses":
                return await asked(url)
            with deaf("127.0.0.2", place.port):
                return await asked(url)

    with asyncio.Runner(loop_factory=naming(base, ["127.0.0.2", "127.0.0.1"], [])) as runner:
        got = runner.run(main())
    assert (got.body, got.fault) == (b"ok", None)


@LOOPS
def test_a_name_is_looked_up_once_for_all_who_ask_at_a_time(base: Any) -> None:
    asked_for: list[str] = []

    async def main() -> list[Told]:
        async with hostile(answering([TWO], [TWO])) as place:
            url = f"http://engine.example:{place.port}/v1"
            client = LeanUpstream(proxies={}, tls=NO_TLS)
            leaves = asyncio.create_task(client.open(Call(url, {}, b"{}")))
            calls = [asyncio.create_task(told(client, url)) for _ in range(5)]
            await asyncio.sleep(0)
            leaves.cancel()
            got = await asyncio.gather(*calls)
            got.append(await told(client, f"http://engine.example:{place.port}/other"))
            await client.close()
            return got

    with asyncio.Runner(loop_factory=naming(base, ["127.0.0.1"], asked_for)) as runner:
        got = runner.run(main())
    assert [one.body for one in got] == [b"ok"] * 6
    assert asked_for == ["engine.example"]


@LOOPS
def test_when_all_addresses_refuse_the_reason_is_told(base: Any) -> None:
    with dead_port() as port, asyncio.Runner(loop_factory=naming(base, ["127.0.0.1", "127.0.0.1"], [])) as runner:
        fault = runner.run(asked(f"http://engine.example:{port}/v1")).fault
    assert fault == Fault(FaultKind.CONNECT, f"cannot connect to engine.example:{port}: connection refused")


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_name_that_is_none_is_a_connect_fault(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        fault = runner.run(asked(f"http://{'a' * 64}.example/v1")).fault
    assert fault is not None
    assert fault.kind in (FaultKind.CONNECT, FaultKind.REQUEST)


def test_a_connection_that_was_not_made_gives_its_place_back() -> None:
    async def calls(client: Upstream, port: int) -> None:
        for _ in range(3):
            fault = await fault_of(client.open(Call(f"http://127.0.0.1:{port}/", {}, b"{}")))
            assert fault.message.endswith("connection refused")

    async def main(port: int) -> None:
        client = LeanUpstream(proxies={}, tls=NO_TLS, max_connections=1)
        await calls(client, port)
        await client.close()

    with dead_port() as port:
        asyncio.run(main(port))


@both_loops
def test_closing_the_client_ends_calls_that_wait_for_an_answer(run: Run) -> None:
    async def mute(visit: Visit) -> None:
        await visit.left()

    async def main() -> Fault:
        async with hostile(mute) as place:
            client = LeanUpstream(proxies={}, tls=NO_TLS)
            opening = asyncio.create_task(fault_of(client.open(Call(place.url, {}, b"{}"))))
            await asyncio.sleep(0.02)
            await client.close()
            return await asyncio.wait_for(opening, 1)

    assert run(main()).kind is FaultKind.RESET
