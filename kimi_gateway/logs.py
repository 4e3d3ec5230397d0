"""The gateway's log: one line per settled request and per event of its life; no prompt and no secret in any.

Lines are written by a thread of their own, so a reader that does not empty its pipe can never stop the event
loop: beyond a bound lines are dropped, and how many were is said as soon as there is room.
"""

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from typing_extensions import override

from backends.json import encode
from kimi_gateway.metrics import meters_of
from pricing.ledger.row import LedgerRow
from pricing.money import usd_text

Format = Literal["json", "text"]
Level = Literal["info", "warning", "error"]

_MAX_WAITING: Final = 20_000
_SHORTEST_SECRET: Final = 4  # below that, hiding it would only make the log unreadable
_HIDDEN: Final = "[secret]"
_LONGEST_MESSAGE: Final = 500
# Anything that looks like a key, known or not: OpenAI's, Moonshot's and OpenRouter's sk-, ours kg-, any Bearer.
_KEY_LIKE: Final = re.compile(r"(?:\b(?:sk|kg)-[A-Za-z0-9_-]{8,}|\bBearer\s+[^\s\"',\\]+)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Redactor:
    """Replaces known secrets, and whatever looks like a key, in a line."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """The secrets to hide from now on, as they are and as JSON writes them."""
        words: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET:
                words.update((secret, encode(secret).decode()[1:-1]))
        # Longest first: a secret that begins another must not leave the other's end standing.
        self._words = sorted(words, key=len, reverse=True)

    def clean(self, line: str) -> str:
        """The line without secrets."""
        for word in self._words:
            if word in line:
                line = line.replace(word, _HIDDEN)
        return _KEY_LIKE.sub(_HIDDEN, line)


class LineWriter:
    """Writes lines to a stream from a thread. `write` never blocks; `close` waits for what is due."""

    def __init__(self, stream: TextIO, *, format: Format, max_waiting: int = _MAX_WAITING) -> None:
        self.format = format
        self.redactor = Redactor()
        self._stream = stream
        self._max_waiting = max_waiting
        self._lines: deque[str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line (without its newline), or drops it where too many wait."""
        with self._wake:
            if len(self._lines) >= self._max_waiting:
                self.dropped += 1
                return
            self._lines.append(line)
            self._wake.notify()

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for at most that long."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        broken = False
        while (batch := self._next()) is not None:
            if broken:
                continue
            try:
                self._stream.write("".join(self.redactor.clean(line) + "\n" for line in batch))
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone or the stream closed: there is nobody to tell
                broken = True

    def _next(self) -> list[str] | None:
        with self._wake:
            while not self._lines and not self._closing:
                self._wake.wait()
            if not self._lines:
                return None
            batch = list(self._lines)
            self._lines.clear()
            if self.dropped:
                batch.append(_dropped_line(self.dropped, self.format))
                self.dropped = 0
            return batch


def _dropped_line(count: int, format: Format) -> str:
    message = f"{count} log lines dropped because the reader was too slow"
    if format == "text":
        return message
    return encode({"level": "warning", "event": "event", "message": message}).decode()


class Log:
    """The log of one process. `wall` gives Unix seconds."""

    def __init__(self, writer: LineWriter, *, wall: Callable[[], float]) -> None:
        self._writer = writer
        self._json = writer.format == "json"
        self._wall = wall

    def hide(self, secrets: Iterable[str]) -> None:
        """The secrets that no line may hold from now on."""
        self._writer.redactor.know(secrets)

    def settled(self, row: LedgerRow) -> None:
        """One line for a request that ended."""
        fields = request_fields(row)
        if self._json:
            self._writer.write(_json_line(self._wall(), "info", "request", fields))
        else:
            self._writer.write(f"{_clock(self._wall())} {request_text(row)}")

    def event(self, message: str, *, level: Level = "info", **fields: object) -> None:
        """One line for an event of the process: start, reload, stop, what failed."""
        if self._json:
            self._writer.write(_json_line(self._wall(), level, "event", {"message": message, **fields}))
            return
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        mark = "" if level == "info" else f"{level.upper()} "
        self._writer.write(one_line(f"{_clock(self._wall())} {mark}{message}{' ' if shown else ''}{shown}"))

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits."""
        self._writer.close(timeout_s)


class LogHandler(logging.Handler):
    """Takes in what libraries log: the message and the kind of exception, never its traceback's values."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        # asyncio puts the exception's text into the lines after the first.
        message = (message.strip().splitlines() or [""])[0][:_LONGEST_MESSAGE]
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        where = _raised_at(record)
        fields: dict[str, object] = {"logger": record.name}
        if where:
            fields["exception"] = where
        self._log.event(message, level=level, **fields)


def _raised_at(record: logging.LogRecord) -> str:
    """Kind and place of a logged exception. Its text may hold a piece of a prompt, so it is left out."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    error, frame = record.exc_info[1], record.exc_info[2]
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {frame.tb_frame.f_globals.get('__name__')}:{frame.tb_lineno}" if frame is not None else ""
    return f"{type(error).__name__}{place}"


def request_fields(row: LedgerRow) -> dict[str, object]:
    """What the log says of a request, as JSON fields. Unset fields are left out."""
    fields: dict[str, object] = {
        "request_id": row.request_id,
        "key": row.key,
        "route": row.route,
        "target": row.target,
        "model": row.model,
        "tier": row.tier,
        "effort": row.effort,
        "stream": row.stream,
        "status": row.status,
        "http_status": row.http_status,
        "attempts": len(row.attempts),
    }
    fields.update({name: count for name, count in meters_of(row) if count})
    optional = {
        "cost_usd": None if row.cost_nano is None else usd_text(row.cost_nano),
        "ttl": row.ttl,
        "outcome": row.outcome,
        "estimated": row.estimated,
        "assumed": row.assumed,
        "anomaly": row.anomaly,
        "adjusted": ",".join(row.adjusted),
        "thinking": row.thinking,
        "error_type": row.error_type,
        "error_code": row.error_code,
        "error": row.message,
        "wait_ms": row.wait_ms,
        "ttft_ms": row.ttft_ms,
        "total_ms": row.total_ms,
    }
    fields.update({name: value for name, value in optional.items() if value not in (None, "", False, 0)})
    return fields


def request_text(row: LedgerRow) -> str:
    """What the log says of a request, for a person."""
    tokens = " ".join(f"{name}={count}" for name, count in meters_of(row) if count) or "no tokens"
    cost = "unpriced" if row.cost_nano is None else f"${usd_text(row.cost_nano)}"
    ttft = "" if row.ttft_ms is None else f" first {row.ttft_ms / 1000:.2f}s"
    total = "" if row.total_ms is None else f" total {row.total_ms / 1000:.2f}s"
    error = f" {row.error_code or row.error_type}: {row.message}" if row.message else ""
    return one_line(
        f"{row.status} {row.http_status} {row.model} via {row.target} key={row.key} effort={row.effort} "
        f"{tokens} {cost}{ttft}{total} {row.request_id}{error}"
    )


def one_line(text: str) -> str:
    """The text without control characters: nobody forges a line or a terminal's colours."""
    return _CONTROL.sub(" ", text)


def _json_line(now_s: float, level: str, kind: str, fields: dict[str, object]) -> str:
    return one_line(encode({"time": _stamp(now_s), "level": level, "event": kind, **fields}).decode())


def _stamp(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clock(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%SZ")


def choose_format(wanted: str, stream: TextIO) -> Format:
    """`auto` is text on a terminal and JSON elsewhere."""
    if wanted == "json":
        return "json"
    if wanted == "text":
        return "text"
    return "text" if stream.isatty() else "json"
