"""Every way in which a call can fail, as the upstream client tells it: kind, words, and no secrets in them."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from backends.aiohttp_proxy import ProxyError, proxy_for
from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import Call, UpstreamFault
from support.exchange import Exchange
from support.scripted import Answer, Script, ScriptedUpstream, dead_port

SECRET = "sk-upstream-secret"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
BODY = b'{"model":"kimi-k3.1-pro"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return request.param


def tried(loop_factory: Any, url: str, **options: Any) -> tuple[bytes, Fault | None]:
    """The body bytes of one call and the fault it ended with."""
    connect_timeout_s = options.pop("connect_timeout_s", 5.0)

    async def main() -> tuple[bytes, Fault | None]:
        client = AiohttpUpstream(**options)
        got = b""
        try:
            reply = await client.open(Call(url, HEADERS, BODY, connect_timeout_s))
            while data := await reply.read(5):
                got += data
            return got, None if data == b"" else Fault(FaultKind.TIMEOUT, "the body went silent")
        except UpstreamFault as err:
            told = (str(err), repr(err.fault), repr(err.__cause__), repr(err.__context__))
            return got, Fault(FaultKind.AUTH, "the key was told") if SECRET in "".join(told) else err.fault
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


def raw(*writes: bytes, reset: bool = False) -> Script:
    async def script(exchange: Exchange) -> None:
        for data in writes:
            await exchange.write(data)
            await exchange.pause(0.02)
        if reset:
            exchange.reset()

    return script


# --- before a connection stood --------------------------------------------------------------------------------


def test_a_refused_connection_never_reached_the_upstream(loop_factory: Any) -> None:
    with dead_port() as port:
        _, fault = tried(loop_factory, f"http://127.0.0.1:{port}/v1/chat/completions")
    assert fault == Fault(FaultKind.CONNECT, f"cannot connect to 127.0.0.1:{port}: connection refused")


def test_a_name_that_does_not_resolve_is_a_connect_fault(loop_factory: Any) -> None:
    _, fault = tried(loop_factory, "http://no-such-host.invalid/v1")
    assert fault is not None
    assert fault.kind is FaultKind.CONNECT
    assert "host name of no-such-host.invalid:80 cannot be resolved" in fault.message


def test_a_connect_that_takes_too_long_is_a_connect_fault(loop_factory: Any) -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.hold()

    with ScriptedUpstream([mute]) as up:  # plain: it never answers the TLS hello
        began_s = time.monotonic()
        _, fault = tried(loop_factory, f"https://127.0.0.1:{up.port}/v1", connect_timeout_s=0.2)
        assert time.monotonic() - began_s < 2
    assert fault == Fault(FaultKind.CONNECT, f"no connection to 127.0.0.1:{up.port} within 0.2 s")


@pytest.mark.parametrize(
    "url", ["not a url", "ftp://host/v1", "/v1/chat", "http://user:pw@127.0.0.1/v1", "http://127.0.0.1:99999/v1"]
)
def test_an_address_that_is_none_is_said_to_be_none(url: str) -> None:
    _, fault = tried(asyncio.new_event_loop, url)
    assert fault is not None
    assert fault.kind is FaultKind.REQUEST
    assert "pw" not in fault.message


# --- TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key, cert = path.with_name("key.pem"), path.with_name("cert.pem")
    options = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=elsewhere.example -addext subjectAltName=IP:127.0.0.1"
    )
    command = ["openssl", *options.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(key.read_text() + cert.read_text())
    return path


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_self_signed_certificate_is_not_accepted(loop_factory: Any, server_tls: ssl.SSLContext) -> None:
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        _, fault = tried(loop_factory, up.base_url)
        assert up.requests == []
    assert fault is not None
    assert fault.kind is FaultKind.TLS
    assert f"the certificate of 127.0.0.1:{up.port} was not accepted: self-signed certificate" in fault.message


def test_ssl_cert_file_makes_it_known(
    loop_factory: Any, server_tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        assert tried(loop_factory, up.base_url) == (b"ok", None)


def test_a_certificate_for_another_name_is_not_accepted(
    loop_factory: Any, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    context = ssl.create_default_context(cafile=certificate)
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        _, fault = tried(loop_factory, f"https://localhost:{up.port}/v1", tls=context)
    assert fault is not None
    assert fault.kind is FaultKind.TLS
    assert "Hostname mismatch" in fault.message


def test_https_to_a_plain_server_is_a_tls_fault(loop_factory: Any) -> None:
    async def plain(exchange: Exchange) -> None:
        raise AssertionError("a TLS hello is no request")

    async def main(port: int) -> Fault | None:
        return (await asyncio.to_thread(tried, loop_factory, f"https://127.0.0.1:{port}/v1"))[1]

    async def serve() -> Fault | None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            return await main(server.sockets[0].getsockname()[1])

    fault = asyncio.run(serve())
    assert fault is not None
    assert fault.kind is FaultKind.TLS
    assert "check https:// in its address" in fault.message


def test_leaving_a_tls_stream_is_seen_upstream_at_once(
    loop_factory: Any, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    async def main(up: ScriptedUpstream) -> float:
        client = AiohttpUpstream(tls=ssl.create_default_context(cafile=certificate))
        reply = await client.open(Call(up.base_url, HEADERS, BODY))
        assert await reply.read(2) == b"x"
        reply.close()
        closed_s = time.monotonic()
        await asyncio.to_thread(up.wait_for_disconnect, 2)
        await client.close()
        return closed_s

    with ScriptedUpstream([{"status": 200, "sse_text": "x", "then": "hold"}], tls=server_tls) as up:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            closed_s = runner.run(main(up))
        left_s = up.requests[0].closed_by_client_at
    assert left_s is not None
    assert left_s - closed_s < 1


# --- after sending --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [{"then": "reset"}, {"then": "close"}, raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), raw(b"HTTP/1.1 2", reset=True)],
    ids=["reset", "closed", "half a head", "half a head, reset"],
)
def test_a_break_before_the_head_may_have_been_billed(loop_factory: Any, answer: Answer) -> None:
    with ScriptedUpstream([answer, {"status": 200, "text": "again"}]) as up:
        got, fault = tried(loop_factory, up.base_url)
        assert len(up.requests) == 1  # never repeated here
    assert got == b""
    assert fault is not None
    assert fault.kind is FaultKind.RESET
    assert f"127.0.0.1:{up.port}" in fault.message


@pytest.mark.parametrize(
    ("answer", "bytes_before"),
    [
        ({"status": 200, "sse_text": "data: 1\n\n", "then": "close"}, b"data: 1\n\n"),
        ({"status": 200, "sse_text": "data: 1\n\n", "then": "reset"}, b"data: 1\n\n"),
        ({"status": 200, "text": "hello", "framing": "short"}, b"hello"),
        ({"status": 200, "text": "hello", "framing": "until-close", "then": "reset"}, b"hello"),
        (raw(CHUNKED, b"5\r\nhello\r\nff\r\nwor"), b"hellowor"),
        (raw(CHUNKED, b"5\r\nhello\r\n", b"not a size\r\n"), b"hello"),
        (raw(CHUNKED, b"5\r\nhello!!\r\n"), b"hello"),
    ],
    ids=["cut chunks", "reset", "short length", "reset until close", "cut in a chunk", "bad size", "long chunk"],
)
def test_a_break_in_the_body_gives_what_came_and_then_says_so(
    loop_factory: Any, answer: Answer, bytes_before: bytes
) -> None:
    with ScriptedUpstream([answer]) as up:
        got, fault = tried(loop_factory, up.base_url)
    assert got == bytes_before
    message = f"127.0.0.1:{up.port} broke the connection in the middle of its answer"
    assert fault == Fault(FaultKind.RESET, message)


def test_bytes_and_break_that_came_together_are_told_apart(loop_factory: Any) -> None:
    async def main(up: ScriptedUpstream) -> bytes:
        client = AiohttpUpstream()
        reply = await client.open(Call(up.base_url, HEADERS, BODY))
        await asyncio.sleep(0.2)  # text and end are both in before the first read
        got = await reply.read(0)
        for _ in range(2):
            with pytest.raises(UpstreamFault, match="in the middle of its answer"):
                await reply.read(1)
        await client.close()
        return got or b""

    cut = {"status": 200, "sse_text": "data: 1\n\n", "then": "close"}
    with ScriptedUpstream([cut]) as up, asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main(up)) == b"data: 1\n\n"


def test_a_body_until_close_ends_well(loop_factory: Any) -> None:
    with ScriptedUpstream([{"status": 200, "text": "hello", "framing": "until-close"}]) as up:
        assert tried(loop_factory, up.base_url) == (b"hello", None)


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-Server\r\n",
        b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 20_000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: x-own\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["no HTTP", "huge header", "many headers", "two lengths", "bad length", "brotli", "own coding", "upgrade"],
)
def test_an_answer_that_is_not_usable_http_is_a_server_fault(loop_factory: Any, head: bytes) -> None:
    with ScriptedUpstream([raw(head)]) as up:
        got, fault = tried(loop_factory, up.base_url)
    assert got == b""
    assert fault is not None
    assert fault.kind is FaultKind.SERVER
    assert fault.message.startswith(f"127.0.0.1:{up.port} ")


def test_a_body_that_is_not_the_gzip_it_claims_is_a_server_fault(loop_factory: Any) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\n\r\n"
    with ScriptedUpstream([raw(head, b"this is no gzip")]) as up:
        _, fault = tried(loop_factory, up.base_url)
    assert fault is not None
    assert fault.kind is FaultKind.SERVER


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(loop_factory: Any, status: int) -> None:
    with ScriptedUpstream([{"status": 200, "text": "stolen"}]) as other:
        goal = f"{other.base_url}/chat?token=t0k3n"
        with ScriptedUpstream([{"status": status, "headers": {"Location": goal}, "text": ""}]) as up:
            got, fault = tried(loop_factory, up.base_url)
        assert other.requests + other.probes == []
    assert got == b""
    assert fault == Fault(
        FaultKind.SERVER,
        f"127.0.0.1:{up.port} redirects to http://127.0.0.1, which is not followed; "
        "name the final address in base_url",
        status,
    )


@pytest.mark.parametrize("status", [400, 429, 500, 503, 599])
def test_an_error_status_is_an_answer_and_no_fault_here(loop_factory: Any, status: int) -> None:
    with ScriptedUpstream([{"status": status, "json": {"error": {}}}]) as up:
        assert tried(loop_factory, up.base_url) == (b'{"error":{}}', None)


# --- proxies --------------------------------------------------------------------------------------------------

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

    return asyncio.run(main())


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


def test_a_dead_proxy_is_named_as_the_cause(loop_factory: Any) -> None:
    with dead_port() as port:
        address = f"http://me:pw@127.0.0.1:{port}"
        _, fault = tried(loop_factory, "https://api.example/v1", proxies={"https": address})
    assert fault is not None
    assert fault.kind is FaultKind.CONNECT
    assert "the proxy for api.example:443 cannot be reached: connection refused" in fault.message
    assert "pw" not in fault.message


def test_proxy_variables_of_the_process_are_read(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with dead_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        _, fault = tried(loop_factory, "https://api.example/v1")
        assert fault is not None
        assert "the proxy for api.example:443" in fault.message
