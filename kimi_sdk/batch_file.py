"""The file that a batch can be taken up from: one line of JSON for each finished item.

A line is written in one piece as soon as its answer is there, so the end of the process loses at most the answers
under way; a line that was cut by it is taken off again. An item is found by what was asked, not by its place:
prompts may be added, moved or taken out, and one that was changed is asked anew.
"""

import os
from collections import deque
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from backends.json import Json, JsonError, JsonObject, as_object, as_str, decode, encode
from kimi_sdk.errors import InvalidInput

_VERSION: Final = 1
_START: Final = encode({"v": _VERSION, "key": ""}).removesuffix(b'"}')


def key_of(*asked: Json) -> str:
    """What was asked, as a name: the same for the same question in the same circumstances."""
    return sha256(encode([*asked])).hexdigest()


class BatchFile:
    """An open file of finished items. Not for two threads at once."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Reads what is there, or makes the file. Raises `InvalidInput` where it cannot, and for a file that holds
        anything else: nothing is ever added to such."""
        self._path = Path(fspath(path))
        self._records: dict[str, deque[JsonObject]] = {}
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise InvalidInput(f"cannot open {self._path} to keep the batch in: {err.strerror}") from err
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def take(self, key: str) -> JsonObject | None:
        """What is kept of an item that was finished earlier; each is given out once. None where there is none."""
        held = self._records.get(key)
        return held.popleft() if held else None

    def append(self, key: str, record: JsonObject) -> None:
        """Keeps a finished item."""
        line = memoryview(encode({"v": _VERSION, "key": key, **record}) + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        whole = 0
        with open(self._fd, "rb", closefd=False) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    self._check_cut(line, number)
                    os.ftruncate(self._fd, whole)
                    return
                whole += len(line)
                record = _record(line)
                key = as_str(record.get("key")) if record is not None else None
                if record is None or not key:
                    raise InvalidInput(self._other(number))
                self._records.setdefault(key, deque()).append(record)

    def _check_cut(self, line: bytes, number: int) -> None:
        size = min(len(line), len(_START))
        if line[:size] != _START[:size]:
            raise InvalidInput(self._other(number))

    def _other(self, number: int) -> str:
        return f"line {number} of {self._path} is no finished item of a batch; name another file"


def _record(line: bytes) -> JsonObject | None:
    if not line.startswith(_START):
        return None
    try:
        return as_object(decode(line))
    except JsonError:
        return None
