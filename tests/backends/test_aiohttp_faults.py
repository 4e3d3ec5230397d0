"""Every way in which a call can fail, as the upstream client tells it: kind, words, and no secrets in them."""

import asyncio
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import Call, UpstreamFault
from support.calls import BODY, HEADERS, Run, both_loops, raw, tried
from support.exchange import Exchange
from support.scripted import Answer, ScriptedUpstream, dead_port

pytestmark = both_loops
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- before a connection stood --------------------------------------------------------------------------------


def test_a_refused_connection_never_reached_the_upstream(run: Run) -> None:
    with dead_port() as port:
        _, fault = tried(run, f"http://127.0.0.1:{port}/v1/chat/completions")
    assert fault == Fault(FaultKind.CONNECT, f"cannot connect to 127.0.0.1:{port}: connection refused")


def test_a_name_that_does_not_resolve_is_a_connect_fault(run: Run) -> None:
    _, fault = tried(run, "http://no-such-host.invalid/v1")
    assert fault is not None
    assert fault.kind is FaultKind.CONNECT
    assert "host name of no-such-host.invalid:80 cannot be resolved" in fault.message


def test_a_connect_that_takes_too_long_is_a_connect_fault(run: Run) -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.hold()

    with ScriptedUpstream([mute]) as up:  # plain: it never answers the TLS hello
        began_s = time.monotonic()
        _, fault = tried(run, f"https://127.0.0.1:{up.port}/v1", connect_timeout_s=0.2)
        assert time.monotonic() - began_s < 2
    assert fault == Fault(FaultKind.CONNECT, f"no connection to 127.0.0.1:{up.port} within 0.2 s")


@pytest.mark.parametrize(
    "url", ["not a url", "ftp://host/v1", "/v1/chat", "http://user:pw@127.0.0.1/v1", "http://127.0.0.1:99999/v1"]
)
def test_an_address_that_is_none_is_said_to_be_none(run: Run, url: str) -> None:
    _, fault = tried(run, url)
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


def test_a_self_signed_certificate_is_not_accepted(run: Run, server_tls: ssl.SSLContext) -> None:
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        _, fault = tried(run, up.base_url)
        assert up.requests == []
    assert fault is not None
    assert fault.kind is FaultKind.TLS
    assert f"the certificate of 127.0.0.1:{up.port} was not accepted: self-signed certificate" in fault.message


def test_ssl_cert_file_makes_it_known(
    run: Run, server_tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        assert tried(run, up.base_url) == (b"ok", None)


def test_a_certificate_for_another_name_is_not_accepted(
    run: Run, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    context = ssl.create_default_context(cafile=certificate)
    with ScriptedUpstream([{"status": 200, "text": "ok"}], tls=server_tls) as up:
        _, fault = tried(run, f"https://localhost:{up.port}/v1", tls=context)
    assert fault is not None
    assert fault.kind is FaultKind.TLS
    assert "Hostname mismatch" in fault.message


def test_https_to_a_plain_server_is_a_tls_fault(run: Run) -> None:
    async def plain(exchange: Exchange) -> None:
        raise AssertionError("a TLS hello is no request")

    async def main(port: int) -> Fault | None:
        return (await asyncio.to_thread(tried, run, f"https://127.0.0.1:{port}/v1"))[1]

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
    run: Run, server_tls: ssl.SSLContext, certificate: Path
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
        closed_s = run(main(up))
        left_s = up.requests[0].closed_by_client_at
    assert left_s is not None
    assert left_s - closed_s < 1


# --- after sending --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [{"then": "reset"}, {"then": "close"}, raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), raw(b"HTTP/1.1 2", reset=True)],
    ids=["reset", "closed", "half a head", "half a head, reset"],
)
def test_a_break_before_the_head_may_have_been_billed(run: Run, answer: Answer) -> None:
    with ScriptedUpstream([answer, {"status": 200, "text": "again"}]) as up:
        got, fault = tried(run, up.base_url)
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
    run: Run, answer: Answer, bytes_before: bytes
) -> None:
    with ScriptedUpstream([answer]) as up:
        got, fault = tried(run, up.base_url)
    assert got == bytes_before
    message = f"127.0.0.1:{up.port} broke the connection in the middle of its answer"
    assert fault == Fault(FaultKind.RESET, message)


def test_bytes_and_break_that_came_together_are_told_apart(run: Run) -> None:
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
    with ScriptedUpstream([cut]) as up:
        assert run(main(up)) == b"data: 1\n\n"


def test_a_body_until_close_ends_well(run: Run) -> None:
    with ScriptedUpstream([{"status": 200, "text": "hello", "framing": "until-close"}]) as up:
        assert tried(run, up.base_url) == (b"hello", None)


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
def test_an_answer_that_is_not_usable_http_is_a_server_fault(run: Run, head: bytes) -> None:
    with ScriptedUpstream([raw(head)]) as up:
        got, fault = tried(run, up.base_url)
    assert got == b""
    assert fault is not None
    assert fault.kind is FaultKind.SERVER
    assert fault.message.startswith(f"127.0.0.1:{up.port} ")


def test_a_body_that_is_not_the_gzip_it_claims_is_a_server_fault(run: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\n\r\n"
    with ScriptedUpstream([raw(head, b"this is no gzip")]) as up:
        _, fault = tried(run, up.base_url)
    assert fault is not None
    assert fault.kind is FaultKind.SERVER


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(run: Run, status: int) -> None:
    with ScriptedUpstream([{"status": 200, "text": "stolen"}]) as other:
        goal = f"{other.base_url}/chat?token=t0k3n"
        with ScriptedUpstream([{"status": status, "headers": {"Location": goal}, "text": ""}]) as up:
            got, fault = tried(run, up.base_url)
        assert other.requests + other.probes == []
    assert got == b""
    assert fault == Fault(
        FaultKind.SERVER,
        f"127.0.0.1:{up.port} redirects to http://127.0.0.1, which is not followed; "
        "name the final address in base_url",
        status,
    )


@pytest.mark.parametrize("status", [400, 429, 500, 503, 599])
def test_an_error_status_is_an_answer_and_no_fault_here(run: Run, status: int) -> None:
    with ScriptedUpstream([{"status": status, "json": {"error": {}}}]) as up:
        assert tried(run, up.base_url) == (b'{"error":{}}', None)
