"""The clients of `bench/speed.py`, in a process of their own: commands come in as JSON lines, figures go out so.

    python bench/speed_load.py

A command names what to `do`, the `port` and `headers` of who is measured, and the process id of its tree. One runs
at a time; what it opens it closes, but for streams that are held until they are released. Times are milliseconds.
"""

import asyncio
import itertools
import json
import resource
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import uvloop
from speed_calls import Caller, LoadError, Stream, Window, history, percentile, question, raw, small
from speed_process import cpu_s
from speed_upstream import shape_of

WAIT_S: Final = 60.0
_ENDING_S: Final = 8.0
_IDLE_S: Final = 0.25
_IDLE_CPU: Final = 0.08
_IDLE_FOR_S: Final = 6.0
_BODIES: Final = 1000


class Clients:
    """All that can be done; `held` are streams that are open until they are released."""

    def __init__(self) -> None:
        self._held: list[Stream] = []

    async def _open(self, port: int) -> Stream:
        stream = Stream()
        await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
        return stream

    async def _opened(self, port: int, request: bytes, count: int) -> list[Stream]:
        """So many streams; a few connections at a time, so that nobody's queue of new ones overflows."""
        streams: list[Stream] = []
        for first in range(0, count, 50):
            some = await asyncio.gather(*(self._open(port) for _ in range(min(50, count - first))))
            for stream in some:
                stream.send(request)
            streams += some
        return streams

    async def _begun(self, streams: Sequence[Stream]) -> None:
        """Waits until every stream has said something. Raises `LoadError`, and closes them, where one does not."""
        await asyncio.wait([stream.began for stream in streams], timeout=WAIT_S)
        begun = sum(1 for one in streams if one.began.done() and not one.began.exception())
        if begun < len(streams):
            self._close(streams)
            raise LoadError(f"only {begun} of {len(streams)} streams have begun within {WAIT_S:.0f} s")

    async def rps(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A closed loop on so many connections. CPU is of all calls, and of what follows them until it is idle."""
        before_s = cpu_s(asked["pid"])
        began_s = time.monotonic() + asked["warm_s"]
        window = Window(began_s, began_s + asked["seconds"])
        bodies = [raw(small(asked["say"], number), asked["headers"]) for number in range(_BODIES)]
        requests = itertools.cycle(bodies)
        loop = asyncio.get_running_loop()
        callers = []
        for _ in range(asked["connections"]):
            _, caller = await loop.create_connection(lambda: Caller(requests, window), "127.0.0.1", asked["port"])
            callers.append(caller)
        ended = [caller.ended for caller in callers]
        await asyncio.wait(ended, timeout=asked["warm_s"] + asked["seconds"] + _ENDING_S)
        if window.problem:
            raise LoadError(window.problem)
        for caller in callers:
            caller.end()
            caller.transport.abort()
        await self.idle(asked)
        used_s = cpu_s(asked["pid"]) - before_s
        return {
            "rps": window.in_window / asked["seconds"],
            "p50_ms": percentile(window.latencies_ms, 0.5),
            "p99_ms": percentile(window.latencies_ms, 0.99),
            "cpu_us": used_s / window.done * 1e6 if window.done else None,
        }

    async def idle(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Waits until the tree of processes does next to nothing, at most some seconds."""
        until_s = time.monotonic() + _IDLE_FOR_S
        last_s = cpu_s(asked["pid"])
        while time.monotonic() < until_s:
            await asyncio.sleep(_IDLE_S)
            now_s = cpu_s(asked["pid"])
            if now_s - last_s <= _IDLE_CPU * _IDLE_S:
                break
            last_s = now_s
        return {}

    async def paced(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Paced streams; what is seen in a window of time in their midst, and the CPU of a chunk in it."""
        every_s, seconds = asked["every_s"], asked["seconds"]
        chunks = int(
            (WAIT_S + asked["warm_s"] + seconds) / every_s
        )  # the first must not end before the last begins
        request = raw(small(f"pace {chunks} {every_s}"), asked["headers"])
        streams = await self._opened(asked["port"], request, asked["streams"])
        await self._begun(streams)
        await asyncio.sleep(asked["warm_s"])
        used_s, began_s, before = cpu_s(asked["pid"]), time.monotonic(), sum(one.events for one in streams)
        await asyncio.sleep(seconds)
        used_s, ended_s = cpu_s(asked["pid"]) - used_s, time.monotonic()
        events = sum(one.events for one in streams) - before
        gaps = self._gaps_ms(streams, began_s, ended_s)
        self._close(streams)
        await self.idle(asked)
        return {
            "cpu_us": used_s / events * 1e6 if events else None,
            "events_per_s": events / (ended_s - began_s),
            "gap_p50_ms": percentile(gaps, 0.5),
            "gap_p99_ms": percentile(gaps, 0.99),
            "first_p50_ms": percentile([1000 * (one.times_s[0] - one.sent_s) for one in streams], 0.5),
        }

    @staticmethod
    def _gaps_ms(streams: Sequence[Stream], since_s: float, until_s: float) -> list[float]:
        pairs = (pair for one in streams for pair in pairwise(one.times_s))
        return [1000 * (later - earlier) for earlier, later in pairs if since_s <= later <= until_s]

    @staticmethod
    def _close(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.transport.abort()

    async def first(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Requests one after the other on one connection: the time to the first event of each."""
        bodies = [raw(small("events", number), asked["headers"]) for number in range(asked["count"])]
        return await self._one_by_one(asked["port"], bodies)

    async def bodies(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A history again and again as it grows, one after the other on one connection."""
        talk, count = asked["talk"], asked["count"]
        turns = range(shape_of(talk).turns - count + 1, shape_of(talk).turns + 1)
        if asked["store"]:
            await self._store(asked, [talk])
        return await self._one_by_one(asked["port"], [raw(history(talk, one), asked["headers"]) for one in turns])

    async def _one_by_one(self, port: int, requests: Sequence[bytes]) -> dict[str, Any]:
        stream = await self._open(port)
        took: list[float] = []
        for request in requests:
            stream.send(request)
            await asyncio.wait_for(stream.ended, WAIT_S)
            took.append((stream.times_s[0] - stream.sent_s) * 1000)
        stream.transport.abort()
        return {"p50_ms": percentile(took, 0.5), "head": stream.head.decode("latin-1")}

    async def _store(self, asked: dict[str, Any], talks: Sequence[int]) -> None:
        """Asks every question of these conversations alone."""
        left = iter([(talk, turn) for talk in talks for turn in range(shape_of(talk).turns)])

        async def worker() -> None:
            stream = await self._open(asked["port"])
            for talk, turn in left:
                stream.send(raw(question(talk, turn), asked["headers"]))
                await asyncio.wait_for(stream.ended, WAIT_S)
            stream.transport.abort()

        await asyncio.gather(*(worker() for _ in range(8)))

    async def uploads(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Large histories of several clients at once, beside paced streams: how late those get meanwhile."""
        every_s, talks = asked["every_s"], range(asked["talk"], asked["talk"] + asked["uploads"])
        if asked["store"]:
            await self._store(asked, talks)
        turns = range(shape_of(talks[0]).turns - asked["rounds"] + 1, shape_of(talks[0]).turns + 1)
        requests = [[raw(history(talk, one), asked["headers"]) for one in turns] for talk in talks]
        paced = raw(small(f"pace {int(2 * WAIT_S / every_s)} {every_s}"), asked["headers"])
        streams = await self._opened(asked["port"], paced, asked["streams"])
        await self._begun(streams)
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        took = await asyncio.gather(*(self._one_by_one(asked["port"], some) for some in requests))
        ended_s = time.monotonic()
        late = [max(0.0, gap - 1000 * every_s) for gap in self._gaps_ms(streams, began_s, ended_s)]
        self._close(streams)
        return {
            "late_p99_ms": percentile(late, 0.99),
            "late_p999_ms": percentile(late, 0.999),
            "upload_ms": percentile([one["p50_ms"] for one in took], 0.5),
            "head": took[0]["head"],
        }

    async def hold(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Opens further streams and keeps them; how many have said something."""
        chunks = int(asked["for_s"] / asked["every_s"])
        request = raw(small(f"pace {chunks} {asked['every_s']}"), asked["headers"])
        streams = await self._opened(asked["port"], request, asked["streams"])
        self._held += streams
        await asyncio.wait([stream.began for stream in streams], timeout=WAIT_S)
        return {"open": sum(1 for one in self._held if one.began.done() and not one.began.exception())}

    async def release(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Closes what is held."""
        self._close(self._held)
        self._held = []
        return {}

    async def health(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Asks for a small path so many times, one after the other: the longest that it took."""
        took = []
        for _ in range(asked["count"]):
            began_s = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", asked["port"])
            writer.write(f"GET {asked['path']} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readline(), WAIT_S)
            took.append((time.monotonic() - began_s) * 1000)
            writer.close()
            if b" 200" not in head:
                raise LoadError(f"{asked['path']} answered {head!r}")
        return {"max_ms": max(took), "p50_ms": percentile(took, 0.5)}


async def serve() -> None:
    """Takes commands until there are no more."""
    clients = Clients()
    acts = {name: getattr(clients, name) for name in Clients.__dict__ if not name.startswith("_")}
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        try:
            found = await acts[asked["do"]](asked)
        except (LoadError, OSError, TimeoutError) as err:
            found = {"error": f"{asked['do']}: {str(err) or type(err).__name__}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    uvloop.run(serve())
