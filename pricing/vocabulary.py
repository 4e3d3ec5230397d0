"""Kimi's vocabulary from a file on this machine: found, checked against its pin, loaded. The door to tiktoken.

The product does not contain the file. It is the one that `KIMI_TOKENIZER` names, else the one in the cache, which
only `pricing.fetch` fills; nothing here uses the network. A file that is not the pinned one is refused: its counts
would be wrong without anybody noticing.

Loading takes about 0.4 s and 60 MB: do it once, in a thread.
"""

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import tiktoken

from pricing.tokens import (
    KIMI_K3,
    SPECIAL_COUNT,
    SPLIT_PATTERN,
    TokenizerError,
    VocabularyPin,
    special_tokens,
    split_text,
)

VARIABLE: Final = "KIMI_TOKENIZER"
FETCH_COMMAND: Final = "kimi-pricing tokenizer fetch"


class VocabularyError(TokenizerError):
    """There is no usable vocabulary where one was expected; the message says what was, and how to get it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the vocabulary is looked for."""

    path: Path
    source: Literal["KIMI_TOKENIZER", "cache"]


@dataclass(frozen=True, slots=True)
class VocabularyStatus:
    """Whether there is a vocabulary. `problem` says what is wrong, and is empty where counts are exact."""

    state: Literal["ready", "missing", "wrong"]
    place: Place | None
    problem: str = ""


class Vocabulary:
    """Counts as the reference tokenizer does. May be used from several threads; encoding releases the GIL."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding

    def encode(self, text: str) -> list[int]:
        """The token ids of ordinary text; the names of special tokens in it are text like any other."""
        ids: list[int] = []
        for piece in split_text(text):
            ids += self._encoding.encode_ordinary(piece)
        return ids

    def count(self, text: str) -> int:
        """The number of tokens of ordinary text."""
        return sum(len(self._encoding.encode_ordinary(piece)) for piece in split_text(text))


def cache_file(environ: Mapping[str, str], pin: VocabularyPin = KIMI_K3) -> Path | None:
    """Where a fetched vocabulary is kept, below XDG_CACHE_HOME or HOME; None where neither is set."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG rule: a relative path is ignored
        home = environ.get("HOME", "")
        if not home:
            return None
        base = f"{home}/.cache"
    return Path(base) / "kimi-gateway" / f"{pin.sha256[:12]}-{pin.name}"


def find_place(environ: Mapping[str, str], pin: VocabularyPin = KIMI_K3) -> Place | None:
    """The file that `KIMI_TOKENIZER` names, else the cache's; whether it exists is another question."""
    named = environ.get(VARIABLE, "")
    if named:
        return Place(Path(named), "KIMI_TOKENIZER")
    cached = cache_file(environ, pin)
    return None if cached is None else Place(cached, "cache")


def find_vocabulary(environ: Mapping[str, str], pin: VocabularyPin = KIMI_K3) -> Vocabulary | None:
    """The vocabulary of this machine; None where none is named and none was fetched: then counts are estimates.

    Raises `VocabularyError` where the variable names a file that is missing, and where a file is a wrong one.
    """
    place = find_place(environ, pin)
    if place is None or (place.source == "cache" and not place.path.exists()):
        return None
    return load_vocabulary(place.path, pin)


def vocabulary_status(environ: Mapping[str, str], pin: VocabularyPin = KIMI_K3) -> VocabularyStatus:
    """What `find_vocabulary` would find, without loading it."""
    place = find_place(environ, pin)
    if place is None:
        return VocabularyStatus("missing", None, f"neither {VARIABLE} nor HOME is set")
    if place.source == "cache" and not place.path.exists():
        return VocabularyStatus("missing", place, f"not fetched yet; run {FETCH_COMMAND}, or set {VARIABLE}")
    try:
        read_vocabulary(place.path, pin)
    except VocabularyError as err:
        return VocabularyStatus("wrong", place, str(err))
    return VocabularyStatus("ready", place)


def load_vocabulary(path: Path, pin: VocabularyPin = KIMI_K3) -> Vocabulary:
    """The vocabulary in a file. Raises `VocabularyError` where it is not the pinned one."""
    try:
        lines = (line.split() for line in read_vocabulary(path, pin).splitlines())
        ranks = {b64decode(token, validate=True): int(rank) for token, rank in lines}
        encoding = tiktoken.Encoding(
            pin.name,
            pat_str=SPLIT_PATTERN,
            mergeable_ranks=ranks,
            special_tokens=special_tokens(pin),
            explicit_n_vocab=pin.ranks + SPECIAL_COUNT,
        )
    except (ValueError, AssertionError) as err:  # tiktoken checks the number of tokens with assert
        raise VocabularyError(f"{path}: not a token and its rank per line, {pin.ranks:,} of them: {err}") from err
    return Vocabulary(encoding)


def read_vocabulary(path: Path, pin: VocabularyPin = KIMI_K3) -> bytes:
    """The content of a file that is the pinned one. Raises `VocabularyError` saying what was expected."""
    expected = f"expected Kimi's {pin.name} of {pin.size_bytes:,} bytes with sha256 {pin.sha256}"
    remedy = f"run {FETCH_COMMAND}, or set {VARIABLE} to that file"
    if path.is_dir():
        raise VocabularyError(f"{path}: is a folder; {expected}; {remedy}")
    try:
        size_bytes = path.stat().st_size
        # A file of another size is not read: it may be anything.
        content = path.read_bytes() if size_bytes == pin.size_bytes else b""
    except OSError as err:
        raise VocabularyError(f"{path}: cannot be read ({err.strerror}); {expected}; {remedy}") from err
    problem = pin.mismatch(size_bytes=size_bytes, sha256=hashlib.sha256(content).hexdigest())
    if problem is not None:
        raise VocabularyError(f"{path}: {problem}; {expected}; {remedy}")
    return content
