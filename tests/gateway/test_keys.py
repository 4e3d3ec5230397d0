"""Keys: found by digest, never shown, and callers told how to send one."""

import copy
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.core.callers import OPEN_CALLER, bearer, identify
from kimi_gateway.core.keys import (
    KeyFormatError,
    KeyPolicy,
    KeyRing,
    digest_from_hex,
    digest_of,
    same,
    secret_from_text,
)
from kimi_gateway.core.secret import Secret
from kimi_gateway.errors import Forbidden, Unauthenticated

TEAM = KeyPolicy(name="team-a")
RING = KeyRing([(digest_of("kg-team-a-secret"), TEAM)])
LOCAL = [(b"host", b"127.0.0.1:8000")]


def test_a_known_key_has_its_policy_and_any_other_none() -> None:
    assert RING.find("kg-team-a-secret") is TEAM
    for wrong in ("", "kg-team-a-secre", "kg-team-a-secret ", "KG-TEAM-A-SECRET", "\ud800", "ключ"):
        assert RING.find(wrong) is None


def test_an_empty_ring_knows_nobody() -> None:
    assert KeyRing([]).find("") is None
    assert len(KeyRing([])) == 0


@given(st.text(max_size=40))
def test_only_the_secret_itself_is_found(presented: str) -> None:
    assert (RING.find(presented) is TEAM) == (presented == "kg-team-a-secret")


def test_the_ring_holds_no_secret() -> None:
    held = [repr(getattr(RING, name)) for name in RING.__slots__]
    assert held
    assert not [text for text in held if "kg-team-a-secret" in text]


def test_two_keys_with_one_secret_are_refused_without_showing_it() -> None:
    with pytest.raises(KeyFormatError, match=r"team-a and team-b have the same secret") as caught:
        KeyRing([(digest_of("kg-same"), TEAM), (digest_of("kg-same"), KeyPolicy(name="team-b"))])
    assert "kg-same" not in str(caught.value)


@pytest.mark.parametrize(("text", "secret"), [("abc", "abc"), ("abc\n", "abc"), ("abc\r\n", "abc")])
def test_a_newline_at_the_end_is_not_part_of_a_secret(text: str, secret: str) -> None:
    assert secret_from_text(text).reveal() == secret


@pytest.mark.parametrize("text", ["", "\n", "a b", "a\nb", "a\t", "ключ", "a\n\n"])
def test_what_no_header_can_carry_is_no_secret(text: str) -> None:
    with pytest.raises(KeyFormatError):
        secret_from_text(text)


def test_a_digest_is_64_hexadecimal_digits() -> None:
    digest = hashlib.sha256(b"x")
    assert digest_from_hex(digest.hexdigest().upper()) == digest.digest()
    for wrong in ("", "abc", "g" * 64, digest.hexdigest() + "\n"):
        with pytest.raises(KeyFormatError, match="64 hexadecimal digits"):
            digest_from_hex(wrong)


def test_a_secret_never_shows() -> None:
    secret = Secret("sk-hidden")
    shown = f"{secret} {secret!r} {secret:>20} {[secret]} {copy.copy(secret)} {copy.deepcopy(secret)!r}"
    assert "hidden" not in shown
    assert not hasattr(secret, "__dict__")
    assert secret.reveal() == "sk-hidden"


def test_secrets_compare_by_text() -> None:
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert same("a", Secret("a"))
    assert not same("b", Secret("a"))


@pytest.mark.parametrize("value", [b"Bearer kg-1", b"bearer kg-1", b"BEARER   kg-1 ", b" Bearer kg-1"])
def test_the_token_of_one_bearer_header_is_read(value: bytes) -> None:
    assert bearer([(b"authorization", value)]) == "kg-1"


@pytest.mark.parametrize(
    ("headers", "words", "code"),
    [
        ([], "no API key", "missing_api_key"),
        ([(b"x-api-key", b"kg-1")], "the header x-api-key is not read here", "missing_api_key"),
        ([(b"api-key", b"kg-1")], "the header api-key is not read here", "missing_api_key"),
        ([(b"authorization", b"kg-1")], "not one Bearer token", "invalid_api_key"),
        ([(b"authorization", b"Basic kg-1")], "not one Bearer token", "invalid_api_key"),
        ([(b"authorization", b"Bearer")], "not one Bearer token", "invalid_api_key"),
        ([(b"authorization", b"Bearer a b")], "not one Bearer token", "invalid_api_key"),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], "not one", "invalid_api_key"),
    ],
)
def test_what_is_no_key_is_refused_with_the_way_to_send_one(
    headers: list[tuple[bytes, bytes]], words: str, code: str
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        bearer(headers)
    assert words in caught.value.message
    assert "Authorization: Bearer" in caught.value.message
    assert (caught.value.status, caught.value.code) == (401, code)
    assert caught.value.headers["www-authenticate"] == "Bearer"


def test_a_caller_is_known_by_its_keys_name() -> None:
    caller = identify([(b"authorization", b"Bearer kg-team-a-secret")], RING)
    assert (caller.name, caller.policy) == ("team-a", TEAM)


def test_a_wrong_key_is_refused_without_repeating_it() -> None:
    with pytest.raises(Unauthenticated) as caught:
        identify([(b"authorization", b"Bearer kg-wrong-one")], RING)
    assert caught.value.code == "invalid_api_key"
    assert "kg-wrong-one" not in caught.value.message
    assert "[[keys]]" in caught.value.message


def test_with_keys_a_page_or_a_proxy_may_call() -> None:
    headers = [(b"authorization", b"Bearer kg-team-a-secret"), (b"origin", b"http://x"), (b"host", b"gateway")]
    assert identify(headers, RING).name == "team-a"


def test_without_keys_there_is_one_caller_and_any_key_is_ignored() -> None:
    assert identify([*LOCAL, (b"authorization", b"Bearer whatever")], KeyRing([])) == OPEN_CALLER
    assert OPEN_CALLER.name == "open"
    assert OPEN_CALLER.policy.pin
    with pytest.raises(Forbidden):
        identify([*LOCAL, (b"origin", b"http://x")], KeyRing([]))
