"""What leaves the process: sealed to its owner and place, and places that say nothing."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.adapters.state.seal import SEALED_OVERHEAD_BYTES, Seal, SealError, WeakSecret, seal_of
from kimi_gateway.core.secret import Secret
from support.valkey import SECRET

SEALS = {"sealed": seal_of(SECRET), "plain": seal_of(None)}
both = pytest.mark.parametrize("seal", SEALS.values(), ids=SEALS)


@both
def test_what_was_sealed_opens_in_its_place_and_nowhere_else(seal: Seal) -> None:
    data = seal.seal(b"Because.", b"a place")
    assert seal.open(data, b"a place") == b"Because."
    assert len(data) <= len(b"Because.") + SEALED_OVERHEAD_BYTES
    for place in (b"another", b"", b"a place "):
        with pytest.raises(SealError):
            seal.open(data, place)


@both
@given(bit=st.integers(min_value=0))
def test_one_flipped_bit_is_found(seal: Seal, bit: int) -> None:
    data = bytearray(seal.seal(b"Because.", b"a place"))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    with pytest.raises(SealError):
        seal.open(bytes(data), b"a place")


@both
def test_what_is_cut_short_or_longer_does_not_open(seal: Seal) -> None:
    data = seal.seal(b"Because.", b"a place")
    for other in (*(data[:length] for length in range(len(data))), data + b"x"):
        with pytest.raises(SealError):
            seal.open(other, b"a place")


def test_neither_another_secret_nor_none_opens_it() -> None:
    others = (seal_of(Secret("another secret of a test")), seal_of(None))
    for other in others:
        with pytest.raises(SealError):
            other.open(SEALS["sealed"].seal(b"Because.", b"a place"), b"a place")
        with pytest.raises(SealError):
            SEALS["sealed"].open(other.seal(b"Because.", b"a place"), b"a place")


def test_the_same_text_never_looks_the_same() -> None:
    assert len({SEALS["sealed"].seal(b"Because.", b"a place") for _ in range(100)}) == 100
    assert b"Because." not in SEALS["sealed"].seal(b"Because.", b"a place")


def test_a_secret_makes_the_same_places_in_every_process_and_another_makes_others() -> None:
    again, other = seal_of(Secret(SECRET.reveal())), seal_of(Secret("another secret of a test"))
    assert again.digest(b"chain", b"x") == SEALS["sealed"].digest(b"chain", b"x")
    assert again.open(SEALS["sealed"].seal(b"Because.", b"p"), b"p") == b"Because."
    assert other.digest(b"chain", b"x") != again.digest(b"chain", b"x") != SEALS["plain"].digest(b"chain", b"x")


@both
def test_no_two_lists_of_fields_are_one_place(seal: Seal) -> None:
    lists = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc"), (b" 1", b"abc"), (), (b"",)]
    digests = {seal.digest(label, *fields) for fields in lists for label in (b"chain", b"note", b"chain 1")}
    assert len(digests) == 3 * len(lists)
    assert {len(digest) for digest in digests} == {32}


def test_a_place_is_no_plain_digest_of_what_it_stands_for() -> None:
    assert SEALS["sealed"].digest(b"", b"x") != sha256(b" 1\nx").digest()


@pytest.mark.parametrize("text", ["", "short", "x" * 15])
def test_a_short_secret_is_refused_with_the_remedy_and_not_shown(text: str) -> None:
    with pytest.raises(WeakSecret, match=r"openssl rand -base64 32") as refused:
        seal_of(Secret(text))
    assert f"has {len(text)} characters" in str(refused.value)
    assert not text or text not in str(refused.value)
    seal_of(Secret("x" * 16))
