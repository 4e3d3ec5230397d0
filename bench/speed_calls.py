"""Requests of `bench/speed.py` as bytes, and the two kinds of connection that send them."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from speed_upstream import MARK, MODEL, WORDS, acknowledge, shape_of
from typing_extensions import override

_LAST: Final = b"0\r\n\r\n"
_DONE: Final = b"[DONE]"
_TAIL_BYTES: Final = 64
_SEEN: Final = WORDS.split()[-2].encode() + b" size"
_FILLER: Final = "You are a careful assistant. Every figure is checked twice before it is read aloud. "


class LoadError(Exception):
    """Who is measured did not answer as it should; the message says how."""


def small(say: str, number: int = 0) -> bytes:
    """A request of 0.8 KB that no other with another number is the same as."""
    system = f"Conversation {number}. " + _FILLER * 7
    messages = [{"role": "system", "content": system[:600]}, {"role": "user", "content": f"{MARK.decode()}{say}"}]
    return json.dumps(
        {"model": MODEL, "messages": messages, "stream": True, "max_completion_tokens": 1000}
    ).encode()


def history(talk: int, turns: int) -> bytes:
    """A request with so many turns of a conversation that have lost their thoughts."""
    messages = [*shape_of(talk).history(talk, turns), {"role": "user", "content": f"{MARK.decode()}one"}]
    return json.dumps({"model": MODEL, "messages": messages, "stream": True, "reasoning_effort": "max"}).encode()


def question(talk: int, turn: int) -> bytes:
    """A request that asks one question of a conversation alone, so that its answer's thought gets known."""
    messages = [shape_of(talk).question(talk, turn)]
    return json.dumps({"model": MODEL, "messages": messages, "stream": True, "reasoning_effort": "max"}).encode()


def raw(body: bytes, headers: dict[str, str]) -> bytes:
    """The request as it goes over the wire."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{fields}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share is at most; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


@dataclass(slots=True)
class Window:
    """What a closed loop of calls has seen. Latencies are of calls that ended in it."""

    since_s: float
    until_s: float
    done: int = 0
    in_window: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    problem: str = ""


class Caller(asyncio.Protocol):
    """One connection that sends the next request as soon as the last was answered, until the window ends."""

    def __init__(self, requests: Iterator[bytes], window: Window) -> None:
        self._requests = requests
        self._window = window
        self._tail = b""
        self._is_new = True
        self._sent_s = 0.0
        self.transport: asyncio.Transport
        self.ended = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._is_new = True
        self._tail = b""
        self._sent_s = time.monotonic()
        self.transport.write(next(self._requests))

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_new:
            self._is_new = False
            if not data.startswith(b"HTTP/1.1 200"):
                self._window.problem = data[:300].decode("latin-1")
                self.transport.abort()
                return
        tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        self._tail = tail
        if not tail.endswith(_LAST) or _DONE not in tail:
            acknowledge(self.transport)
            return
        window, now_s = self._window, time.monotonic()
        window.done += 1
        if window.since_s <= now_s < window.until_s:
            window.in_window += 1
            window.latencies_ms.append((now_s - self._sent_s) * 1000)
        if now_s < window.until_s:
            self._send()
        else:
            self.end()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done() and not self._window.problem:
            self._window.problem = f"a connection was closed before its answer had ended ({exc})"
        self.end()

    def end(self) -> None:
        """Nothing further is sent or waited for."""
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass
class Stream(asyncio.Protocol):
    """One request: when its pieces with content came, its head, its end. A kept connection sends further ones."""

    times_s: list[float] = field(default_factory=list)
    events: int = 0
    head: bytes = b""
    sent_s: float = 0.0
    tail: bytes = b""

    def __post_init__(self) -> None:
        self.transport: asyncio.Transport
        self.began: asyncio.Future[None]
        self.ended: asyncio.Future[None]

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Sends a request, and forgets what was seen of the one before."""
        loop = asyncio.get_running_loop()
        self.times_s, self.events, self.head, self.tail = [], 0, b"", b""
        self.began, self.ended = loop.create_future(), loop.create_future()
        self.sent_s = time.monotonic()
        self.transport.write(request)

    @override
    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        acknowledge(self.transport)
        if not self.head:
            self.head = data.partition(b"\r\n\r\n")[0]
            if not self.head.startswith(b"HTTP/1.1 200"):
                self._fail(f"answered {data[:300].decode('latin-1')!r}")
                return
        if found := data.count(_SEEN):
            self.times_s.append(now_s)
            self.events += found
            if not self.began.done():
                self.began.set_result(None)
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        if self.tail.endswith(_LAST) and _DONE in self.tail and not self.ended.done():
            self.ended.set_result(None)
            if not self.began.done():
                self.began.set_result(None)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("closed the connection before the answer had ended")

    def _fail(self, how: str) -> None:
        for future in (self.began, self.ended):
            if not future.done():
                future.set_exception(LoadError(how))
                future.exception()  # heard; whoever waits hears it too
