"""Open mode: this machine only, and nothing that a web page or a proxy brings in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.core.openmode import is_loopback, refusal


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_addresses_that_others_reach(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"localhost:8000", b"127.0.0.1", b"127.0.0.1:1", b"[::1]", b"[::1]:8000", b"LOCALHOST:8000"],
)
def test_a_program_on_this_machine_is_served(host: bytes) -> None:
    assert refusal([(b"host", host), (b"user-agent", b"x")]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"origin", b"http://localhost:8000"),
        (b"origin", b"null"),
        (b"origin", b""),
        (b"forwarded", b"for=10.0.0.1"),
        (b"x-forwarded-for", b"127.0.0.1"),
    ],
)
def test_a_page_or_a_proxy_is_not_served(name: bytes, value: bytes) -> None:
    refused = refusal([(b"host", b"localhost"), (name, value)])
    assert refused is not None
    assert (refused.status, refused.type, refused.code) == (403, "permission_error", "open_mode")
    assert name.decode() in refused.message.lower()
    assert "[[keys]]" in refused.message


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"example.org",
        b"127.0.0.1.example.org",
        b"127.0.0.1:x",
        b"localhost:",
        b"::1",
        b"10.0.0.1",
        b"0.0.0.0",
    ],
)
def test_a_foreign_host_is_not_served(host: bytes) -> None:
    assert refusal([(b"host", host)]) is not None


def test_no_host_and_two_hosts_are_not_served() -> None:
    assert refusal([]) is not None
    assert refusal([(b"host", b"localhost"), (b"host", b"localhost")]) is not None


@given(st.binary(max_size=30))
def test_no_other_host_is_ever_served(host: bytes) -> None:
    bare = host.strip().lower()
    name, _, port = bare.rpartition(b":")
    local = bare in (b"localhost", b"127.0.0.1", b"[::1]") or (
        name.strip() in (b"localhost", b"127.0.0.1", b"[::1]") and port.isdigit()
    )
    assert (refusal([(b"host", host)]) is None) == local
