"""The file that a batch can be taken up from: one line of JSON for each finished item.

A line is written in one piece as soon as its answer is there, so the end of the process loses at most the answers
under way; a line that was cut by it is taken off again. An item is found by what was asked, not by its place:
prompts may be added, moved or taken out, and one that was changed is asked anew.
"""

import os
from collections import deque
from contextlib import suppress
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
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
    """An open file of finished items; items may be added from any thread. Whoever may still add one `holds` it, so
    that an answer which comes after the batch was given up is kept as well."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Reads what is there, or makes the file. Raises `InvalidInput` where it cannot, and for a file that holds
        anything else: nothing is ever added to such."""
        self._path = Path(fspath(path))
        self._records: dict[str, deque[JsonObject]] = {}
        self._lock = Lock()
        self._holders = 1
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise InvalidInput(f"cannot open {self._path} to keep the batch in: {err.strerror}") from err
        try:
            self._lock_file()
            self._read()
        except BaseException:
            self.close()
            raise

    def take(self, key: str) -> JsonObject | None:
        """What is kept of an item that was finished earlier; each is given out once. None where there is none."""
        held = self._records.get(key)
        return held.popleft() if held else None

    def append(self, key: str, record: JsonObject) -> None:
        """Keeps a finished item. Raises `InvalidInput` where it cannot be written, and after the last `close`: the
        number of the file may be that of another one by then."""
        line = memoryview(encode({"v": _VERSION, "key": key, **record}) + b"\n")
        with self._lock:
            if not self._holders:
                raise InvalidInput(f"{self._path} is closed, so this item cannot be kept; resume the batch")
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError as err:
                raise InvalidInput(f"cannot write to {self._path}: {err.strerror}") from err

    def hold(self) -> Self:
        """Keeps it open until one more `close`."""
        with self._lock:
            self._holders += 1
        return self

    def close(self) -> None:
        """Closes the file, where nobody else holds it."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lock_file(self) -> None:
        """Two batches at once would pay for the same prompts, and take each other's last line for a cut one."""
        with suppress(ImportError):  # Windows
            import fcntl

            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise InvalidInput(
                    f"{self._path} is in use by another batch, of this or another process; wait for its end, or "
                    "name another file"
                ) from err
            except OSError:
                return  # a file system without locks

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
