"""What a call, a chunk and an upload cost in the upstream client: CPU of this process, both adapters, one run.

    python bench/client.py [--rounds N] [--calls N] [--streams N] [--chunks N] [--json FILE] [--profile FILE]

Two processes: a fake upstream that does the least an HTTP server can, and this one. The adapters take turns, round
by round, and the table has medians, so that a busy machine is busy for both; the ratios of each round are what to
look at. `bare` is no client at all: it writes the same bytes on kept connections and counts what comes back, which
is what the kernel and the event loop take of any client's figure.

Measures: calls at 64 at a time with 0.8 KB in and 2.2 KB out; paced streams of 200-byte events, each event one
chunk and one write; uploads of 4.3 MB.
"""

import argparse
import asyncio
import cProfile
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol, cast

import uvloop
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from backends.aiohttp_upstream import AiohttpUpstream
from backends.lean.upstream import LeanUpstream
from backends.ports import Call, Upstream

AT_ONCE: Final = 64
PACE_S: Final = 0.02
ANSWER: Final = b"x" * 2200
EVENT: Final = b"data: " + b"y" * 192 + b"\n\n"
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nDate: Sun, 01 Nov 2026 00:00:00 GMT\r\nServer: uvicorn\r\n"
    b"Content-Type: application/json\r\nX-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e\r\n"
)
WHOLE: Final = HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER
STREAM: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK: Final = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST: Final = b"0\r\n\r\n"
HEADERS: Final = {
    "Authorization": "Bearer sk-0123456789abcdef0123456789abcdef",
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "User-Agent": "kimi-gateway/0.1",
    "X-Session-ID": "c0ffee00c0ffee00",
}
SMALL: Final = b"{" + b"z" * 798 + b"}"
LARGE: Final = b"{" + b"z" * 4_300_000 + b"}"
WAIT_S: Final = 15.0


class Served(asyncio.Protocol):
    """The fake upstream's end of a connection. A path with a number wants so many chunks."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._chunks = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, mark, rest = (self._head + data).partition(b"\r\n\r\n")
            if not mark:
                self._head = head
                return
            self._head = b""
            self._chunks = int(head.split(b" ", 2)[1][1:] or b"0")
            self._left = int(head.rpartition(b"ontent-Length: ")[2].split(b"\r", 1)[0])
            data = rest
        self._left -= len(data)
        if self._left:
            return
        if self._chunks:
            self._transport.write(STREAM)
            asyncio.get_running_loop().call_later(PACE_S, self._next)
        else:
            self._transport.write(WHOLE)

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(CHUNK)
        self._chunks -= 1
        if self._chunks:
            asyncio.get_running_loop().call_later(PACE_S, self._next)
        else:
            self._transport.write(LAST)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Client(Protocol):
    """What is measured."""

    async def call(self, path: str, body: bytes) -> int:
        """One call, read to its end; how many pieces its body came in."""
        ...

    async def close(self) -> None: ...


class Ported:
    """A client behind the port."""

    def __init__(self, upstream: Upstream, port: int) -> None:
        self._upstream = upstream
        self._root = f"http://127.0.0.1:{port}"

    async def call(self, path: str, body: bytes) -> int:
        reply = await self._upstream.open(Call(self._root + path, HEADERS, body))
        pieces = 0
        while await reply.read(WAIT_S):
            pieces += 1
        reply.close()
        return pieces

    async def close(self) -> None:
        await self._upstream.close()


class BareLine(asyncio.Protocol):
    """A connection that only counts bytes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.left = 0
        self.pieces = 0
        self.waiter: asyncio.Future[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        self.pieces += 1
        self.left -= len(data)
        if self.waiter is not None:
            self.waiter.set_result(None)
            self.waiter = None


class Bare:
    """No HTTP: knows what comes back, and wakes its caller for every piece."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[BareLine] = []
        fields = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        self._fields = f"Host: 127.0.0.1:{port}\r\n{fields}Accept-Encoding: identity\r\nContent-Length: "

    async def call(self, path: str, body: bytes) -> int:
        loop = asyncio.get_running_loop()
        line = self._idle.pop() if self._idle else None
        if line is None:
            _, line = await loop.create_connection(BareLine, "127.0.0.1", self._port)
        chunks = int(path[1:] or "0")
        line.left = len(STREAM) + chunks * len(CHUNK) + len(LAST) if chunks else len(WHOLE)
        line.pieces = 0
        line.transport.write(f"POST {path} HTTP/1.1\r\n{self._fields}{len(body)}\r\n\r\n".encode() + body)
        while line.left:
            line.waiter = loop.create_future()
            await line.waiter
        self._idle.append(line)
        return line.pieces

    async def close(self) -> None:
        for line in self._idle:
            line.transport.close()


async def many(client: Client, path: str, body: bytes, count: int, at_once: int) -> tuple[float, float]:
    """CPU seconds of this process, and seconds, for so many calls."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.call(path, body)

    cpu_s, began_s = time.process_time(), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.process_time() - cpu_s, time.monotonic() - began_s


async def figures(client: Client, args: argparse.Namespace) -> dict[str, float]:
    """The measures of one client in one round."""
    await many(client, "/", SMALL, AT_ONCE * 4, AT_ONCE)
    call_cpu_s, call_s = await many(client, "/", SMALL, args.calls, AT_ONCE)
    await many(client, "/1", SMALL, args.streams, args.streams)
    opening_cpu_s, _ = await many(client, "/1", SMALL, args.streams, args.streams)
    stream_cpu_s, _ = await many(client, f"/{args.chunks + 1}", SMALL, args.streams, args.streams)
    upload_cpu_s, _ = await many(client, "/", LARGE, args.uploads, 4)
    return {
        "call, µs": call_cpu_s / args.calls * 1e6,
        "calls/s": args.calls / call_s,
        "chunk, µs": (stream_cpu_s - opening_cpu_s) / (args.streams * args.chunks) * 1e6,
        "4.3 MB upload, ms": upload_cpu_s / args.uploads * 1e3,
    }


async def measured(port: int, args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Figures by client, round by round."""
    makers: dict[str, Callable[[], Client]] = {
        "lean": lambda: Ported(LeanUpstream(proxies={}), port),
        "aiohttp": lambda: Ported(AiohttpUpstream(proxies={}), port),
        "bare": lambda: Bare(port),
    }
    rounds = []
    for number in range(args.rounds):
        found: dict[str, dict[str, float]] = {}
        order = list(makers) if number % 2 == 0 else list(reversed(makers))
        for name in order:
            client = makers[name]()
            found[name] = await figures(client, args)
            await client.close()
        rounds.append(found)
    return rounds


async def profiled(port: int, args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """The lean client's calls under the profiler; written to a file for `pstats`."""
    client = Ported(LeanUpstream(proxies={}), port)
    await many(client, "/", SMALL, 1000, AT_ONCE)
    profile = cProfile.Profile()
    profile.enable()
    await many(client, "/", SMALL, args.calls, AT_ONCE)
    profile.disable()
    profile.dump_stats(args.profile)
    await client.close()
    return []


def with_upstream(
    run: Callable[[int, argparse.Namespace], Coroutine[Any, Any, Any]], args: argparse.Namespace
) -> Any:
    """What `run` gives with the fake upstream's port."""
    upstream = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert upstream.stdout is not None
        return uvloop.run(run(int(upstream.stdout.readline()), args))
    finally:
        upstream.terminate()
        upstream.wait(10)


def report(rounds: list[dict[str, dict[str, float]]], path: Path | None) -> None:
    """The table of medians, and of the ratios' medians."""
    names, measures = list(rounds[0]), list(rounds[0]["lean"])
    medians = {
        name: {measure: statistics.median(one[name][measure] for one in rounds) for measure in measures}
        for name in names
    }
    ratios = {
        measure: statistics.median(one["lean"][measure] / one["aiohttp"][measure] for one in rounds)
        for measure in measures
    }
    table = Table("", *measures, title=f"CPU of the client, medians of {len(rounds)} rounds")
    for name in sorted(medians):
        table.add_row(name, *(f"{medians[name][measure]:,.1f}" for measure in measures))
    table.add_row("lean / aiohttp", *(f"{ratios[measure]:.2f}" for measure in measures))
    Console().print(table)
    if path:
        path.write_text(json.dumps({"medians": medians, "ratios": ratios, "rounds": rounds}, indent=1), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=300, help="paced streams at a time")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of each")
    parser.add_argument("--uploads", type=int, default=50, help="of 4.3 MB")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--profile", type=Path, help="only profile the lean client's calls, into this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve())
    elif args.profile:
        with_upstream(profiled, args)
    else:
        report(with_upstream(measured, args), args.json)


if __name__ == "__main__":
    main()
