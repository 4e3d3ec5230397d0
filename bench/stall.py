"""How long the gateway's event loop stands still while large histories are repaired beside paced streams.

    python bench/stall.py [--uploads N] [--rounds N] [--streams N] [--messages N] [--bytes N] [--json FILE]

Three processes: a gateway with its defaults and thoughts in memory, an upstream that paces streams, and this one,
which is the clients. Clients that lost every thought upload histories of 900 messages and 4 MB, each in a
conversation of its own, one after the other as it grows; meanwhile other clients read paced streams. All thoughts
were stored before, and every upload has to come back with all of them repaired.

Shown are: the lag of the loop, by a timer in the gateway that is due every millisecond, where one that comes late
stands for all that would have been due meanwhile; the lateness of chunks, how much longer than the pace clients
waited for one, which has the noise of all three processes in it; and how long an upload took to its first byte.
Run it on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import uvloop
from rich.console import Console
from rich.table import Table
from typing_extensions import override

PACE_S: Final = 0.04
TICK_S: Final = 0.001
MODEL: Final = "kimi-k3.1-pro"
WAIT_S: Final = 60.0
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
CONFIG: Final = """
[server]
port = 0
drain_grace_s = 0
drain_timeout_s = 1
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "http://127.0.0.1:{port}/v1"
api_key_env = "STALL_KEY"
context_window = 2097152
"""
"""The window is twice Kimi's: 4 MB may be all of that, and then thoughts are left out for want of room."""
_PAIR: Final = struct.Struct("dd")


def text(name: str, size_bytes: int) -> str:
    """A text of that size which no other has."""
    return (f"{name}: " + "Every figure is checked twice before it is read aloud. " * (size_bytes // 50 + 1))[
        :size_bytes
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """Conversations of so many messages and bytes: a question, a call with its thought, a result, and again."""

    messages: int
    size_bytes: int

    @property
    def turns(self) -> int:
        """How many answers a history has."""
        return self.messages // 3

    def question(self, talk: int, turn: int) -> dict[str, Any]:
        return {"role": "user", "content": text(f"q {talk} {turn}", self.size_bytes // self.turns * 3 // 10)}

    def answer(self, talk: int, turn: int) -> dict[str, Any]:
        arguments = json.dumps({"path": f"/{talk}/{turn}", "text": text("a", self.size_bytes // self.turns // 10)})
        call = {"id": f"f:{turn}", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
        said = text(f"a {talk} {turn}", self.size_bytes // self.turns // 10)
        return {"role": "assistant", "content": said, "tool_calls": [call]}

    def result(self, talk: int, turn: int) -> dict[str, Any]:
        size_bytes = self.size_bytes // self.turns // 2
        return {"role": "tool", "tool_call_id": f"f:{turn}", "content": text(f"r {talk} {turn}", size_bytes)}

    def history(self, talk: int, turns: int) -> list[dict[str, Any]]:
        """So many turns of a conversation, without a thought."""
        return [one(talk, turn) for turn in range(turns) for one in (self.question, self.answer, self.result)]


def thought(talk: int, turn: int) -> str:
    """What was thought for an answer."""
    return text(f"t {talk} {turn}", 1500)


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()


class Upstream(asyncio.Protocol):
    """One connection. What a request says decides its answer: `pace N` a stream of N chunks, a first turn of a
    conversation its answer with a thought, anything else a word."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._data = bytearray()
        self._size_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._size_bytes:
            head, mark, _ = self._data.partition(b"\r\n\r\n")
            if not mark:
                return
            if head.startswith(b"GET"):
                self._data.clear()
                self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                return
            del self._data[: len(head) + len(mark)]
            self._size_bytes = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._data) >= self._size_bytes:
            body, self._data, self._size_bytes = self._data, bytearray(), 0
            self._task = asyncio.get_running_loop().create_task(self._answer(body))

    async def _answer(self, body: bytearray) -> None:
        self._send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n", raw=True
        )
        words = [] if len(body) > 65_536 else json.loads(body)["messages"][-1]["content"][:40].split()
        if words[:1] == ["pace"]:
            due = time.monotonic() + random.random() * PACE_S  # streams do not beat in time with each other
            for number in range(int(words[1])):
                due += PACE_S
                await asyncio.sleep(due - time.monotonic())
                self._send(chunk({"content": f"Chunk {number} of many, of the usual size. "}))
            self._end("stop")
        elif words[:1] == ["q"]:
            talk, turn = int(words[1]), int(words[2].rstrip(":"))
            answer = self._shape.answer(talk, turn)
            self._send(chunk({"reasoning_content": thought(talk, turn)}) + chunk({"content": answer["content"]}))
            self._send(chunk({"tool_calls": [{"index": 0, **answer["tool_calls"][0]}]}))
            self._end("tool_calls")
        else:
            self._send(chunk({"content": "Done."}))
            self._end("stop")

    def _end(self, reason: str) -> None:
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        self._send(chunk({}, reason) + f"data: {json.dumps(usage)}\n\n".encode() + b"data: [DONE]\n\n")
        self._send(b"0\r\n\r\n", raw=True)

    def _send(self, data: bytes, *, raw: bool = False) -> None:
        self._transport.write(data if raw else b"%x\r\n%b\r\n" % (len(data), data))


async def serve_upstream(shape: Shape) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(shape), "127.0.0.1", 0)
    print(f"port={server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def serve_gateway(directory: Path) -> None:
    """A gateway as `kimi-gateway serve` makes it, with a timer in its loop that writes down how late it came."""
    from kimi_gateway.launch import Launch
    from kimi_gateway.logs import LineWriter, Log
    from kimi_gateway.opening import opened_cards
    from kimi_gateway.process import Gateway
    from kimi_gateway.server import bind
    from kimi_gateway.settings import load

    settings = load(directory / "kimi-gateway.toml", os.environ)
    with (directory / "log.txt").open("w") as stream:
        log = Log(LineWriter(stream, format="json"), wall=time.time)
        launch = Launch(settings=settings, reload=lambda: settings, say=lambda text: print(text, flush=True))
        ticking = asyncio.create_task(tick(directory / "lags"))
        await Gateway(launch, log, opened_cards(settings)).serve(bind("127.0.0.1", 0), None)
        ticking.cancel()
        log.close()


async def tick(path: Path) -> None:
    """Writes when each timer was due and how late it came, in seconds of the machine's monotonic clock."""
    with path.open("wb", buffering=1 << 20) as file:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            file.write(_PAIR.pack(due, max(0.0, time.monotonic() - due)))


def lags_ms(path: Path, since_s: float, until_s: float) -> list[float]:
    """The lags in that time; for one that was late, also those of the timers that it stands for."""
    found: list[float] = []
    data = path.read_bytes()
    for due, lag in _PAIR.iter_unpack(data[: len(data) // _PAIR.size * _PAIR.size]):
        if since_s <= due <= until_s:
            found += [(lag - step * TICK_S) * 1000 for step in range(1 + int(lag / TICK_S))]
    return found


@dataclass
class Client(asyncio.Protocol):
    """One request on a connection of its own: when its bytes came, and its head."""

    raw: bytes
    ended: asyncio.Future[None]
    times_s: list[float] = field(default_factory=list)
    head: bytes = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self.raw)
        self.raw = b""

    @override
    def data_received(self, data: bytes) -> None:
        self.times_s.append(time.monotonic())
        self.head = self.head or data.partition(b"\r\n\r\n")[0]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def ask(port: int, body: bytes) -> Client:
    """One request, heard to its end. Raises `SystemExit` where it was not answered with 200."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    client = Client(head.encode() + body, loop.create_future())
    await loop.create_connection(lambda: client, "127.0.0.1", port)
    await asyncio.wait_for(client.ended, WAIT_S)
    if not client.head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"the gateway answered {client.head.decode('latin-1')[:300]!r}")
    return client


def request(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": MODEL, "stream": True, "reasoning_effort": "max", "messages": messages}).encode()


async def store_thoughts(port: int, shape: Shape, uploads: int) -> None:
    """Asks every question alone, so that the gateway hears each answer's thought."""
    room = asyncio.Semaphore(16)

    async def one(talk: int, turn: int) -> None:
        async with room:
            await ask(port, request([shape.question(talk, turn)]))

    await asyncio.gather(*(one(talk, turn) for talk in range(uploads) for turn in range(shape.turns)))


async def upload(port: int, shape: Shape, talk: int, bodies: Sequence[bytes]) -> list[float]:
    """Uploads a history again and again as it grows; how long each took to its first byte, in seconds."""
    took: list[float] = []
    for turns, body in enumerate(bodies, shape.turns - len(bodies) + 1):
        began = time.monotonic()
        client = await ask(port, body)
        took.append(client.times_s[0] - began)
        if f"x-kimi-thinking: repaired={turns}\r\n".encode() not in client.head + b"\r\n":
            sys.exit(f"not all of {turns} thoughts were put back: {client.head.decode('latin-1')}")
    return took


async def measure(port: int, shape: Shape, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run; `window` is when the uploads ran."""
    await store_thoughts(port, shape, args.uploads)
    bodies = [
        [
            request(
                [*shape.history(talk, shape.turns - args.rounds + 1 + number), {"role": "user", "content": "On."}]
            )
            for number in range(args.rounds)
        ]
        for talk in range(args.uploads)
    ]
    chunks = round(args.seconds / PACE_S)
    paced = request([{"role": "user", "content": f"pace {chunks} chunks"}])
    streams = [asyncio.create_task(ask(port, paced)) for _ in range(args.streams)]
    await asyncio.sleep(1.0)
    began = time.monotonic()
    took = await asyncio.gather(*(upload(port, shape, talk, bodies[talk]) for talk in range(args.uploads)))
    ended = time.monotonic()
    heard = [await stream for stream in streams]
    late = [
        max(0.0, later - earlier - PACE_S) * 1000
        for client in heard
        for earlier, later in pairwise(client.times_s)
        if began <= later <= ended
    ]
    return {
        "body_bytes": len(bodies[0][-1]),
        "uploads": sum(map(len, bodies)),
        "window": (began, ended),
        "late_ms": late,
        "took_ms": [1000 * one for times in took for one in times],
    }


def shown(values: Sequence[float]) -> dict[str, float]:
    """The percentiles by name, in milliseconds."""
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return {name: round(ordered[min(last, int(share * len(ordered)))], 2) for name, share in PERCENTILES.items()}


def started(role: str, directory: Path, args: argparse.Namespace, mark: str) -> tuple[subprocess.Popen[str], int]:
    """A process of the run, and the port that it says it has."""
    command = [sys.executable, __file__, "--role", role, "--directory", str(directory)]
    command += ["--messages", str(args.messages), "--bytes", str(args.bytes)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "STALL_KEY": "sk-stall"}, cwd=directory
    )
    assert process.stdout is not None
    for line in process.stdout:
        if mark in line:
            return process, int(line.split(mark)[1].split("/")[0])
    sys.exit(f"the {role} did not start")


def main() -> None:
    args = arguments()
    shape = Shape(args.messages, args.bytes)
    if args.role == "upstream":
        uvloop.run(serve_upstream(shape))
    elif args.role == "gateway":
        uvloop.run(serve_gateway(args.directory))
    else:
        run(shape, args)


def run(shape: Shape, args: argparse.Namespace) -> None:
    """All of it, and its table."""
    with tempfile.TemporaryDirectory(prefix="kimi-stall-") as name:
        directory = Path(name)
        upstream, port = started("upstream", directory, args, "port=")
        (directory / "kimi-gateway.toml").write_text(CONFIG.format(port=port), "utf-8")
        gateway, port = started("gateway", directory, args, "base URL  http://127.0.0.1:")
        try:
            found = uvloop.run(measure(port, shape, args))
        finally:
            for process in (gateway, upstream):
                process.send_signal(signal.SIGTERM)
                process.wait(20)
                process.stdout.close() if process.stdout is not None else None
        lags = lags_ms(directory / "lags", *found["window"])
    figures = {
        "loop lag, ms": shown(lags),
        "chunks late by, ms": shown(found["late_ms"]),
        "upload to first byte, ms": shown(found["took_ms"]),
    }
    began, ended = found["window"]
    about = f"{found['uploads']} uploads of {found['body_bytes']:,} bytes in {ended - began:.1f} s"
    table = Table("", *PERCENTILES, title=f"{about}, {args.streams} streams")
    for label, values in figures.items():
        table.add_row(label, *(f"{value:,.2f}" for value in values.values()))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"about": about, **figures}, indent=1), "utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=8, help="clients that upload at the same time")
    parser.add_argument("--rounds", type=int, default=4, help="uploads of each, one after the other")
    parser.add_argument("--streams", type=int, default=100, help="paced streams meanwhile")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a stream takes")
    parser.add_argument("--messages", type=int, default=900, help="messages of a history")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="bytes of a history, about")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--role", choices=("run", "gateway", "upstream"), default="run", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
