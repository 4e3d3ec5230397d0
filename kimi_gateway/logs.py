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

import msgspec
from typing_extensions import override

from backends.json import encode
from kimi_gateway.metrics import meters_of
from pricing.ledger.row import LedgerRow
from pricing.money import usd_text

Format = Literal["json", "text"]
Level = Literal["info", "warning", "error"]

_MAX_WAITING: Final = 20_000
_WRITE_EVERY_S: Final = 0.05
_SHORTEST_SECRET: Final = 4  # below that, hiding it would only make the log unreadable
_HIDDEN: Final = "[secret]"
_LONGEST_MESSAGE: Final = 500
# Anything that looks like a key, known or not: OpenAI's, Moonshot's and OpenRouter's sk-, ours kg-, any Bearer.
_KEY_LIKE: Final = re.compile(r"\b(?:sk|kg)-[A-Za-z0-9_-]{8,}|\b[Bb]earer\s+[^\s\"',\\]+")
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
        # The search is dear and hardly ever finds anything; these are not.
        if "sk-" in line or "kg-" in line or "earer" in line:
            return _KEY_LIKE.sub(_HIDDEN, line)
        return line


class LineWriter:
    """Writes lines to a stream from a thread. `write` never blocks; `close` waits for what is due.

    The thread looks for lines every `interval_s`: waking it for each one would cost the event loop more than the
    rest of the line.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        format: Format,
        max_waiting: int = _MAX_WAITING,
        interval_s: float = _WRITE_EVERY_S,
    ) -> None:
        self.format = format
        self.redactor = Redactor()
        self.dropped = 0
        self._stream = stream
        self._max_waiting = max_waiting
        self._interval_s = interval_s
        self._lines: deque[str] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line (without its newline), or drops it where too many wait."""
        if len(self._lines) >= self._max_waiting:
            self.dropped += 1
        else:
            self._lines.append(line)

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for at most that long."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            if not self._write_waiting():
                self._max_waiting = 0  # keep nothing that nobody will read
                self._lines.clear()
                return
        self._write_waiting()

    def _write_waiting(self) -> bool:
        """Writes what waits; false once nobody reads any more."""
        while self._lines or self.dropped:
            batch = [self.redactor.clean(self._lines.popleft()) for _ in range(len(self._lines))]
            dropped, self.dropped = self.dropped, 0
            if dropped:
                batch.append(_dropped_line(dropped, self.format))
            try:
                self._stream.write("".join(line + "\n" for line in batch))
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone or the stream closed: there is nobody to tell
                return False
        return True


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
        self._second = (-1, "")

    def hide(self, secrets: Iterable[str]) -> None:
        """The secrets that no line may hold from now on."""
        self._writer.redactor.know(secrets)

    def settled(self, row: LedgerRow) -> None:
        """One line for a request that ended."""
        now_s = self._wall()
        if self._json:
            self._writer.write(one_line(encode(request_line(row, self._stamp(now_s))).decode()))
        else:
            self._writer.write(f"{_clock(now_s)} {request_text(row)}")

    def event(self, message: str, *, level: Level = "info", **fields: object) -> None:
        """One line for an event of the process: start, reload, stop, what failed."""
        if self._json:
            said = {
                "time": self._stamp(self._wall()),
                "level": level,
                "event": "event",
                "message": message,
                **fields,
            }
            self._writer.write(one_line(encode(said).decode()))
            return
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        mark = "" if level == "info" else f"{level.upper()} "
        self._writer.write(one_line(f"{_clock(self._wall())} {mark}{message}{' ' if shown else ''}{shown}"))

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits."""
        self._writer.close(timeout_s)

    def _stamp(self, now_s: float) -> str:
        """The time in UTC to the millisecond; the part that a second's lines share is made once."""
        whole_ms = int(now_s * 1000)
        second, known = self._second
        if second != whole_ms // 1000:
            second = whole_ms // 1000
            known = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = (second, known)
        return f"{known}.{whole_ms % 1000:03d}Z"


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


class RequestLine(msgspec.Struct, omit_defaults=True, gc=False):
    """What the log says of a request, as JSON; the fields with a default are left out where they have it."""

    time: str
    request_id: str
    key: str
    route: str
    target: str
    model: str
    tier: str
    effort: str
    stream: bool
    status: str
    http_status: int
    attempts: int
    level: str
    event: str
    input: int = 0
    cache_read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    output: int = 0
    search: int = 0
    cost_usd: str | None = None
    ttl: str = ""
    outcome: str = ""
    estimated: bool = False
    assumed: bool = False
    anomaly: str = ""
    adjusted: str = ""
    thinking: str = ""
    error_type: str = ""
    error_code: str = ""
    error: str = ""
    wait_ms: int = 0
    ttft_ms: int | None = None
    total_ms: int | None = None


def _why(row: LedgerRow) -> str:
    """The error as the client heard it, and the faults of the attempts as the operator should."""
    faults = [f"{one.target} {one.fault}: {one.message}" for one in row.attempts if one.fault is not None]
    return "; ".join([*([row.message] if row.message else []), *faults])


def request_line(row: LedgerRow, stamp: str) -> RequestLine:
    """What the log says of a request that ended; `stamp` is the time of the line."""
    fresh, cache_read, write_5m, write_1h, output, search = (count for _, count in meters_of(row))
    return RequestLine(
        stamp,
        row.request_id,
        row.key,
        row.route,
        row.target,
        row.model,
        row.tier,
        row.effort,
        row.stream,
        row.status,
        row.http_status,
        len(row.attempts),
        "info",
        "request",
        fresh,
        cache_read,
        write_5m,
        write_1h,
        output,
        search,
        None if row.cost_nano is None else usd_text(row.cost_nano),
        row.ttl,
        row.outcome,
        row.estimated,
        row.assumed,
        row.anomaly,
        ",".join(row.adjusted),
        row.thinking,
        row.error_type,
        row.error_code,
        _why(row),
        row.wait_ms,
        row.ttft_ms,
        row.total_ms,
    )


def request_text(row: LedgerRow) -> str:
    """What the log says of a request, for a person."""
    tokens = " ".join(f"{name}={count}" for name, count in meters_of(row) if count) or "no tokens"
    cost = "unpriced" if row.cost_nano is None else f"${usd_text(row.cost_nano)}"
    ttft = "" if row.ttft_ms is None else f" first {row.ttft_ms / 1000:.2f}s"
    total = "" if row.total_ms is None else f" total {row.total_ms / 1000:.2f}s"
    error = f" {row.error_code or row.error_type}: {_why(row)}" if row.message else ""
    return one_line(
        f"{row.status} {row.http_status} {row.model} via {row.target} key={row.key} effort={row.effort} "
        f"{tokens} {cost}{ttft}{total} {row.request_id}{error}"
    )


def one_line(text: str) -> str:
    """The text without control characters: nobody forges a line or a terminal's colours."""
    return text if text.isprintable() else _CONTROL.sub(" ", text)


def _clock(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%SZ")


def choose_format(wanted: str, stream: TextIO) -> Format:
    """`auto` is text on a terminal and JSON elsewhere."""
    if wanted == "json":
        return "json"
    if wanted == "text":
        return "text"
    return "text" if stream.isatty() else "json"
