"""The vocabulary's file: the right one counts like the reference, a wrong one is refused."""

import hashlib
from base64 import b64encode
from functools import cache
from pathlib import Path

import pytest

from pricing.tokens import KIMI_K3, VocabularyPin, special_tokens
from pricing.vocabulary import (
    Place,
    Vocabulary,
    VocabularyError,
    VocabularyStatus,
    cache_file,
    find_place,
    find_vocabulary,
    load_vocabulary,
    read_vocabulary,
    vocabulary_status,
)
from support.shared import shared_path

BYTES = [bytes([value]) for value in range(256)]


def write(path: Path, tokens: list[bytes]) -> VocabularyPin:
    """Writes a small vocabulary and gives its pin."""
    content = b"".join(b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return VocabularyPin(path.name, len(content), hashlib.sha256(content).hexdigest(), len(tokens))


@cache
def _load(path: Path) -> Vocabulary:
    return load_vocabulary(path)


@pytest.fixture
def kimi() -> Vocabulary:
    return _load(shared_path("tokenizer/tiktoken.model"))


@pytest.mark.parametrize(
    ("text", "tokens", "first"),
    [
        ("Hello, world!", 4, [19180, 11, 2695, 0]),
        ("你好", 1, [33845]),
        ("北京今天天气怎么样？请查一下。", 9, [3372, 3108, 8597, 13171, 864, 2066, 1930, 3498]),
        (
            "The quick brown fox jumps over the lazy dog.",
            10,
            [1008, 5072, 16331, 69275, 60062, 1312, 276, 29292],
        ),
        ("123456789", 3, [6694, 12972, 16242]),
        ("naïve café 🙂", 5, [4768, 44187, 367, 70591, 56774]),
        ("   \n\n  x", 3, [83660, 220, 1288]),
        ("こんにちは", 5, [16444, 29194, 6880, 43566, 8831]),
        ("a" * 100, 13, [101908]),
        ("", 0, []),
    ],
)
def test_published_texts_have_their_published_tokens(
    kimi: Vocabulary, text: str, tokens: int, first: list[int]
) -> None:
    assert kimi.count(text) == tokens
    assert kimi.encode(text)[: len(first)] == first
    assert len(kimi.encode(text)) == tokens


def test_control_tokens_in_a_text_are_text(kimi: Vocabulary) -> None:
    spelled = "<|open|>message<|sep|>[EOS]"

    assert max(kimi.encode(spelled)) < KIMI_K3.ranks
    assert kimi.count("<|open|>") > 1
    assert "<|open|>" in special_tokens()


def test_a_run_without_spaces_is_cut_as_the_reference_cuts_it(kimi: Vocabulary) -> None:
    """Each cut costs a token where a merge would have gone over it."""
    assert kimi.count("b" * 50_001) == 2 * kimi.count("b" * 25_000) + 1


def test_a_small_vocabulary_merges_by_rank(tmp_path: Path) -> None:
    pin = write(tmp_path / "v", [*BYTES, b"ab", b"bc", b"abc"])
    vocabulary = load_vocabulary(tmp_path / "v", pin)

    assert vocabulary.encode("abc") == [258]
    assert vocabulary.encode("bcab é") == [257, 256, 32, 0xC3, 0xA9]
    assert vocabulary.count("bcab é") == 5


def test_a_file_of_another_size_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    wrong = tmp_path / "tiktoken.model"
    wrong.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")

    with pytest.raises(VocabularyError) as caught:
        load_vocabulary(wrong)

    message = str(caught.value)
    assert message.startswith(f"{wrong}: it has 43 bytes instead of 2,795,286; expected Kimi's tiktoken.model")
    assert KIMI_K3.sha256 in message
    assert "run kimi-pricing tokenizer fetch, or set KIMI_TOKENIZER" in message


def test_a_file_with_one_bit_changed_is_refused(tmp_path: Path) -> None:
    pin = write(tmp_path / "v", BYTES)
    content = (tmp_path / "v").read_bytes()
    (tmp_path / "v").write_bytes(bytes([content[0] ^ 1]) + content[1:])

    with pytest.raises(VocabularyError, match="its sha256 is .* instead of " + pin.sha256):
        read_vocabulary(tmp_path / "v", pin)


@pytest.mark.parametrize("content", [b"AA== 0\nAQ==\n", b"\xff\xff 0\n", b"AA== zero\n", b"AA== 0\n"])
def test_a_pinned_file_in_another_form_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v").write_bytes(content)
    pin = VocabularyPin("v", len(content), hashlib.sha256(content).hexdigest(), 2)

    with pytest.raises(VocabularyError, match="not a token and its rank per line, 2 of them"):
        load_vocabulary(tmp_path / "v", pin)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"cannot be read \(No such file or directory\); expected Kimi's"):
        load_vocabulary(tmp_path / "none")
    with pytest.raises(VocabularyError, match="is a folder; expected Kimi's"):
        load_vocabulary(tmp_path)


def test_the_cache_is_where_the_environment_says() -> None:
    name = "kimi-gateway/b6c497a7469b-tiktoken.model"

    assert cache_file({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c") / name
    assert cache_file({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache") / name
    assert cache_file({"HOME": "/h"}) == Path("/h/.cache") / name
    assert cache_file({}) is None


def test_the_variable_comes_before_the_cache() -> None:
    assert find_place({"KIMI_TOKENIZER": "/v", "HOME": "/h"}) == Place(Path("/v"), "KIMI_TOKENIZER")
    found = find_place({"KIMI_TOKENIZER": "", "HOME": "/h"})
    assert found is not None
    assert found.source == "cache"
    assert find_place({}) is None


def test_the_vocabulary_is_found_in_either_place(tmp_path: Path) -> None:
    pin = write(tmp_path / "named", BYTES)
    named = {"KIMI_TOKENIZER": str(tmp_path / "named")}
    cached = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    where = cache_file(cached, pin)
    assert where is not None
    write(where, BYTES)

    for environ in (named, cached):
        vocabulary = find_vocabulary(environ, pin)
        assert vocabulary is not None
        assert vocabulary.count("abc") == 3
        assert vocabulary_status(environ, pin).state == "ready"


def test_an_empty_cache_is_no_mistake(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}

    assert find_vocabulary(environ) is None
    assert find_vocabulary({}) is None
    assert vocabulary_status(environ).state == "missing"
    assert vocabulary_status({}) == VocabularyStatus("missing", None, "neither KIMI_TOKENIZER nor HOME is set")


def test_a_variable_that_names_nothing_is_a_mistake_and_not_passed_over(tmp_path: Path) -> None:
    environ = {"KIMI_TOKENIZER": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path)}

    with pytest.raises(VocabularyError, match="cannot be read"):
        find_vocabulary(environ)
    assert vocabulary_status(environ).state == "wrong"


def test_a_wrong_file_in_the_cache_is_refused(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    where = cache_file(environ)
    assert where is not None
    write(where, BYTES)

    with pytest.raises(VocabularyError, match=r"instead of 2,795,286"):
        find_vocabulary(environ)
    assert vocabulary_status(environ).state == "wrong"
