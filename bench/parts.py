"""Where the CPU of one request goes inside the gateway: µs by part, without sockets.

    python bench/parts.py [--calls N] [--blocks N] [--quick] [--json FILE] [--profile FILE]

A whole gateway is built as `kimi-gateway serve` builds it, with a key that has a budget and limits, thoughts,
ledger, metrics and a log in a file; only the server and the upstream are left out: requests come in as ASGI
calls, and every answer is the 2.2 KB of `bench/speed_upstream.py` in one read. Time is that of the thread, so
that other work on the machine and the gateway's own threads do not count.

`all` is the endpoint as it is. The parts are what the request asks of the gateway's real parts, with a clock
around each call, in blocks of their own that take turns with the others; what the clock takes itself is
subtracted. `view` and `drain` are those functions called alone. `relay` is what is left of `all`. `other
threads` is everything beside the event loop: bringing the journal into the ledger and writing the log.
"""

import argparse
import asyncio
import copy
import cProfile
import inspect
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table
from speed_calls import small
from speed_subjects import config_text
from speed_upstream import EVENTS

from backends.ports import Call
from kimi_gateway.core.view import read
from kimi_gateway.launch import Launch
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.opening import opened_cards
from kimi_gateway.process import Gateway
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.endpoint import ChatEndpoint
from kimi_gateway.settings import load
from pricing.ledger.drain import Drainer
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import LedgerRow

ANSWER: Final = b"".join(EVENTS)
KEY: Final = "kg-bench-parts-0123456789"
NOWHERE: Final = 9
"""The port of an upstream that nobody listens on: the first look at it fails at once, and no other goes there."""
PARTS: Final = {
    "auth": "authenticate",
    "budget": "limiter",
    "thinking store": "thinking",
    "journal": "books",
    "metrics": "metrics",
    "log": "log",
}
"""By part, the field of the relay's context that stands for it."""


class Reply:
    """An upstream's answer that is there at once."""

    status = 200
    headers: Final = {"content-type": "text/event-stream"}

    def __init__(self) -> None:
        self._left = [ANSWER]

    async def read(self, wait_s: float) -> bytes:
        return self._left.pop() if self._left else b""

    def close(self) -> None:
        return


class Started:
    """A call that is answered at once."""

    async def reply(self, wait_s: float) -> Reply:
        return Reply()

    def close(self) -> None:
        return


class Answering:
    """An upstream that takes no time."""

    def start(self, call: Call) -> Started:
        return Started()

    async def open(self, call: Call) -> Reply:
        return Reply()

    async def close(self) -> None:
        return


class Clock:
    """Stands for a part, and adds up the thread's time in its calls, in seconds, and how many they were."""

    def __init__(self, part: Any, name: str, used_s: Counter[str], calls: Counter[str]) -> None:
        self._part = part
        self._name = name
        self._used_s: Any = used_s  # a Counter of floats
        self._calls = calls

    def __call__(self, *args: Any) -> Any:
        return self._timed(self._part)(*args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found
        timed = self._timed(found)
        setattr(self, name, timed)
        return timed

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        used_s, calls, name, clock = self._used_s, self._calls, self._name, time.thread_time

        def timed(*args: Any, **named: Any) -> Any:
            began = clock()
            try:
                return call(*args, **named)
            finally:
                used_s[name] += clock() - began
                calls[name] += 1

        async def awaited(*args: Any, **named: Any) -> Any:
            began = clock()
            try:
                return await call(*args, **named)
            finally:
                used_s[name] += clock() - began
                calls[name] += 1

        return awaited if inspect.iscoroutinefunction(call) else timed


class Bench:
    """A gateway's endpoint, and requests for it, each of them another."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._endpoint = ChatEndpoint(ctx)
        self._real = {field: getattr(ctx, field) for field in PARTS.values()}
        self._number = 0
        self.used_s: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    async def call(self) -> list[dict[str, Any]]:
        """One request to its end; what was sent to its client."""
        self._number += 1
        body = small("one", self._number)
        sent: list[dict[str, Any]] = []
        came = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.get_running_loop().create_future()

        async def receive() -> dict[str, Any]:
            return came.pop() if came else await gone

        async def send(message: Any) -> None:
            sent.append(message)

        headers = {"host": "localhost", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
        headers["content-length"] = str(len(body))
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope |= {"extensions": {}, "client": ("127.0.0.1", 1), "query_string": b""}
        await self._endpoint(scope, receive, send)
        gone.cancel()
        return sent

    async def block_us(self, calls: int) -> float:
        """µs of the thread for a request, over so many."""
        began = time.thread_time()
        for _ in range(calls):
            await self.call()
        return (time.thread_time() - began) / calls * 1e6

    async def timed_block(self, calls: int) -> dict[str, float]:
        """µs for a request by part, without those of the clock."""
        self.used_s.clear()
        self.calls.clear()
        for name, field in PARTS.items():
            setattr(self.ctx, field, Clock(self._real[field], name, self.used_s, self.calls))
        await self.block_us(calls)
        for field, part in self._real.items():
            setattr(self.ctx, field, part)
        tick_us = clock_us()
        return {name: max(0.0, self.used_s[name] * 1e6 - self.calls[name] * tick_us) / calls for name in PARTS}


def clock_us() -> float:
    """µs that a clock adds to what it times."""
    used_s: Counter[str] = Counter()
    nothing = Clock(lambda: None, "", used_s, Counter())._timed(lambda: None)
    for _ in range(2000):
        nothing()
    return used_s[""] / 2000 * 1e6


def alone_us(call: Callable[[], object], times: int) -> float:
    """µs of the thread for a call alone."""
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times * 1e6


def drain_us(row: LedgerRow, directory: Path, rows: int) -> float:
    """µs for a row from the journal into the ledger, many at a time."""
    url = f"sqlite:///{directory / 'drained.db'}"
    writer = JournalWriter(directory / "drained", url, max_bytes=1 << 30, fsync=False)
    drainer = Drainer(directory / "drained", url, own=writer)
    drainer.drain_once()  # makes the ledger
    for number in range(rows):
        one = copy.copy(row)
        one.request_id = f"kr_{number:026d}"
        writer.append_open(one)
        writer.append_settled(one)
    began = time.thread_time()
    booked = drainer.drain_once()
    used_s = time.thread_time() - began
    assert booked >= rows, f"only {booked} of {rows} rows were booked"
    drainer.close()
    writer.close()
    return used_s / rows * 1e6


async def booked_row(bench: Bench) -> LedgerRow:
    """The row of one request, as it was settled."""
    rows: list[LedgerRow] = []
    books = bench.ctx.books

    class Kept:
        open, progress, refused = books.open, books.progress, books.refused

        def settled(self, row: LedgerRow) -> None:
            rows.append(copy.deepcopy(row))
            books.settled(row)

    bench.ctx.books = Kept()
    sent = await bench.call()
    bench.ctx.books = books
    assert sent[0]["status"] == 200, sent
    assert rows[0].status == "ok", rows
    return rows[0]


async def measure(bench: Bench, args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """µs by part: medians of the blocks."""
    row = await booked_row(bench)
    await bench.block_us(args.calls)
    whole, timed, other = [], [], []
    for _ in range(args.blocks):
        process_s, thread_s = time.process_time(), time.thread_time()
        whole.append(await bench.block_us(args.calls))
        await asyncio.sleep(0.5)  # the drainer comes by
        beside_s = (time.process_time() - process_s) - (time.thread_time() - thread_s)
        other.append(beside_s / args.calls * 1e6)
        timed.append(await bench.timed_block(args.calls))
    parts = {name: statistics.median(one[name] for one in timed) for name in PARTS}
    parts["view"] = alone_us(lambda: read(small("one")), 2000) - alone_us(lambda: small("one"), 2000)
    everything = statistics.median(whole)
    found = {"all": everything, "relay": everything - sum(parts.values()), **parts}
    found["drain"] = drain_us(row, directory, args.calls * 10)
    found["other threads"] = statistics.median(other)
    return {"parts": found, "calls": args.calls, "blocks": args.blocks, "load": os.getloadavg()[0]}


async def profiled(bench: Bench, args: argparse.Namespace) -> None:
    """The endpoint under the profiler; written to a file for `pstats`."""
    await bench.block_us(args.calls)
    profile = cProfile.Profile()
    profile.enable()
    await bench.block_us(args.calls * 3)
    profile.disable()
    profile.dump_stats(args.profile)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Builds the gateway and measures it."""
    with tempfile.TemporaryDirectory(prefix="kimi-parts-") as name:
        directory = Path(name)
        config = directory / "kimi-gateway.toml"
        config.write_text(config_text(directory, port=0, upstream=NOWHERE), "utf-8")
        settings = load(config, {"BENCH_KEY": KEY, "BENCH_UPSTREAM_KEY": "sk-bench-upstream"})
        with (directory / "log.txt").open("w") as stream:
            log = Log(LineWriter(stream, format="json"), wall=time.time)
            launch = Launch(settings=settings, reload=lambda: settings, say=lambda text: None)
            made = Gateway(launch, log, opened_cards(settings))
            async with AsyncExitStack() as stack:
                await made._open(stack)  # the composition root's own steps, without its server
                await made._look_first()
                made._ctx.upstream = Answering()
                bench = Bench(made._ctx)
                found = await measure(bench, args, directory)
                if args.profile:
                    await profiled(bench, args)
            log.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="requests of a block")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of each kind")
    parser.add_argument("--quick", action="store_true", help="three blocks of 100")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--profile", type=Path, help="also profile the endpoint, into this file")
    args = parser.parse_args()
    if args.quick:
        args.calls, args.blocks = 100, 3
    found = uvloop.run(run(args))
    table = Table("", "µs", title=f"µs of CPU of a request by part, load {found['load']:.2f}")
    for name, cost_us in found["parts"].items():
        table.add_row(name, f"{cost_us:,.1f}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
