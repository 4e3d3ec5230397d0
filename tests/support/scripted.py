"""A scripted upstream over real sockets: answers each POST with the next entry of a list and records everything.

An answer is an object in the form of the cases' `given.upstream`, or a coroutine function taking an `Exchange`.
Keys: `status`, `headers`; the body as one of `json`, `text`, `json_usage` (a normal unstreamed answer with that
usage), `sse_text` (one write), `sse_b64_chunks` (separate writes), `timeline` (`[[seconds, text], …]` since the
request, times `time_factor`); `then`: `close` | `hold` | `reset`. Beyond the cases: `framing`: `content-length`
(whole bodies) | `chunked` (streams) | `until-close` | `short` (a content-length ten bytes too large).

`then: close` ends a chunked body without its last chunk, as a dying server does; use `until-close` for a body
that the closing ends rightly. An answer of only `{"then": "reset"}` resets before a status line.

`{"connect": "refused"}` is an attempt that must be refused. A server cannot see that, so while such an entry is
next the port is bound but not listened on, and it stays so until the test calls `let_in()` (after it saw the
fault in the gateway's metrics or ledger) or `let_in_after(seconds)`. A target that is never there: `dead_port()`.
"""

import asyncio
import base64
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeAlias

from backends.json import encode
from support.exchange import ClientLeft, Exchange, Line, Received, read_body, read_head

Given: TypeAlias = Mapping[str, Any]
Script: TypeAlias = Callable[[Exchange], Awaitable[None]]
Answer: TypeAlias = Given | Script

WRITE_GAP_S = 0.01  # between writes that must be separate reads at the client
BEFORE_RESET_S = 0.05  # lets the client read first: RST drops what it has not read
MODELS = ("kimi-k3.1-pro", "kimi-k3.1-pro-highspeed", "moonshotai/kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro")
SPENT: Given = {"status": 599, "text": "the scripted upstream has no answer left for this request"}
REFUSED = "refused"


def usage_body(model: str, usage: object) -> dict[str, object]:
    """A normal unstreamed answer with the given usage."""
    message = {"role": "assistant", "content": "ok"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {
        "id": "cmpl-scripted",
        "object": "chat.completion",
        "created": 1796040000,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def unread(script: Script) -> Script:
    """Marks a script that reads the request's body itself, late or never."""
    script.__dict__["unread"] = True
    return script


@contextmanager
def dead_port() -> Iterator[int]:
    """A port that refuses every connection for as long as the context lives: bound, never listened on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


class ScriptedUpstream:
    """See the module. Use as a context manager; everything is closed at its end, and a script's own exception
    is raised there. `requests` are the POSTs in order of arrival (`probes` the rest, which take no answer)."""

    def __init__(
        self,
        answers: Sequence[Answer] = (),
        *,
        repeat_last: bool = False,
        time_factor: float = 1.0,
        models: Sequence[str] = MODELS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.probes: list[Received] = []
        self.connections = 0
        self._answers = list(answers)
        self._repeat_last = repeat_last
        self._time_factor = time_factor
        self._models = models
        self._tls = tls
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._errors: list[BaseException] = []
        self._lines: set[Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closed_door: socket.socket | None = None
        self._port = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="scripted-upstream")
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    # --- for the test's thread ------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """The address a target is configured with, ending in /v1."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}/v1"

    @property
    def port(self) -> int:
        """The port, picked by the system."""
        return self._port

    def add(self, *answers: Answer) -> None:
        """Appends answers."""
        asyncio.run_coroutine_threadsafe(self._add(answers), self._loop).result(10)

    def forget(self) -> None:
        """Drops the answers that nobody came for."""
        self._loop.call_soon_threadsafe(self._answers.clear)

    def wait_for_requests(self, count: int, timeout_s: float = 5.0) -> list[Received]:
        """The requests, once there are that many. Raises `AssertionError` where they do not come in time."""
        self._wait(lambda: len(self.requests) >= count, timeout_s, f"{count} requests")
        return self.requests

    def wait_for_disconnect(self, timeout_s: float = 5.0, *, request: int = -1) -> Received:
        """That request, once its client closed before the answer was complete. Raises `AssertionError`."""

        def left() -> bool:
            chosen = self.requests[request:][:1]
            return bool(chosen) and chosen[0].closed_by_client_at is not None

        self._wait(left, timeout_s, "a disconnect of the client")
        return self.requests[request]

    def let_in(self) -> None:
        """Ends the refusal of the `connect: refused` entries that are next, and listens again."""
        asyncio.run_coroutine_threadsafe(self._let_in(), self._loop).result(10)

    def let_in_after(self, seconds: float) -> None:
        """The same, later."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._let_in_soon)

    def _wait(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(true, timeout_s):
                raise AssertionError(f"{what} did not come within {timeout_s} s; requests: {len(self.requests)}")

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise AssertionError("the scripted upstream did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        if self._thread.is_alive():
            raise AssertionError("the scripted upstream did not end")
        if self._errors and error is None:
            raise self._errors[0]

    # --- in the upstream's own loop -------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._set_door()
        self._ready.set()
        await self._stop.wait()
        await self._stop_listening()
        if self._closed_door is not None:
            self._closed_door.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        lines = list(self._lines)
        for line in lines:
            line.closed_here = True
            line.transport.abort()
        await asyncio.gather(*(line.ended.wait() for line in lines))

    def _refuses_next(self) -> bool:
        return (
            bool(self._answers) and not callable(self._answers[0]) and self._answers[0].get("connect") == REFUSED
        )

    def _bound(self) -> socket.socket:
        # With the protocol named: asyncio sets TCP_NODELAY only then, and each answer would take 40 ms without.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self._port))
        self._port = sock.getsockname()[1]
        return sock

    async def _set_door(self) -> None:
        """Listens, or holds the port without listening, as the next answer wants."""
        if self._stop.is_set():
            return
        if self._refuses_next():
            await self._stop_listening()
            if self._closed_door is None:
                self._closed_door = self._bound()
        elif self._server is None:
            sock = self._closed_door or self._bound()
            self._closed_door = None
            self._server = await self._loop.create_server(
                lambda: Line(self._begin, self._client_left, self._lines.discard), sock=sock, ssl=self._tls
            )

    async def _stop_listening(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        for sock in server.sockets:
            self._loop.remove_reader(sock.fileno())
        for _ in range(3):  # closed at once, the server (Python 3.11) would lose what it has just accepted
            await asyncio.sleep(0)
        server.close()

    async def _add(self, answers: Sequence[Answer]) -> None:
        self._answers.extend(answers)
        await self._set_door()

    async def _let_in(self) -> None:
        while self._refuses_next():
            self._answers.pop(0)
        await self._set_door()

    def _let_in_soon(self) -> None:
        self._keep(self._loop.create_task(self._let_in()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, line: Line) -> None:
        if self._stop.is_set():
            line.transport.abort()
            return
        self._lines.add(line)
        number = self.connections
        self.connections += 1
        self._keep(self._loop.create_task(self._serve(line, number)))

    def _client_left(self, line: Line) -> None:
        received = line.received
        with self._changed:
            if received is not None and not received.complete:
                received.closed_by_client_at = line.left_at_s
            self._changed.notify_all()

    async def _serve(self, line: Line, number: int) -> None:
        try:
            while await self._one_request(line, number):
                pass
        except ClientLeft:
            pass
        except Exception as err:  # last line of defence of this task: raised again when the context ends
            self._errors.append(err)
        finally:
            if not line.transport.is_closing():
                line.close()

    async def _one_request(self, line: Line, number: int) -> bool:
        """Answers one request; says whether the connection goes on."""
        received = await read_head(line, number)
        if received.method != "POST":
            return await self._probe(Exchange(line, received))
        answer = self._next_answer()
        if not getattr(answer, "unread", False):
            await read_body(line, received)
        await self._set_door()
        line.received = received
        with self._changed:
            self.requests.append(received)
            self._changed.notify_all()
        exchange = Exchange(line, received)
        if callable(answer):
            await answer(exchange)
        else:
            await play(answer, exchange, time_factor=self._time_factor)
        received.complete = True
        return exchange.keep and self._server is not None

    def _next_answer(self) -> Answer:
        if not self._answers:
            return SPENT
        if self._repeat_last and len(self._answers) == 1:
            return self._answers[0]
        return self._answers.pop(0)

    async def _probe(self, exchange: Exchange) -> bool:
        self.probes.append(exchange.received)
        path = exchange.received.path.partition("?")[0]
        if exchange.received.method == "GET" and path == "/v1/models":
            rows = [{"id": name, "object": "model", "owned_by": "scripted"} for name in self._models]
            await play({"status": 200, "json": {"object": "list", "data": rows}}, exchange)
        else:
            await play({"status": 404, "text": "the scripted upstream has no such path"}, exchange)
        return exchange.keep


async def play(given: Given, exchange: Exchange, *, time_factor: float = 1.0) -> None:
    """Sends one answer in the form of the cases."""
    then = given.get("then")
    if "status" in given:
        kind, parts = _parts(given, exchange, time_factor)
        framing = given.get("framing") or ("content-length" if kind != "text/event-stream" else "chunked")
        total = sum(len(data) for _, data in parts)
        await exchange.head(given["status"], _headers(given, kind, framing, total))
        await _send(exchange, parts, chunked=framing == "chunked")
        await _finish(exchange, framing, then)
    elif then == "hold":
        await exchange.hold()
    if then == "reset":
        await exchange.pause(BEFORE_RESET_S if "status" in given else 0)
        exchange.reset()
    elif not exchange.keep:
        exchange.close()


def _parts(given: Given, exchange: Exchange, time_factor: float) -> tuple[str, list[tuple[float, bytes]]]:
    """Content type and body of an answer; the times are seconds since the request."""
    if "json" in given:
        return "application/json", [(0.0, encode(given["json"]))]
    if "json_usage" in given:
        model = str(exchange.received.json.get("model"))
        return "application/json", [(0.0, encode(usage_body(model, given["json_usage"])))]
    if "text" in given:
        return "text/plain", [(0.0, given["text"].encode())]
    if "sse_text" in given:
        return "text/event-stream", [(0.0, given["sse_text"].encode())]
    if "sse_b64_chunks" in given:
        return "text/event-stream", [
            (number * WRITE_GAP_S, base64.b64decode(chunk)) for number, chunk in enumerate(given["sse_b64_chunks"])
        ]
    if "timeline" in given:
        return "text/event-stream", [(at_s * time_factor, text.encode()) for at_s, text in given["timeline"]]
    return "text/plain", []


def _headers(given: Given, kind: str, framing: str, total: int) -> list[tuple[str, str]]:
    own = {str(name): str(value) for name, value in given.get("headers", {}).items()}
    if "content-type" not in {name.lower() for name in own}:
        own = {"Content-Type": kind, **own}
    match framing:
        case "content-length":
            own["Content-Length"] = str(total)
        case "short":
            own["Content-Length"] = str(total + 10)
        case "chunked":
            own["Transfer-Encoding"] = "chunked"
        case "until-close":
            own["Connection"] = "close"
        case _:
            raise ValueError(f"unknown framing {framing!r}: content-length, chunked, until-close or short")
    return list(own.items())


async def _send(exchange: Exchange, parts: list[tuple[float, bytes]], *, chunked: bool) -> None:
    for at_s, data in parts:
        wait_s = exchange.received.at_s + at_s - time.monotonic()
        if at_s and wait_s > 0:
            await exchange.pause(wait_s)
        await (exchange.chunk(data) if chunked else exchange.write(data))


async def _finish(exchange: Exchange, framing: str, then: str | None) -> None:
    """Ends the body as its framing and `then` want; sets `keep` where the connection can go on."""
    match then:
        case None:
            if framing == "chunked":
                await exchange.end_chunks()
            exchange.keep = framing in ("chunked", "content-length")
        case "hold" if framing == "content-length":
            exchange.keep = True  # the answer is complete: to hold is to stay connected
        case "hold":
            await exchange.hold()
        case "close" | "reset":
            pass
        case _:
            raise ValueError(f"unknown then {then!r}: close, hold or reset")
