"""Which calls go through a proxy of the environment, and what the proxy gets to see."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from backends.aiohttp_proxy import ProxyError, proxy_for
from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import Call, UpstreamFault
from support.calls import BODY, HEADERS, SECRET, in_asyncio, tried
from support.scripted import dead_port

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("scheme", "host", "port", "proxies", "expected"),
    [
        ("https", "api.moonshot.ai", 443, {"https": PROXY}, PROXY),
        ("https", "api.moonshot.ai", 443, {"http": PROXY}, None),
        ("https", "api.moonshot.ai", 443, {"all": PROXY}, PROXY),
        ("http", "engine", 8000, {"http": "proxy.example:3128"}, PROXY),
        ("http", "127.0.0.1", 8000, {"http": PROXY}, None),
        ("http", "localhost", 8000, {"http": PROXY}, None),
        ("http", "::1", 8000, {"http": PROXY}, None),
        ("https", "api.moonshot.ai", 443, {"https": PROXY, "no": "*"}, None),
        ("https", "api.moonshot.ai", 443, {"https": PROXY, "no": "moonshot.ai"}, None),
        ("https", "api.moonshot.ai", 443, {"https": PROXY, "no": " .Moonshot.AI , x"}, None),
        ("https", "api.moonshot.ai", 443, {"https": PROXY, "no": "*.moonshot.ai"}, None),
        ("https", "notmoonshot.ai", 443, {"https": PROXY, "no": "moonshot.ai"}, PROXY),
        ("http", "engine", 8000, {"http": PROXY, "no": "engine:8000"}, None),
        ("http", "engine", 8001, {"http": PROXY, "no": "engine:8000"}, PROXY),
        ("http", "10.1.2.3", 8000, {"http": PROXY, "no": "10.0.0.0/8"}, None),
        ("http", "11.1.2.3", 8000, {"http": PROXY, "no": "10.0.0.0/8,nonsense/99"}, PROXY),
        ("http", "10.1.2.3", 8000, {"http": PROXY, "no": "10.1.2.3:8000"}, None),
        ("http", "fd00::5", 8000, {"http": PROXY, "no": "fd00::/8"}, None),
        ("https", "api.moonshot.ai", 443, {"https": ""}, None),
    ],
)
def test_the_proxy_of_an_address(
    scheme: str, host: str, port: int, proxies: dict[str, str], expected: str | None
) -> None:
    assert proxy_for(scheme, host, port, proxies) == expected


def test_a_socks_proxy_is_refused_with_the_remedy() -> None:
    with pytest.raises(ProxyError, match=r"socks5 proxy for https.*list api\.moonshot\.ai in NO_PROXY"):
        proxy_for("https", "api.moonshot.ai", 443, {"https": "socks5://x:1"})


@pytest.fixture
def proxy() -> Any:
    """Starts a server that answers one request head with what the function makes of it."""

    async def start(answer: Callable[[bytes], bytes]) -> Any:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
            writer.close()

        return await asyncio.start_server(speak, "127.0.0.1", 0)

    return start


def through(
    url: str, answer: Callable[[bytes], bytes], start: Any, user: str = ""
) -> tuple[int | None, Fault | None]:
    """The status and fault of a call through a one-answer proxy."""

    async def main() -> tuple[int | None, Fault | None]:
        async with await start(answer) as server:
            address = f"http://{user}127.0.0.1:{server.sockets[0].getsockname()[1]}"
            client = AiohttpUpstream(proxies={"http": address, "https": address})
            try:
                reply = await client.open(Call(url, HEADERS, BODY))
                reply.close()
                return reply.status, None
            except UpstreamFault as err:
                return None, err.fault
            finally:
                await client.close()

    return in_asyncio(main())


def test_a_plain_call_goes_through_the_proxy_with_its_password(proxy: Any) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    status, _ = through("http://engine.example:8000/v1/chat/completions", answer, proxy, user="me:pw@")
    assert status == 200
    assert heads[0].startswith(b"POST http://engine.example:8000/v1/chat/completions HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6cHc=\r\n" in heads[0]
    assert f"Authorization: Bearer {SECRET}\r\n".encode() in heads[0]


def test_a_tls_call_shows_the_proxy_neither_key_nor_body_and_tells_its_refusal(proxy: Any) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"

    status, fault = through("https://api.example/v1/chat/completions", answer, proxy, user="me:pw@")
    assert status is None
    assert fault == Fault(
        FaultKind.CONNECT, "the proxy answered 407 when asked to connect to api.example:443", 407
    )
    assert heads[0].startswith(b"CONNECT api.example:443 HTTP/1.1\r\n")
    assert SECRET.encode() not in heads[0]
    assert b"Proxy-Authorization: Basic bWU6cHc=\r\n" in heads[0]


def test_a_dead_proxy_is_named_as_the_cause() -> None:
    with dead_port() as port:
        address = f"http://me:pw@127.0.0.1:{port}"
        _, fault = tried(in_asyncio, "https://api.example/v1", proxies={"https": address})
    assert fault is not None
    assert fault.kind is FaultKind.CONNECT
    assert "the proxy for api.example:443 cannot be reached: connection refused" in fault.message
    assert "pw" not in fault.message


def test_proxy_variables_of_the_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with dead_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        _, fault = tried(in_asyncio, "https://api.example/v1")
        assert fault is not None
        assert "the proxy for api.example:443" in fault.message
