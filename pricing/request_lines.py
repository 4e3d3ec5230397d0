"""Chat requests from a file: one JSON object over any number of lines, or one a line (JSONL)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

_BOM: Final = b"\xef\xbb\xbf"
_KINDS: Final = {list: "an array", str: "a string", bool: "a truth value", int: "a number", float: "a number"}


class ByteLines(Protocol):
    """A file opened for reading bytes."""

    def __iter__(self) -> Iterator[bytes]: ...
    def read(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request, or what is wrong with it. `number` is its line, counted from 1; it ends at `end_byte`."""

    number: int
    request: Mapping[str, object] | None
    problem: str
    end_byte: int


def read_requests(file: ByteLines) -> Iterator[RequestLine]:
    """The requests of a file in their order, wrong lines among them; empty lines are passed over.

    A file whose first line is no whole request is read at once, and may be a single request. One that is neither
    this nor has a request on any line is a single wrong line.
    """
    end_byte = 0
    lines = enumerate(file, 1)
    for number, raw in lines:
        end_byte += len(raw)
        if raw.removeprefix(_BOM).strip():
            found = _read(number, raw.removeprefix(_BOM), end_byte)
            if found.request is None:
                yield from _read_whole(found, raw.removeprefix(_BOM), file.read())
                return
            yield found
            break
    for number, raw in lines:
        end_byte += len(raw)
        if raw.strip():
            yield _read(number, raw, end_byte)


def _read_whole(first: RequestLine, raw: bytes, rest: bytes) -> Iterator[RequestLine]:
    end_byte = first.end_byte + len(rest)
    whole = _read(first.number, raw + rest, end_byte)
    if whole.request is not None or not rest.strip():
        yield whole
        return
    others, at = [], first.end_byte
    for number, line in enumerate(rest.splitlines(keepends=True), first.number + 1):
        at += len(line)
        if line.strip():
            others.append(_read(number, line, at))
    if all(other.request is None for other in others):
        problem = f"neither one request nor one a line: {whole.problem}"
        yield RequestLine(first.number, None, problem, end_byte)
        return
    yield first
    yield from others


def _read(number: int, raw: bytes, end_byte: int) -> RequestLine:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        return RequestLine(number, None, str(err), end_byte)
    except RecursionError:
        return RequestLine(number, None, "nested too deeply to be read", end_byte)
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "null")
        return RequestLine(number, None, f"a request is a JSON object, not {kind}", end_byte)
    return RequestLine(number, value, "", end_byte)
