"""The download: from a server on this machine, checked, put in place at once or not at all."""

import hashlib
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typing_extensions import override

from pricing.fetch import URL, Fetched, FetchError, fetch_vocabulary
from pricing.tokens import VocabularyPin
from pricing.vocabulary import load_vocabulary

CONTENT = b"".join(b64encode(bytes([value])) + b" %d\n" % value for value in range(256))
PIN = VocabularyPin("tiktoken.model", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 256)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests stay on this machine, whatever proxies it uses."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server(ThreadingHTTPServer):
    """Answers every request the same way and remembers the paths that were asked for."""

    daemon_threads = True

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = (status, headers, body)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/tiktoken.model"


class Handler(BaseHTTPRequestHandler):
    """One answer, then the connection is closed."""

    server: Server

    def do_GET(self) -> None:
        status, headers, body = self.server.answer
        self.server.asked.append(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@contextmanager
def served(body: bytes = CONTENT, status: int = 200, **headers: str) -> Iterator[Server]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with Server(status, named, body) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def refused(path: Path, url: str, *, timeout_s: float = 5.0, transport: httpx2.BaseTransport | None = None) -> str:
    """The message of the refusal; makes sure that it left nothing behind."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    with pytest.raises(FetchError) as caught:
        fetch_vocabulary(path, url=url, pin=PIN, timeout_s=timeout_s, transport=transport)
    after = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    assert after == before
    return str(caught.value)


def test_the_file_arrives_whole_and_is_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "v"
    steps: list[tuple[int, int]] = []

    with served(content_length=str(len(CONTENT))) as server:
        fetched = fetch_vocabulary(path, url=server.url, pin=PIN, on_progress=lambda *step: steps.append(step))

    assert fetched == Fetched(path, downloaded=True)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert load_vocabulary(path, PIN).count("abc") == 3


def test_a_file_that_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(CONTENT)

    with served() as server:
        assert fetch_vocabulary(path, url=server.url, pin=PIN) == Fetched(path, downloaded=False)
        assert server.asked == []


def test_a_wrong_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(b"half of i")

    with served() as server:
        assert fetch_vocabulary(path, url=server.url, pin=PIN).downloaded

    assert path.read_bytes() == CONTENT


def test_other_content_of_the_same_size_is_refused(tmp_path: Path) -> None:
    with served(CONTENT[::-1]) as server:
        message = refused(tmp_path / "v", server.url)

    assert "is not the vocabulary: its sha256 is" in message
    assert f"expected {len(CONTENT):,} bytes with sha256 {PIN.sha256}" in message


def test_a_refusal_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(b"old")

    with served(b"<html>Sign in</html>") as server:
        refused(path, server.url)

    assert path.read_bytes() == b"old"


def test_a_page_is_refused_by_its_announced_size(tmp_path: Path) -> None:
    with served(b"<html>Sign in</html>", content_length="20") as server:
        message = refused(tmp_path / "v", server.url)

    assert "it has 20 bytes" in message
    assert "the page of a login or a proxy" in message


def test_a_body_without_end_is_cut_off_at_the_expected_size(tmp_path: Path) -> None:
    with served(CONTENT * 100) as server:
        message = refused(tmp_path / "v", server.url)

    assert f"it has more than {len(CONTENT):,} bytes" in message


def test_a_connection_that_breaks_is_told_as_that(tmp_path: Path) -> None:
    with served(CONTENT[:100], content_length=str(len(CONTENT))) as server:
        message = refused(tmp_path / "v", server.url)

    assert f"the download from {server.url} broke off" in message
    assert "try again" in message


@pytest.mark.parametrize(
    ("status", "told"),
    [(404, "answered 404 Not Found"), (401, "wants a login"), (403, "wants a login"), (503, "answered 503")],
)
def test_an_error_status_is_told(tmp_path: Path, status: int, told: str) -> None:
    with served(b"", status) as server:
        message = refused(tmp_path / "v", server.url)

    assert told in message
    assert "set KIMI_TOKENIZER to its path" in message


def test_a_redirect_to_plain_http_is_not_followed(tmp_path: Path) -> None:
    with served() as there, served(b"", 302, location=there.url) as here:
        message = refused(tmp_path / "v", here.url)

        assert "redirects to an address that is not https" in message
        assert there.asked == []


def test_a_redirect_to_https_is_followed_without_showing_its_signature(tmp_path: Path) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "origin.test":
            return httpx2.Response(307, headers={"location": "https://cdn.test/file?signature=s3cret"})
        assert str(request.url) == "https://cdn.test/file?signature=s3cret"
        return httpx2.Response(200, content=content)

    content = CONTENT
    transport = httpx2.MockTransport(answer)
    fetch_vocabulary(tmp_path / "v", url="https://origin.test/v", pin=PIN, transport=transport)
    assert (tmp_path / "v").read_bytes() == CONTENT

    content = b"no"
    message = refused(tmp_path / "w", "https://origin.test/v", transport=transport)
    assert "https://cdn.test/file is not" in message
    assert "s3cret" not in message


def test_a_circle_of_redirects_ends(tmp_path: Path) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(302, headers={"location": str(request.url)}))

    assert "more than 5 redirects" in refused(tmp_path / "v", "https://a.test/v", transport=transport)


def test_without_a_network_the_message_names_the_other_way(tmp_path: Path) -> None:
    with served() as server:
        url = server.url
    message = refused(tmp_path / "v", url)

    assert f"{url} cannot be reached" in message
    assert "HTTPS_PROXY" in message
    assert "tiktoken.model of moonshotai/Kimi-K3 some other way and set KIMI_TOKENIZER" in message


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v"
        message = refused(tmp_path / "v", url, timeout_s=0.1)

    assert f"{url} did not answer in time" in message


def test_the_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")

        assert fetch_vocabulary(tmp_path / "v", url="http://far.test/v", pin=PIN).downloaded
        assert proxy.asked == ["http://far.test/v"]


def test_a_proxy_of_an_unknown_kind_is_refused_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "gopher://user:s3cret@127.0.0.1:1")

    message = refused(tmp_path / "v", "https://far.test/v")

    assert "the proxy that the environment names cannot be used" in message
    assert "s3cret" not in message


@pytest.mark.parametrize("url", ["", "ftp://a.test/v", "tiktoken.model"])
def test_what_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    assert "Give one that starts with https://" in refused(tmp_path / "v", url)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()

    with served() as server:
        assert "cannot be written" in refused(tmp_path / "file" / "v", server.url)
        assert "cannot be written" in refused(tmp_path / "folder", server.url)


def test_the_address_is_pinned_to_a_revision() -> None:
    assert URL.startswith(
        "https://huggingface.co/moonshotai/Kimi-K3/resolve/f831ab66814297da540d832a5235f8e904f29d06/"
    )
